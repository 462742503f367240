// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest under KVM: its machine, memory, code and vCPUs. They are made in an order in which the host is found to be
//! large enough before any memory is touched.
//!
//! Invariants: slots never change except for their logs; the memory behind them lives as long as the machine; a
//! mailbox's passes are written only while its vCPU is stopped.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use kvm_bindings::{
    KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
    KVM_DIRTY_LOG_INITIALLY_SET, KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEM_LOG_DIRTY_PAGES, kvm_dirty_gfn,
    kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use twofold_workload::mode::Mode;

use crate::arch::{self, Root, Shape, Start};
use crate::error::{KvmError, Unavailable};
use crate::layout::{FIXED, Layout, Wanted};
use crate::mapping::{self, Mapping};
use crate::options::{Backing, Clearing, KvmOptions, Log};
use crate::ring::Rings;
use crate::system::System;
use crate::vcpu::{self, Vcpu};

/// A guest under KVM.
pub struct KvmGuest {
    /// Dropped first: the threads end before the things they use are dropped.
    pub(crate) vcpus: Mutex<Vec<Vcpu>>,
    /// Whether the vCPUs repeat their passes.
    pub(crate) goes_on: AtomicBool,
    pub(crate) rings: Option<Arc<Rings>>,
    pub(crate) vm: Arc<VmFd>,
    pub(crate) layout: Layout,
    pub(crate) fixed: Mapping,
    memory: Mapping,
    mode: Mode,
    granted: Granted,
}

/// One thread may read the log while another runs the guest.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<KvmGuest>();
};

/// What the host granted, where the options leave a choice to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The log. If initially set bits were asked for but KVM lacks them, it is cleared manually without them.
    pub log: Log,
    /// Bits of guest-physical address.
    pub address_bits: u32,
    /// Bytes of a page of the log: the host's.
    pub page: u64,
    /// Bytes of the largest page that the backing may use.
    pub backing_page: u64,
    /// arm64: the chunk sizes that KVM supports. Empty if it does not split eagerly, and on x86-64.
    pub chunks: Vec<u64>,
}

/// The slot and page of a virtual address of the test region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPage {
    /// The test slot, from 0 on.
    pub slot: usize,
    /// The page within the slot, as logs count them.
    pub page: u64,
}

impl KvmGuest {
    /// Makes the machine and its memory, and runs the vCPUs up to their first exit. The test region is not touched. If
    /// `cpus` names a CPU for the calling thread, that thread is pinned too.
    ///
    /// # Errors
    ///
    /// [`KvmError::Unavailable`] if this host cannot run guests under KVM. The other errors say what was needed, what
    /// there is, and what to do; they are returned before memory is touched.
    pub fn new(options: &KvmOptions) -> Result<Self, KvmError> {
        let system = System::this();
        let kvm = open()?;
        keep_one(&kvm);
        check(options, &kvm)?;
        let bits = arch::address_bits(&kvm, options.mode)?;
        let shape = arch::shape(options.mode, bits)?;
        let page = rustix::param::page_size() as u64;
        let backing_page = mapping::page(options.backing, &system).unwrap_or(page);
        let (vcpus, region, slots) = (options.vcpus, options.region, options.slots);
        let wanted = Wanted { vcpus, region, slots, page: backing_page.max(page), bits, top: arch::top(bits) };
        let layout = Layout::new(&wanted, &shape)?;
        check_memory(&layout, options.backing, backing_page, &system)?;

        let vm = arch::create(&kvm, bits)?;
        // KVM accepts these only before there are slots and vCPUs.
        let chunks = arch::set_chunk(&vm, options.chunk)?;
        let log = enable_log_kind(&vm, options.log, page)?;
        arch::prepare(&vm)?;
        let fds = (0..vcpus).map(|number| {
            let fd = vm.create_vcpu(number.into()).map_err(KvmError::refused("KVM_CREATE_VCPU"))?;
            arch::init(&kvm, &vm, &fd, options.mode)?;
            Ok(fd)
        });
        let fds = fds.collect::<Result<Vec<_>, KvmError>>()?;
        arch::finish(&vm, vcpus)?;

        let align = page.max(shape.granule());
        let fixed = Mapping::new(layout.fixed_size().next_multiple_of(align), align, Backing::Anonymous, &system)?;
        let memory = Mapping::new(layout.test_size(), wanted.page.max(align), options.backing, &system)?;
        let root = fill(&fixed, &layout, &shape)?;
        let rings = rings_of(log, &layout, page, &fds)?;
        let granted = Granted { log, address_bits: bits, page, backing_page, chunks };
        let vm = Arc::new(vm);
        let (vcpus, goes_on) = (Mutex::default(), AtomicBool::new(false));
        let guest = Self { vcpus, goes_on, rings, vm, layout, fixed, memory, mode: options.mode, granted };
        guest.set_slot(0, FIXED, guest.fixed.address(), guest.fixed.size(), 0)?;
        for slot in 0..guest.slots() {
            guest.set_log(slot, false)?;
        }
        guest.boot(fds, options, root)?;
        Ok(guest)
    }

    /// Returns what the host granted.
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Returns the guest's mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the virtual addresses that a vCPU may access: its part of the test region; empty if there is no such
    /// vCPU.
    pub fn region(&self, vcpu: usize) -> Range<u64> {
        self.layout.region(vcpu).unwrap_or_default()
    }

    /// Returns the number of test slots.
    pub fn slots(&self) -> usize {
        self.layout.slots()
    }

    /// Returns the number of pages in a test slot's log, which is the same for all slots.
    pub fn slot_pages(&self) -> u64 {
        self.layout.slot(0).map_or(0, |slot| (slot.end - slot.start) / self.granted.page)
    }

    /// Returns the slot and page in whose log a write to a virtual address appears; `None` outside the test region.
    pub fn place(&self, va: u64) -> Option<SlotPage> {
        let offset = self.layout.gpa(va)? - self.layout.test();
        let pages = self.slot_pages();
        let page = offset / self.granted.page;
        Some(SlotPage { slot: (page / pages) as usize, page: page % pages })
    }

    /// Returns the guest-physical address of a virtual one; `None` outside the test region.
    pub fn gpa(&self, va: u64) -> Option<u64> {
        self.layout.gpa(va)
    }

    /// Reads 8 bytes of the guest's memory at a guest-physical address, which must be a multiple of 8; `None` if there
    /// is no memory. A running guest may change them at any time.
    pub fn read_guest(&self, gpa: u64) -> Option<u64> {
        let fixed = gpa.checked_sub(FIXED).and_then(|offset| self.fixed.word(offset));
        let test = || gpa.checked_sub(self.layout.test()).and_then(|offset| self.memory.word(offset));
        Some(fixed.or_else(test)?.load(Ordering::Relaxed))
    }

    /// Switches the log of a test slot on or off, without any other change to the slot.
    pub(crate) fn set_log(&self, slot: usize, on: bool) -> Result<(), KvmError> {
        let gpa = self.layout.slot(slot).ok_or_else(|| no_slot(slot))?;
        let address = self.memory.address() + (gpa.start - self.layout.test());
        let flags = if on { KVM_MEM_LOG_DIRTY_PAGES } else { 0 };
        self.set_slot(slot as u32 + 1, gpa.start, address, gpa.end - gpa.start, flags)
    }

    fn set_slot(&self, slot: u32, gpa: u64, address: u64, size: u64, flags: u32) -> Result<(), KvmError> {
        let region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: gpa,
            memory_size: size,
            userspace_addr: address,
        };
        // SAFETY: the memory is a mapping of this guest, which lives as long as the guest does. This process accesses
        // it only through the mapping's atomic words.
        unsafe { self.vm.set_user_memory_region(region) }.map_err(KvmError::refused("KVM_SET_USER_MEMORY_REGION"))
    }

    /// Starts the vCPUs, and waits for the first exit of each.
    fn boot(&self, fds: Vec<VcpuFd>, options: &KvmOptions, root: Root) -> Result<(), KvmError> {
        let mut vcpus = self.vcpus.lock().map_err(|_| KvmError::Running)?;
        for (number, fd) in fds.into_iter().enumerate() {
            let mailbox = self.layout.mailbox(number);
            let start = Start { code: FIXED, mailbox, root };
            arch::start(&fd, &start)?;
            let cpu = options.cpus.get(number).copied();
            vcpus.push(Vcpu::spawn(number, fd, self.vm.clone(), self.rings.clone(), cpu)?);
        }
        if let Some(cpu) = options.cpus.get(vcpus.len()) {
            vcpu::pin(*cpu)?;
        }
        vcpus.iter().for_each(Vcpu::let_go);
        let first = vcpus.iter().enumerate().map(|(number, vcpu)| vcpu.wait(number).map(drop));
        // Wait for all of them, even if the first returns an error.
        first.collect::<Vec<_>>().into_iter().collect()
    }
}

pub(crate) fn no_slot(slot: usize) -> KvmError {
    KvmError::Nowhere(format!("there is no test slot {slot}"))
}

/// Opens `/dev/kvm`.
pub(crate) fn open() -> Result<Kvm, KvmError> {
    let kvm = Kvm::new().map_err(Unavailable::opening)?;
    match kvm.get_api_version() {
        12 => Ok(kvm),
        found => Err(Unavailable::Version { found }.into()),
    }
}

/// Keeps a machine without memory until this process ends.
///
/// Linux notifies KVM when a vCPU's thread is scheduled out. It patches the branch for that into its scheduler with the
/// first machine of a host, and out with the last one. Guests that come and go would cause such patches again and
/// again, each with an interrupt to every CPU. QEMU's TCG with several CPUs now and then misses such a patch for a
/// while: a thread then returned from KVM_RUN with its guest's TPIDR_EL0.
fn keep_one(kvm: &Kvm) {
    static KEPT: OnceLock<Option<VmFd>> = OnceLock::new();
    // A failure is harmless: everything works without this machine.
    KEPT.get_or_init(|| kvm.create_vm().ok());
}

/// Checks the options that can be checked before a machine is created.
fn check(options: &KvmOptions, kvm: &Kvm) -> Result<(), KvmError> {
    let cpus = options.cpus.len();
    let vcpus = options.vcpus as usize;
    if cpus != 0 && cpus != vcpus && cpus != vcpus + 1 {
        let why = format!(
            "{cpus} CPUs for {vcpus} vCPUs: name one for each, and one more for the main thread if that is to be \
             pinned too"
        );
        return Err(KvmError::Options(why));
    }
    let limits = [
        ("vCPUs", u64::from(options.vcpus), kvm.get_max_vcpus() as u64),
        ("slots", u64::from(options.slots) + 1, kvm.get_nr_memslots() as u64),
    ];
    let too_many = limits.into_iter().find(|(_, needed, most)| needed > most);
    too_many.map_or(Ok(()), |(what, needed, most)| Err(KvmError::TooMany { what, needed, most }))?;
    vcpu::check_pins(&options.cpus)
}

/// Checks that there is enough memory, huge pages included.
fn check_memory(layout: &Layout, backing: Backing, page: u64, system: &System) -> Result<(), KvmError> {
    let size = layout.test_size();
    if backing.is_from_pool() {
        let (needed, free) = (size.div_ceil(page), system.free_huge_pages(page));
        if needed > free {
            return Err(KvmError::NoHugePages { backing, size: page, needed, free });
        }
    }
    if backing == Backing::AnonymousThp && !system.has_transparent_huge_pages() {
        return Err(KvmError::NoTransparentHugePages);
    }
    // The tables of the host and of KVM: 8 bytes each for 4 KiB.
    let taken = if backing.is_from_pool() { 0 } else { size };
    let needed = taken + layout.fixed_size() + size / 256;
    match system.available() {
        // A sixteenth is left for other needs of the process.
        Some(free) if needed > free - free / 16 => Err(KvmError::NoMemory { needed, free }),
        _ => Ok(()),
    }
}

/// Asks for the kind of log; returns the kind that KVM granted.
fn enable_log_kind(vm: &VmFd, log: Log, page: u64) -> Result<Log, KvmError> {
    let enable = |cap, argument, what| {
        let mut enabled = kvm_enable_cap { cap, ..Default::default() };
        enabled.args[0] = argument;
        vm.enable_cap(&enabled).map_err(KvmError::refused(what))
    };
    match log {
        Log::Bitmap(Clearing::ByGet) => Ok(log),
        Log::Bitmap(wanted) => {
            let has = vm.check_extension_raw(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2.into()).max(0) as u32;
            if has & KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE == 0 {
                let instead = "it came with Linux 5.2; take the log that is cleared by reading it (-g)";
                return Err(KvmError::Missing { what: "KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2", instead });
            }
            let initially_set = has & KVM_DIRTY_LOG_INITIALLY_SET != 0 && wanted == Clearing::ManualInitiallySet;
            let bits =
                KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | if initially_set { KVM_DIRTY_LOG_INITIALLY_SET } else { 0 };
            enable(
                KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2,
                bits.into(),
                "KVM_ENABLE_CAP(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2)",
            )?;
            Ok(Log::Bitmap(if initially_set { Clearing::ManualInitiallySet } else { Clearing::Manual }))
        }
        Log::Ring { entries } => {
            // x86-64 needs no extra ordering, and had rings before the capability that states it.
            let caps = [KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_DIRTY_LOG_RING];
            let caps = if cfg!(target_arch = "x86_64") { &caps[..] } else { &caps[..1] };
            let found = caps
                .iter()
                .find_map(|cap| Some((*cap, vm.check_extension_raw((*cap).into()))).filter(|(_, most)| *most > 0));
            let Some((cap, most)) = found else {
                let instead = "it came with Linux 5.11 (x86-64) and 6.3 (arm64); take a bitmap";
                return Err(KvmError::Missing { what: "KVM_CAP_DIRTY_LOG_RING_ACQ_REL", instead });
            };
            let entry = size_of::<kvm_dirty_gfn>() as u64;
            let (bytes, most) = (u64::from(entries) * entry, most as u64);
            if !entries.is_power_of_two() || bytes < page || bytes > most {
                return Err(KvmError::Options(format!(
                    "a dirty ring of {entries} entries: it takes a power of 2 from {} to {}",
                    page / entry,
                    most / entry
                )));
            }
            enable(cap, bytes, "KVM_ENABLE_CAP(KVM_CAP_DIRTY_LOG_RING_ACQ_REL): more entries may do")?;
            Ok(log)
        }
    }
}

fn rings_of(log: Log, layout: &Layout, page: u64, fds: &[VcpuFd]) -> Result<Option<Arc<Rings>>, KvmError> {
    let Log::Ring { entries } = log else { return Ok(None) };
    let pages = |slot| layout.slot(slot).map_or(0, |slot| (slot.end - slot.start) / page);
    let rings = Rings::new((0..layout.slots()).map(pages));
    for fd in fds {
        rings.add(fd, entries).map_err(|errno| KvmError::Refused { what: "mapping a dirty ring", errno })?;
    }
    Ok(Some(Arc::new(rings)))
}

/// Writes the code and the tables; returns the root of the tables.
fn fill(fixed: &Mapping, layout: &Layout, shape: &Shape) -> Result<Root, KvmError> {
    for (index, bytes) in arch::code().chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let place =
            fixed.word(index as u64 * 8).ok_or_else(|| KvmError::Nowhere("the code does not fit".to_owned()))?;
        place.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    shape.build(fixed, FIXED, layout.tables_place(), &layout.maps())
}

/// Checks, cheaply, that KVM can run guests here.
///
/// # Errors
///
/// [`KvmError::Unavailable`], with the reason.
pub fn available() -> Result<(), KvmError> {
    open()?.create_vm().map(drop).map_err(|error| {
        let errno = rustix::io::Errno::from_raw_os_error(error.errno());
        Unavailable::Create { errno }.into()
    })
}
