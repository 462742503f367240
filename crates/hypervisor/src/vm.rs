// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one virtual machine: what all its vCPUs share, and its end.
//!
//! Locking: there is none around the guest's memory, which has its own inside. Each CPU answers its vCPU's faults beside
//! the others, and no lock is held when it enters the guest.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use smccc::psci::AffinityState;
use spin::{Mutex, Once};
use twofold_abi::{bundle, exit};
#[cfg(any(feature = "oracle", feature = "record"))]
use twofold_memory::dirty::{DirtyLog, LogError};
use twofold_memory::{GuestMemory, SlotId};
use twofold_stage2::{Features, Ipa};

use crate::board::Board;
use crate::claim::Claim;
use crate::cpus::{self, StartError};
use crate::platform::EnginePlatform;
use crate::psci;
use crate::refusals::Refusals;
use crate::registers::{self, Confinement};
use crate::stats::{self, Stats};
use crate::vendor::VendorCalls;
use crate::{agreement, control, platform, power};
#[cfg(feature = "trace")]
use {crate::trace, twofold_abi::trace::Event};

/// The virtual machine.
pub struct Vm {
    board: &'static Board,
    memory: GuestMemory<EnginePlatform>,
    /// The slot of its RAM.
    #[cfg(any(feature = "oracle", feature = "record"))]
    ram: SlotId,
    /// The slots of its test memory, if it has any.
    test: Vec<SlotId>,
    hcr: u64,
    flags: u32,
    run: RunVcpu,
    /// The calls by which the guest measures itself; `None` if its bundle does not allow them.
    vendor: Option<VendorCalls>,
    refusals: Refusals,
    /// Taken by the CPU that ends the guest.
    end: Claim,
    /// The vCPUs, in the order of the machine's CPUs.
    pub(crate) vcpus: Vec<VcpuSlot>,
}

/// What runs a vCPU on the CPU that calls it: its number, entry and argument.
pub type RunVcpu = fn(&'static Vm, usize, u64, u64) -> !;

/// What others see of a vCPU.
pub(crate) struct VcpuSlot {
    pub(crate) mpidr: u64,
    /// Taken while it is on.
    on: Claim,
    pub(crate) stats: Stats,
    /// Where it starts: entry and argument.
    start: Mutex<(u64, u64)>,
}

/// How a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It switched itself off.
    PowerOff,
    /// It asked for a reset.
    Reset,
}

static VM: Once<Vm> = Once::new();

/// Writes the last exits of each vCPU, for a panic report.
pub fn write_last_exits(out: &mut dyn Write) {
    for (index, vcpu) in VM.get().into_iter().flat_map(|vm| &vm.vcpus).enumerate() {
        vcpu.stats.write_last(index, out);
    }
}

impl Vm {
    /// A virtual machine with `cpus` vCPUs, the first of them on, with the slot of its RAM and those of its test memory;
    /// `flags` are the bundle's.
    pub fn new(
        board: &'static Board,
        (memory, _ram, test): (GuestMemory<EnginePlatform>, SlotId, Vec<SlotId>),
        cpus: usize,
        flags: u32,
        run: RunVcpu,
    ) -> Self {
        let vcpus = board.cpus.iter().take(cpus).enumerate().map(|(index, mpidr)| VcpuSlot {
            mpidr: *mpidr,
            on: Claim::new(index == 0),
            stats: Stats::default(),
            start: Mutex::new((0, 0)),
        });
        let hcr = hcr(memory.stage2().features());
        Self {
            board,
            hcr,
            flags,
            run,
            vendor: (flags & bundle::flags::MEASURE != 0).then(|| VendorCalls::new(test.len())),
            refusals: Refusals::default(),
            end: Claim::new(false),
            vcpus: vcpus.collect(),
            #[cfg(any(feature = "oracle", feature = "record"))]
            ram: _ram,
            test,
            memory,
        }
    }

    /// Makes it the virtual machine of this image.
    pub fn install(self) -> &'static Self {
        VM.call_once(|| self)
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &GuestMemory<EnginePlatform> {
        &self.memory
    }

    /// The dirty log of its RAM.
    #[cfg(any(feature = "oracle", feature = "record"))]
    pub(crate) fn dirty_log(&self) -> Result<DirtyLog<'_, EnginePlatform>, LogError> {
        self.memory.dirty_log(self.ram)
    }

    /// The slots of its test memory, if it has any.
    pub(crate) fn test_slots(&self) -> &[SlotId] {
        &self.test
    }

    /// Sets this CPU up so that a guest on it sees nothing but this virtual machine.
    pub(crate) fn confine_this_cpu(&self) {
        let stage2 = self.memory.stage2();
        if let Err(unfit) = agreement::check(cpus::current(), stage2.features(), &platform::features()) {
            self.fail(format_args!("{unfit}"));
        }
        let guest = Confinement { hcr: self.hcr, vtcr: stage2.vtcr(), vttbr: stage2.vttbr() };
        // SAFETY: a CPU comes here before its first vCPU is entered; the value of HCR_EL2 keeps EL2 as it is.
        unsafe { registers::set_for(&guest) };
        #[cfg(feature = "trace")]
        {
            trace::event(Event::Vttbr { vttbr: stage2.vttbr() });
            trace::event(Event::Isb);
        }
        // A CPU that was off heard no invalidation, and may hold what firmware or its last vCPU left under this VMID.
        stage2.invalidate_all();
    }

    pub(crate) fn counts_instructions(&self) -> bool {
        self.flags & bundle::flags::COUNT != 0
    }

    /// The calls by which the guest measures itself; `None` if its bundle does not allow them.
    pub(crate) fn vendor(&self) -> Option<&VendorCalls> {
        self.vendor.as_ref()
    }

    /// A call of the guest's was refused.
    pub(crate) fn refused(&self, why: fmt::Arguments) {
        self.refusals.add(why);
    }

    pub(crate) fn panics_on_call(&self) -> bool {
        self.flags & bundle::flags::TEST_PANIC != 0
    }

    /// Starts vCPU `index`, whose power state the caller has won, on its CPU.
    fn start_vcpu(&'static self, index: usize, entry: u64, argument: u64) -> Result<(), StartError> {
        *self.vcpus[index].start.lock() = (entry, argument);
        cpus::start(self.board, index, |index| {
            let vm = VM.get().expect("only a running virtual machine starts vCPUs");
            let (entry, argument) = *vm.vcpus[index].start.lock();
            (vm.run)(vm, index, entry, argument)
        })
    }

    /// The guest is over: reports, and ends. What a vCPU does that runs on until then is counted, or not.
    pub(crate) fn end(&self, end: End) -> ! {
        self.claim_the_end();
        if let Some(vendor) = &self.vendor {
            vendor.report(self);
        }
        self.refusals.report();
        let engine = self.memory.stage2().platform().counts();
        stats::report(self.vcpus.iter().map(|vcpu| &vcpu.stats), &self.memory.counts(), engine);
        let (how, status) = match end {
            End::PowerOff => ("power-off", exit::POWER_OFF),
            End::Reset => ("reset", exit::RESET),
        };
        control::end(how);
        power::exit(status)
    }

    /// The guest cannot go on, which is no defect of EL2's.
    pub(crate) fn fail(&self, why: fmt::Arguments) -> ! {
        self.claim_the_end();
        control::error(format_args!("the guest cannot go on: {why}"));
        control::end("error");
        power::exit(exit::CANNOT_START)
    }

    /// One CPU ends the guest. Another that comes here later stops, so that each figure is reported once.
    fn claim_the_end(&self) {
        if !self.end.take() {
            power::park();
        }
    }
}

/// A vCPU is switched on by the CPU that takes its claim.
impl psci::Vcpus for &'static Vm {
    fn find(&self, mpidr: u64) -> Option<usize> {
        self.vcpus.iter().position(|vcpu| vcpu.mpidr == mpidr)
    }

    fn is_ram(&self, address: u64) -> bool {
        // What is not RAM cannot be read.
        self.memory.read(Ipa::new(address), &mut [0]).is_ok()
    }

    fn try_on(&self, index: usize) -> bool {
        self.vcpus[index].on.take()
    }

    fn set_off(&self, index: usize) {
        self.vcpus[index].on.give_back();
    }

    fn start(&self, index: usize, entry: u64, argument: u64) -> Result<(), StartError> {
        self.start_vcpu(index, entry, argument)
    }

    fn is_off(&self, index: usize) -> bool {
        // Off is off only when its CPU is: until then it cannot be switched on again.
        let vcpu = &self.vcpus[index];
        !vcpu.on.is_taken() && power::affinity_info(vcpu.mpidr) == Ok(AffinityState::Off)
    }

    fn refused(&self, why: fmt::Arguments) {
        Vm::refused(self, why);
    }
}

/// [`registers::hcr`], with what this image wants besides.
pub fn hcr(features: &Features) -> u64 {
    // Each change of process comes to EL2, for the oracle and the recorder to have their rounds.
    const TVM: u64 = 1 << 26;
    let tvm = if cfg!(any(feature = "oracle", feature = "record")) { TVM } else { 0 };
    registers::hcr(features) | tvm
}
