// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtual machine: the state that its vCPUs share, and its end.
//!
//! # Locking
//!
//! There is no lock around the guest's memory, which locks internally. Each CPU handles its vCPU's faults in parallel with
//! the others, and holds no lock but that vCPU's when it enters the guest. The devices have locks of their own
//! ([`emulation`](crate::emulation)), and so have the power states, which are locked for one call of the guest.

use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use spin::{Mutex, MutexGuard, Once};
use twofold_abi::channel::GuestState;
use twofold_abi::{bundle, exit, virt};
use twofold_devices::Width;
use twofold_devices::vgic::VcpuId;
use twofold_memory::{Error, HUGE_PAGE, SlotId};
use twofold_stage2::{Features, Ipa, IpaRange};
use twofold_vmm::agreement;
use twofold_vmm::console::Notice;
use twofold_vmm::life::State;
use twofold_vmm::mitigation::Needs;
use twofold_vmm::name::Name;
use twofold_vmm::power::{Power, Start};
use twofold_vmm::refusals::Refusals;
use twofold_vmm::restart::Why;
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
use crate::release::{self, Release};
use crate::restart::{self, Images, Piece, Restart};
use crate::schedule::cpu::Progress;
use crate::schedule::deadlines::Due;
use crate::stats::{self, Figures, Stats};
use crate::swap::{self, Swap};
use crate::switch::{LastVcpu, Seat};
use crate::vcpu::state::Vcpu;
use crate::virtio::{Around, Place};
use crate::{channel, control, cpus, platform, power, schedule, shutdown};
use sweep::Sweeps;

pub(crate) mod absent;
pub(crate) mod commanded;
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

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
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

    /// The guest asks for a reset. It begins anew, if the bundle says so; otherwise it ends.
    pub(crate) fn reset(&self, why: Why) {
        if self.flags & bundle::flags::RESTART == 0 {
            return self.end(End::Reset);
        }
        if self.life.change(|life, _| life.changes_itself(None)) {
            self.begin_anew(why);
        }
    }

    /// The guest's life is *anew*: its vCPUs stop, and its task restarts it.
    fn begin_anew(&self, why: Why) {
        control::log(format_args!("guest{}: reset", self.called()));
        self.restart.begin(why);
        self.devices.gic.kick_all();
        self.announce();
        schedule::wake(self.task);
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

    /// Gives up the pages of `range`, whose content is not needed: what is in the store need not come. Returns the part that
    /// is done, which is shorter than `range` if an interrupt came.
    fn forget_pages(&self, range: IpaRange) -> Result<IpaRange, Error> {
        if self.swap.is_none() {
            return Ok(range);
        }
        let given_up = self.memory.give_up(range.clone())?;
        Ok(range.start..given_up.end)
    }

    /// The piece of a restart that ended with `done`, the number of bytes it handled. A page that has to come first is asked
    /// for, and wakes the restart's task.
    fn or_awaits(&self, done: Result<u64, Error>) -> Result<Piece, Error> {
        match done {
            Ok(bytes) => Ok(Piece::Part(bytes)),
            Err(error @ Error::Absent { page, .. }) => {
                self.memory.bring(page, swap::RESTART).map_err(|_| error)?;
                self.pages_asked_for();
                Ok(Piece::Awaited)
            }
            Err(error) => Err(error),
        }
    }

    /// A piece of the work of a restart, or of the release of what an ended guest had.
    pub(crate) fn restart(&self) -> Progress {
        match self.release.work(self) {
            Ok(Some(progress)) => return progress,
            Ok(None) => {}
            Err(error) => control::error(format_args!("the memory of the ended guest{} stays: {error}", self.called())),
        }
        self.restart.work(self).unwrap_or_else(|error| {
            if self.life.change(|life, _| life.cannot_begin()) {
                control::error(format_args!("the guest{} cannot begin anew: {error}", self.called()));
                self.last_words(("error", exit::CANNOT_START));
            }
            // The release.
            Progress::More
        })
    }

    /// The guest has ended itself. Its vCPUs stop. If it was the last guest, this reports, and exits.
    pub(crate) fn end(&self, end: End) {
        if !self.life.change(|life, _| life.changes_itself(Some(State::Off))) {
            return;
        }
        self.report();
        self.last_words(match end {
            End::PowerOff => ("power-off", exit::POWER_OFF),
            End::Reset => ("reset", exit::RESET),
        });
    }

    /// The guest cannot continue, for a reason that is not a defect of EL2. Its vCPUs stop; if it was the last guest, the
    /// image ends.
    pub(crate) fn stop_for(&self, why: fmt::Arguments) {
        if !self.life.change(|life, _| life.changes_itself(Some(State::Failed))) {
            return;
        }
        control::error(format_args!("the guest{} cannot go on: {why}", self.called()));
        self.last_words(("error", exit::CANNOT_START));
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

    /// Neither this guest nor another one can continue.
    pub(crate) fn fail(&self, why: fmt::Arguments) -> ! {
        fail(why)
    }

    fn report(&self) {
        if let Some(vendor) = &self.vendor {
            vendor.report(self);
        }
        self.refusals.report(control::log);
    }

    /// This guest has ended: the others go on, or the image ends.
    fn last_words(&self, (how, status): (&str, i32)) {
        self.devices.gic.kick_all();
        self.announce();
        let left = GUESTS.get().map_or(1, |guests| guests.left.fetch_sub(1, Ordering::AcqRel));
        if left > 1 {
            control::log(format_args!("guest{}: {how}", self.called()));
            self.release.begin();
            return schedule::wake(self.task);
        }
        shutdown::guests_have_ended();
        stats::report(&all().iter().map(Self::figures).collect::<Vec<_>>());
        control::end(how);
        shutdown::exit(status)
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

    /// Its name, if there are several.
    fn called(&self) -> Called {
        Called((all().len() > 1).then_some(self.name))
    }
}

/// A guest's name in a message, with a space before it.
struct Called(Option<Name>);

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " {name:?}"),
            None => Ok(()),
        }
    }
}

/// No guest can continue. One CPU says why, and ends the image.
fn fail(why: fmt::Arguments) -> ! {
    static END: AtomicBool = AtomicBool::new(false);
    if END.swap(true, Ordering::AcqRel) {
        power::park();
    }
    control::error(format_args!("the guest cannot go on: {why}"));
    control::end("error");
    shutdown::exit(exit::CANNOT_START)
}

/// The affinity fields of MPIDR_EL1.
const AFFINITY: u64 = 0xff_00ff_ffff;
/// Bit 31 of MPIDR_EL1.
const RES1: u64 = 1 << 31;
/// HCR_EL2.TWI and TWE.
const WAITS: u64 = 1 << 13 | 1 << 14;

impl restart::Guest for Vm {
    fn is_anew(&self) -> bool {
        self.life.change(|life, _| life.is_anew())
    }

    fn has_turns(&self) -> bool {
        // A vCPU's lock is free only between two turns, and a turn that begins after this looked sees that the guest has
        // stopped. So it is with the I/O task's, and with a piece of a sweep.
        let vcpus = self.vcpus.iter().any(|vcpu| vcpu.state.try_lock().is_none());
        vcpus || self.devices.virtio.has_turn() || self.sweeps.has_turn()
    }

    fn clear_ram(&self, offset: u64, most: u64) -> Result<Piece, Error> {
        let size = self.restart.ram_size();
        if offset >= size {
            let start = Ipa::new(virt::STOLEN_TIME_BASE);
            self.memory.clear(self.stolen, start..start + virt::STOLEN_TIME_SIZE)?;
            return Ok(Piece::Last);
        }
        let start = Ipa::new(virt::RAM_BASE) + offset;
        let forgotten = self.forget_pages(start..start + most.min(size - offset));
        self.or_awaits(forgotten.and_then(|range| {
            let bytes = range.end - range.start;
            self.memory.clear(self.ram, range).map(|()| bytes)
        }))
    }

    fn write(&self, at: Ipa, bytes: &[u8]) -> Result<Piece, Error> {
        self.or_awaits(self.memory.write(at, bytes).map(|()| bytes.len() as u64))
    }

    fn reset_devices(&self) {
        self.devices.reset(&self.memory);
    }

    fn invalidate(&self) {
        self.memory.stage2().invalidate_all();
    }

    fn begin_again(&self) {
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            vcpu.state.lock().switch_off(self, index);
        }
        self.power.lock().restart();
        let runs = self.life.change(|life, now| life.has_begun(now));
        self.announce();
        if runs == Some(true) {
            schedule::wake(self.vcpus[0].entity);
            self.devices.virtio.go_on();
        }
    }
}

impl release::Ended for Vm {
    fn has_turns(&self) -> bool {
        restart::Guest::has_turns(self)
    }

    fn release_ram(&self, offset: u64) -> Result<bool, Error> {
        let start = Ipa::new(virt::RAM_BASE) + offset;
        if let Some(beyond) = offset.checked_sub(self.restart.ram_size().next_multiple_of(HUGE_PAGE)) {
            if let Some(flash) = self.flash.filter(|_| beyond < virt::FLASH_SIZE) {
                let start = Ipa::new(virt::FLASH_BASE) + beyond;
                self.memory.release(flash, start..start + HUGE_PAGE)?;
                return Ok(true);
            }
            let start = Ipa::new(virt::STOLEN_TIME_BASE);
            self.memory.release(self.stolen, start..start + virt::STOLEN_TIME_SIZE)?;
            return Ok(false);
        }
        self.memory.release(self.ram, start..start + HUGE_PAGE)?;
        Ok(true)
    }

    fn release_tables(&self) {
        let left = self.memory.release_tables();
        control::log(format_args!("guest{}: its memory is free, but {} MiB", self.called(), (left * HUGE_PAGE) >> 20));
    }
}

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
