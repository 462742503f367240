// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine: the state that its vCPUs share. `end` has its end, and `anew` its restart.
//!
//! # Locking
//!
//! There is no lock around the guest's memory, which locks internally. Each CPU handles its vCPU's faults in parallel with
//! the others, and holds no lock but that vCPU's when it enters the guest. The devices have locks of their own
//! ([`emulation`](crate::emulation)), and so have the power states, which are locked for one call of the guest.

use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::sync::atomic::AtomicUsize;

use spin::{Mutex, MutexGuard, Once};
use twofold_abi::bundle;
use twofold_abi::channel::GuestState;
use twofold_devices::Width;
use twofold_devices::vgic::VcpuId;
use twofold_memory::SlotId;
use twofold_stage2::Features;
use twofold_vmm::agreement;
use twofold_vmm::console::Notice;
use twofold_vmm::mitigation::Needs;
use twofold_vmm::name::Name;
use twofold_vmm::power::{Power, Start};
use twofold_vmm::refusals::Refusals;
use twofold_vmm::scheduler::EntityId;

use crate::board::Board;
use crate::emulation::Devices;
use crate::experiment::vendor::VendorCalls;
use crate::experiment::{ExitObserver, ObservedGuest, Observer};
use crate::gic::physical::{self, OwnRedistributor};
use crate::gic::sources::Sources;
use crate::granule::Memory;
use crate::guest_cpu::{GuestCpu, IdValues};
use crate::life::Shared;
use crate::mmio::Operation;
use crate::registers::{self, Confinement};
use crate::release::Release;
use crate::restart::{Images, Restart};
use crate::schedule::cpu::Progress;
use crate::schedule::deadlines::Due;
use crate::stats::{Figures, Stats};
use crate::swap::Swap;
use crate::switch::{LastVcpu, Seat};
use crate::vcpu::state::Vcpu;
use crate::virtio::{Around, Place};
use crate::{channel, control, cpus, platform, power, schedule};
use end::{End, fail};
use sweep::Sweeps;

pub(crate) mod absent;
mod anew;
pub(crate) mod commanded;
pub(crate) mod end;
pub(crate) mod frames;
pub(crate) mod saved;
pub(crate) mod saved_pages;
pub(crate) mod sweep;
pub(crate) mod tracked;

/// The virtual machine.
pub struct Vm {
    name: Name,
    memory: Memory,
    /// The slot of the guest's RAM.
    ram: SlotId,
    /// The slots of the guest's test memory, if it has any.
    test: Vec<SlotId>,
    /// The slot of the vCPUs' stolen time.
    stolen: SlotId,
    /// The slot of the flash, if the guest starts in a firmware. A reset leaves it, but for the firmware itself.
    flash: Option<SlotId>,
    /// Its store, if its pages leave memory.
    swap: Option<Swap>,
    hcr: u64,
    /// VTCR_EL2.
    vtcr: u64,
    /// The vCPU that ran last on each CPU.
    last: LastVcpu,
    /// The ID registers that the guest sees.
    guest_cpu: GuestCpu,
    /// The mitigations that the CPUs need together.
    needs: Needs,
    /// The machine's interrupts.
    sources: Sources,
    /// What the guest has beside its memory.
    devices: Devices,
    power: Mutex<Power>,
    restart: Restart,
    release: Release,
    /// The task that restarts the guest.
    task: EntityId,
    flags: u32,
    /// The calls by which the guest measures itself; `None` if its bundle does not allow them.
    vendor: Option<VendorCalls>,
    refusals: Refusals,
    /// Whether it runs, and how far its counters are behind the machine's.
    life: Shared,
    sweeps: Sweeps,
    pub(crate) vcpus: Vec<VcpuSlot>,
    /// The number of the first vCPU's entity. Those of the others follow.
    first: usize,
}

/// A vCPU, and what other CPUs need of it.
pub(crate) struct VcpuSlot {
    /// As in MPIDR_EL1.
    mpidr: u64,
    pub(crate) entity: EntityId,
    /// What the interrupt controller calls it.
    pub(crate) id: VcpuId,
    pub(crate) stats: Stats,
    /// Locked by the CPU that runs the vCPU.
    pub(crate) state: Mutex<Vcpu>,
}

/// What a virtual machine is made of.
pub struct Parts {
    /// The guest's name.
    pub name: Name,
    /// The memory, with the slots of RAM, of test memory, of stolen time and of the flash.
    pub memory: (Memory, SlotId, Vec<SlotId>, SlotId, Option<SlotId>),
    /// The store, if the guest's pages leave memory.
    pub swap: Option<Swap>,
    /// The machine's interrupts.
    pub sources: Sources,
    /// The devices.
    pub devices: Devices,
    /// The ID registers that the guest sees.
    pub guest_cpu: GuestCpu,
    /// The mitigations that the CPUs need together.
    pub needs: Needs,
    /// The vCPUs: their affinities, as in MPIDR_EL1, and what the scheduler calls them, with numbers in a row.
    pub vcpus: Vec<(u64, EntityId)>,
    /// Kernel, initrd and device tree, which are in RAM already.
    pub images: Images,
    /// What the scheduler calls the task that restarts the guest.
    pub task: EntityId,
    /// The bundle's flags.
    pub flags: u32,
    /// Whether WFI and WFE give up the CPU, because there are more vCPUs than CPUs.
    pub waits_trap: bool,
}

/// The guests of the image.
struct Guests {
    all: Vec<Vm>,
    /// How many of them have not ended.
    left: AtomicUsize,
    /// The task that waits for changes of their states.
    channel_task: Option<EntityId>,
}

static GUESTS: Once<Guests> = Once::new();

/// Makes these the guests of the image. `channel_task` is the task of the control channel, if there is one.
///
/// # Panics
///
/// Two guests have one VMID. QEMU hides that: it flushes its TLB whenever VTTBR_EL2 changes.
pub fn install(guests: Vec<Vm>, channel_task: Option<EntityId>) -> &'static [Vm] {
    let vmid = |vm: &Vm| vm.memory.stage2().vttbr() >> 48;
    for (number, vm) in guests.iter().enumerate() {
        let is_own = guests[..number].iter().all(|other| vmid(other) != vmid(vm));
        assert!(is_own, "two guests have VMID {}", vmid(vm));
    }
    let left = AtomicUsize::new(guests.len());
    &GUESTS.call_once(|| Guests { all: guests, left, channel_task }).all
}

/// The guests; empty before [`install`].
pub(crate) fn all() -> &'static [Vm] {
    GUESTS.get().map_or(&[], |guests| &guests.all)
}

/// Wakes the task of the control channel, if there is one.
pub(crate) fn wake_channel() {
    if let Some(task) = GUESTS.get().and_then(|guests| guests.channel_task) {
        schedule::wake(task);
    }
}

/// Writes the last exits of each vCPU, for a panic report.
pub fn write_last_exits(out: &mut dyn Write) {
    for (index, vcpu) in all().iter().flat_map(|vm| &vm.vcpus).enumerate() {
        vcpu.stats.write_last(index, out);
    }
}

/// Sets this CPU and its interrupts up so that a guest on it reaches only its own virtual machine.
pub(crate) fn confine_this_cpu(board: &Board, sources: &Sources) -> OwnRedistributor {
    let (cpu, features, ids) = (cpus::current(), platform::features(), IdValues::read());
    for vm in all() {
        let stage2 = vm.memory.stage2();
        let checked = agreement::check(cpu, stage2.features(), &features);
        if let Err(unfit) = checked.and_then(|()| vm.guest_cpu.check_cpu(cpu, &ids)) {
            vm.fail(format_args!("{unfit}"));
        }
        let (hcr, counter_offset) = (vm.hcr, vm.counter_offset());
        let guest = Confinement { hcr, vtcr: stage2.vtcr(), vttbr: stage2.vttbr(), counter_offset };
        // SAFETY: a CPU calls this before it enters its first vCPU; this value of HCR_EL2 does not change EL2.
        unsafe { registers::set_for(&guest) };
        // A CPU that was off received no invalidation, and may hold TLB entries of firmware under this VMID.
        stage2.invalidate_all();
    }
    let mpidr = board.cpus.get(cpu).copied().unwrap_or(0);
    // SAFETY: this CPU has this affinity, and the start of the image has set the distributor up.
    match unsafe { physical::set_up_this_cpu(board, mpidr, sources) } {
        Ok(redistributor) => redistributor,
        Err(error) => fail(format_args!("{error}")),
    }
}

impl Vm {
    /// A virtual machine whose vCPUs are off, except the first one, which begins when it is woken. Its counters begin now. One
    /// that comes from elsewhere is stopped instead.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts {
            name,
            memory: (memory, ram, test, stolen, flash),
            swap,
            sources,
            devices,
            guest_cpu,
            needs,
            vcpus,
            images,
            task,
            flags,
            waits_trap,
        } = parts;
        let layout = &images.layout;
        let boot = Start { entry: layout.entry.raw(), argument: layout.device_tree.raw() };
        let affinities = vcpus.iter().map(|(mpidr, _)| mpidr & AFFINITY);
        let power = Mutex::new(Power::new(affinities, boot));
        let slot = |(index, (mpidr, entity)): (usize, &(u64, EntityId))| VcpuSlot {
            mpidr: *mpidr,
            entity: *entity,
            id: VcpuId::new(index as u32).expect("the interrupt controller has as many vCPUs"),
            stats: Stats::default(),
            state: Mutex::new(Vcpu::new(index, *entity, swap.as_ref())),
        };
        let first = vcpus.first().map_or(0, |(_, entity)| entity.index());
        let is_in_a_row = |(index, (_, entity)): (usize, &(u64, EntityId))| entity.index() == first + index;
        assert!(vcpus.iter().enumerate().all(is_in_a_row), "a guest's vCPUs have numbers in a row");
        let vcpus = vcpus.iter().enumerate().map(slot).collect();
        Self {
            name,
            hcr: hcr(memory.stage2().features()) | if waits_trap { WAITS } else { 0 },
            vtcr: memory.stage2().vtcr(),
            last: LastVcpu::default(),
            guest_cpu,
            needs,
            sources,
            devices,
            power,
            restart: Restart::new(images),
            release: Release::new(),
            task,
            flags,
            vendor: (flags & bundle::flags::MEASURE != 0).then(|| VendorCalls::new(test.len())),
            refusals: Refusals::default(),
            life: Shared::new(flags & bundle::flags::INCOMING != 0),
            sweeps: Sweeps::default(),
            first,
            vcpus,
            ram,
            test,
            stolen,
            flash,
            swap,
            memory,
        }
    }

    /// Its store, if its pages leave memory.
    pub(crate) fn swap(&self) -> Option<&Swap> {
        self.swap.as_ref()
    }

    /// The guest's memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The ID registers that the guest sees.
    pub(crate) fn guest_cpu(&self) -> &GuestCpu {
        &self.guest_cpu
    }

    /// The mitigations that its CPUs need together.
    pub(crate) fn needs(&self) -> &Needs {
        &self.needs
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
    #[inline(always)]
    pub(crate) fn counter_offset(&self) -> u64 {
        self.life.offset()
    }

    /// The vCPU of this guest that the scheduler calls so.
    pub(crate) fn vcpu_of(&self, entity: Option<EntityId>) -> Option<usize> {
        self.vcpus.iter().position(|vcpu| Some(vcpu.entity) == entity)
    }

    /// As [`vcpu_of`](Self::vcpu_of), without a search.
    #[inline(always)]
    pub(crate) fn slot_of(&self, entity: EntityId) -> Option<(usize, &VcpuSlot)> {
        let index = entity.index().wrapping_sub(self.first);
        self.vcpus.get(index).map(|slot| (index, slot))
    }

    /// What the scheduler calls the task that restarts the guest.
    pub(crate) fn task(&self) -> EntityId {
        self.task
    }

    /// What vCPU `index` has at EL2, while the guest's counters are this far behind the machine's.
    #[inline(always)]
    pub(crate) fn seat(&self, index: usize, slot: &VcpuSlot, counter_offset: u64) -> Seat<'_> {
        Seat {
            hcr: self.hcr,
            vtcr: self.vtcr,
            vttbr: self.memory.stage2().vttbr(),
            vmpidr: RES1 | slot.mpidr,
            counter_offset,
            vcpu: index as u32,
            last: &self.last,
        }
    }

    /// The power states of the vCPUs.
    pub(crate) fn power(&self) -> MutexGuard<'_, Power> {
        self.power.lock()
    }

    /// What stands for the alarm of the guest's clock.
    pub(crate) fn alarm(&self) -> Due {
        Due::Alarm(self.vcpus[0].entity.index())
    }

    /// Whether the vCPUs have a source of random numbers.
    pub(crate) fn has_random(&self) -> bool {
        self.guest_cpu.has_random()
    }

    /// Whether none of the guest's vCPUs may run: it is stopped, begins anew or has ended.
    #[inline(always)]
    pub(crate) fn has_stopped(&self) -> bool {
        self.life.is_halted()
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

    /// An access of vCPU `here`, which runs on this CPU, to a virtio device. Returns the value of a load.
    pub(crate) fn virtio(&self, here: usize, at: Place, width: Width, operation: Operation) -> u64 {
        self.devices.virtio.access(at, width, operation, Around { vm: self, here: Some(here) })
    }

    /// A page was asked for, by something that sets no deadline for its transfer: W2 of [`swap`](crate::swap) is the
    /// task's.
    #[cold]
    pub(crate) fn pages_asked_for(&self) {
        if let Some(swap) = self.swap.as_ref().filter(|swap| swap.next_end().is_some()) {
            schedule::wake(swap.task());
        }
    }

    /// A piece of the work of the I/O task.
    pub(crate) fn io(&self) -> Progress {
        let progress = self.devices.virtio.work(Around { vm: self, here: None }).unwrap_or_else(|device| {
            let why = self.swap.as_ref().map(|swap| swap.why(None)).unwrap_or_default();
            self.stop_for(format_args!("{device}{why}"));
            Progress::Finished
        });
        // The virtio console may have written.
        if self.devices.notice() != Notice::None {
            wake_channel();
        }
        progress
    }

    /// What the guest does, for a launcher.
    pub(crate) fn state(&self) -> GuestState {
        self.life.change(|life, _| life.shown())
    }

    /// The state of the guest may be another one. Called without any lock of the guest or of a device.
    fn announce(&self) {
        let Some(guests) = GUESTS.get() else { return };
        let Some(number) = guests.all.iter().position(|vm| core::ptr::eq(vm, self)) else { return };
        // The state is read while this CPU has the channel. So of two CPUs, the later one sends the later state.
        let _ = channel::with_session(|session, launcher| session.announce(number as u16, self.state(), launcher));
        if let Some(task) = guests.channel_task {
            schedule::wake(task);
        }
    }

    /// Its figures.
    pub(crate) fn figures(&self) -> Figures<'_> {
        Figures {
            vcpus: self.vcpus.iter().map(|vcpu| &vcpu.stats).collect(),
            memory: self.memory.counts(),
            engine: self.memory.stage2().platform().counts(),
            virtio: &self.devices.virtio,
            swap: self.swap.as_ref().map(|swap| swap.figures(&self.memory)),
        }
    }
}

/// The affinity fields of MPIDR_EL1.
const AFFINITY: u64 = 0xff_00ff_ffff;
/// Bit 31 of MPIDR_EL1.
const RES1: u64 = 1 << 31;
/// HCR_EL2.TWI and TWE.
const WAITS: u64 = 1 << 13 | 1 << 14;

impl ObservedGuest for Vm {
    fn memory(&self) -> &Memory {
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

    fn swap_out(&self) -> Option<u64> {
        self.swap()?.swap_out(&self.memory)
    }

    fn power_off(&self) -> ! {
        // An experiment has one guest, so the image ends here.
        self.end(End::PowerOff);
        power::park()
    }

    fn fail(&self, why: fmt::Arguments) -> ! {
        Vm::fail(self, why)
    }
}

/// [`registers::hcr`], with the additional traps of this image.
pub fn hcr(features: &Features) -> u64 {
    registers::hcr(features) | Observer::TRAPS
}
