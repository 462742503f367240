// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one virtual machine: the state that its vCPUs share, and its end.
//!
//! Locking: there is no lock around the guest's memory, which locks internally. Each CPU handles its vCPU's faults in
//! parallel with the others, and holds no lock when it enters the guest. The devices have locks of their own
//! ([`emulation`](crate::emulation)).

use alloc::vec::Vec;
use core::fmt::{self, Write};

use smccc::psci::AffinityState;
use spin::{Mutex, Once};
use twofold_abi::{bundle, exit};
use twofold_memory::{GuestMemory, SlotId};
use twofold_stage2::{Features, Ipa};
use twofold_vmm::agreement;
use twofold_vmm::claim::Claim;
use twofold_vmm::psci::{self, NotStarted};
use twofold_vmm::refusals::Refusals;

use crate::board::Board;
use crate::cpus::{self, StartError};
use crate::emulation::Devices;
use crate::experiment::vendor::VendorCalls;
use crate::experiment::{EnginePlatform, ExitObserver, ObservedGuest, Observer};
use crate::gic::physical;
use crate::gic::sources::Sources;
use crate::guest_cpu::{GuestCpu, IdValues};
use crate::registers::{self, Confinement};
use crate::stats::{self, Stats};
use crate::{control, platform, power, shutdown, timer};

/// The virtual machine.
pub struct Vm {
    board: &'static Board,
    memory: GuestMemory<EnginePlatform>,
    /// The slot of the guest's RAM.
    ram: SlotId,
    /// The slots of the guest's test memory, if it has any.
    test: Vec<SlotId>,
    hcr: u64,
    /// The ID registers that the guest sees.
    guest_cpu: GuestCpu,
    /// How far the guest's counters are behind the machine's.
    counter_offset: u64,
    /// The machine's interrupts.
    sources: Sources,
    /// What the guest has beside its memory.
    devices: Devices,
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

/// Runs a vCPU on the calling CPU: its number, entry and argument.
pub type RunVcpu = fn(&'static Vm, usize, u64, u64) -> !;

/// The state of a vCPU that other CPUs use.
pub(crate) struct VcpuSlot {
    pub(crate) mpidr: u64,
    /// Taken while the vCPU is on.
    on: Claim,
    pub(crate) stats: Stats,
    /// The vCPU's entry and argument at its start.
    start: Mutex<(u64, u64)>,
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset.
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
    /// A virtual machine with `cpus` vCPUs, of which only the first is on, with the slots of its RAM and of its test
    /// memory. `flags` are the bundle's. Its counters begin now.
    pub fn new(
        board: &'static Board,
        (sources, devices): (Sources, Devices),
        (memory, ram, test): (GuestMemory<EnginePlatform>, SlotId, Vec<SlotId>),
        guest_cpu: GuestCpu,
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
            guest_cpu,
            counter_offset: timer::machine_time(),
            sources,
            devices,
            flags,
            run,
            vendor: (flags & bundle::flags::MEASURE != 0).then(|| VendorCalls::new(test.len())),
            refusals: Refusals::default(),
            end: Claim::new(false),
            vcpus: vcpus.collect(),
            ram,
            test,
            memory,
        }
    }

    /// Makes this the virtual machine of the image.
    pub fn install(self) -> &'static Self {
        VM.call_once(|| self)
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &GuestMemory<EnginePlatform> {
        &self.memory
    }

    /// The ID registers that the guest sees.
    pub(crate) fn guest_cpu(&self) -> &GuestCpu {
        &self.guest_cpu
    }

    /// What the guest has beside its memory.
    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The machine's interrupts.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// How far the guest's counters are behind the machine's.
    pub(crate) fn counter_offset(&self) -> u64 {
        self.counter_offset
    }

    /// Sets this CPU up so that a guest on it reaches only this virtual machine, and vCPU `index` runs on it. Out of line:
    /// inlined into the loop of a vCPU, it made the compiler keep the fault path in pieces.
    #[inline(never)]
    pub(crate) fn confine_this_cpu(&self, index: usize) {
        let stage2 = self.memory.stage2();
        let (cpu, features, ids) = (cpus::current(), platform::features(), IdValues::read());
        let checked = agreement::check(cpu, stage2.features(), &features);
        if let Err(unfit) = checked.and_then(|()| self.guest_cpu.check_cpu(cpu, &ids)) {
            self.fail(format_args!("{unfit}"));
        }
        let guest = Confinement {
            hcr: self.hcr,
            vtcr: stage2.vtcr(),
            vttbr: stage2.vttbr(),
            counter_offset: self.counter_offset,
        };
        // SAFETY: a CPU calls this before it enters its first vCPU; this value of HCR_EL2 does not change EL2.
        unsafe { registers::set_for(&guest) };
        Observer::tables_loaded(stage2.vttbr());
        // A CPU that was off received no invalidation, and may hold TLB entries of firmware or of its last vCPU under
        // this VMID.
        stage2.invalidate_all();
        self.take_interrupts(index);
    }

    /// Sets up this CPU's interrupts, those of the machine and those of vCPU `index`.
    fn take_interrupts(&self, index: usize) {
        let mpidr = self.vcpus[index].mpidr;
        // SAFETY: this CPU has this affinity, and the start of the image has set the distributor up.
        let mut done = unsafe { physical::set_up_this_cpu(self.board, mpidr, &self.sources) };
        let active = self.devices.gic.start(index);
        if active != 0 && done.is_ok() {
            // SAFETY: as above.
            done = unsafe { physical::activate_here(self.board, mpidr, active) };
        }
        if let Err(error) = done {
            self.fail(format_args!("{error}"));
        }
    }

    pub(crate) fn counts_instructions(&self) -> bool {
        self.flags & bundle::flags::COUNT != 0
    }

    /// The calls by which the guest measures itself; `None` if its bundle does not allow them.
    pub(crate) fn vendor(&self) -> Option<&VendorCalls> {
        self.vendor.as_ref()
    }

    /// Records that a call of the guest was refused.
    pub(crate) fn refused(&self, why: fmt::Arguments) {
        self.refusals.add(why, control::log);
    }

    pub(crate) fn panics_on_call(&self) -> bool {
        self.flags & bundle::flags::TEST_PANIC != 0
    }

    /// Starts vCPU `index` on its CPU. The caller must hold the vCPU's claim.
    fn start_vcpu(&'static self, index: usize, entry: u64, argument: u64) -> Result<(), StartError> {
        *self.vcpus[index].start.lock() = (entry, argument);
        cpus::start(self.board, index, |index| {
            let vm = VM.get().expect("only a running virtual machine starts vCPUs");
            let (entry, argument) = *vm.vcpus[index].start.lock();
            (vm.run)(vm, index, entry, argument)
        })
    }

    /// Ends the guest: reports, and exits. Other vCPUs may run until then; their last exits may be missing from the
    /// figures.
    pub(crate) fn end(&self, end: End) -> ! {
        self.claim_the_end();
        if let Some(vendor) = &self.vendor {
            vendor.report(self);
        }
        self.refusals.report(control::log);
        let engine = self.memory.stage2().platform().counts();
        stats::report(self.vcpus.iter().map(|vcpu| &vcpu.stats), &self.memory.counts(), engine);
        let (how, status) = match end {
            End::PowerOff => ("power-off", exit::POWER_OFF),
            End::Reset => ("reset", exit::RESET),
        };
        control::end(how);
        shutdown::exit(status)
    }

    /// The guest cannot continue, for a reason that is not a defect of EL2.
    pub(crate) fn fail(&self, why: fmt::Arguments) -> ! {
        self.claim_the_end();
        control::error(format_args!("the guest cannot go on: {why}"));
        control::end("error");
        shutdown::exit(exit::CANNOT_START)
    }

    /// One CPU ends the guest. Any other CPU that gets here later stops, so each figure is reported once.
    fn claim_the_end(&self) {
        if !self.end.take() {
            power::park();
        }
    }
}

/// The CPU that takes a vCPU's claim switches it on.
impl psci::Vcpus for &'static Vm {
    type Why = StartError;

    fn find(&self, mpidr: u64) -> Option<usize> {
        self.vcpus.iter().position(|vcpu| vcpu.mpidr == mpidr)
    }

    fn is_ram(&self, address: u64) -> bool {
        // Only RAM can be read.
        self.memory.read(Ipa::new(address), &mut [0]).is_ok()
    }

    fn try_on(&self, index: usize) -> bool {
        self.vcpus[index].on.take()
    }

    fn set_off(&self, index: usize) {
        self.vcpus[index].on.give_back();
    }

    fn start(&self, index: usize, entry: u64, argument: u64) -> Result<(), NotStarted<StartError>> {
        Ok(self.start_vcpu(index, entry, argument)?)
    }

    fn is_off(&self, index: usize) -> bool {
        // A vCPU is off only when its CPU is off: until then it cannot be switched on again.
        let vcpu = &self.vcpus[index];
        !vcpu.on.is_taken() && power::affinity_info(vcpu.mpidr) == Ok(AffinityState::Off)
    }

    fn refused(&self, why: fmt::Arguments) {
        Vm::refused(self, why);
    }
}

impl ObservedGuest for Vm {
    fn memory(&self) -> &GuestMemory<EnginePlatform> {
        &self.memory
    }

    fn ram(&self) -> SlotId {
        self.ram
    }

    fn test_slots(&self) -> &[SlotId] {
        &self.test
    }

    fn stats(&self) -> impl Iterator<Item = &Stats> + Clone {
        self.vcpus.iter().map(|vcpu| &vcpu.stats)
    }

    fn refused(&self, why: fmt::Arguments) {
        Vm::refused(self, why);
    }

    fn power_off(&self) -> ! {
        self.end(End::PowerOff)
    }

    fn fail(&self, why: fmt::Arguments) -> ! {
        Vm::fail(self, why)
    }
}

/// [`registers::hcr`], with the additional traps of this image.
pub fn hcr(features: &Features) -> u64 {
    registers::hcr(features) | Observer::TRAPS
}
