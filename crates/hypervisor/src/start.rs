// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a bundle to a running guest, or to the reason why it cannot run.
//!
//! Invariant: either everything that the guest needs exists before its first instruction, or the guest is not started.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use spin::Once;
use twofold_abi::bundle::flags;
use twofold_abi::{exit, virt};
use twofold_devices::vgic;
use twofold_memory::{Backing, Error as MemoryError, FramePool, Frames, GuestMemory, HUGE_PAGE, SharedFrames, Slot};
use twofold_stage2::{Features, Geometry, Ipa, MetadataMap, Platform, Run, Vmid};
use twofold_vmm::bundle::{Bundle, BundleError};
use twofold_vmm::config::Config;
use twofold_vmm::device_tree;
use twofold_vmm::guests::{self, Admitted, Guest, Host, Missing, Refused};
use twofold_vmm::mitigation::Needs;
use twofold_vmm::name::Name;
use twofold_vmm::scheduler::{DEFAULT_WEIGHT, EntityId, Scheduler, Weight};

use crate::balance::BalanceTask;
use crate::board::Board;
use crate::emulation::{Devices, Wire};
use crate::experiment::baselines::{Baselines, NoBaselines};
use crate::experiment::platform::observed;
use crate::experiment::{ExitObserver, Observer};
use crate::gic::physical::{self, Unusable};
use crate::gic::sources::{NoInterrupt, Sources};
use crate::granule::{self, GRANULE};
use crate::guest_cpu::GuestCpu;
use crate::host_devices::uplink::CardTask;
use crate::memory::Taken;
use crate::platform::Counted;
use crate::registers::Cpu;
use crate::restart::Images;
use crate::schedule;
use crate::schedule::cpu::Entity;
use crate::survey::{self, SurveyError};
use crate::swap::{StoreMemory, Swap, SwapError};
use crate::tasks::{ChannelTask, IoTask, RestartTask, SwapTask};
use crate::vcpu::Runnable;
use crate::virtio::host::{HostCard, HostDisk};
use crate::virtio::make::{DeviceError, Machine, Supplies};
use crate::vm::{self, Parts, Vm};
use crate::{
    channel, commands, control, cpus, error, heap, host_devices, log, panic, physical_offset, power, println,
    read_sysreg, serial, shutdown,
};

/// Makes the guests and runs them. `bundle` is the boot loader's; `taken` is the rest of the memory.
pub fn run(board: &'static Board, bundle: &'static [u8], taken: Taken) -> ! {
    let made = Bundle::read(bundle).map_err(StartupError::from).and_then(|bundle| make(board, &bundle, taken));
    match made.and_then(|made| begin(board, made)) {
        // SAFETY: CPUs and guests share values on the heap and statics; `begin` gives the other CPUs nothing of this stack.
        Ok(loop_of_this_cpu) => unsafe { cpus::run_with_empty_stack(loop_of_this_cpu) },
        Err(error) => cannot_start(&error),
    }
}

/// All guests, before their first instruction.
struct Made {
    guests: Vec<Vm>,
    scheduler: Scheduler,
    /// The task that moves limits among guests that share what they may have in memory.
    balance_task: Option<EntityId>,
    /// The task of the control channel. It comes after all others. `None`: there is no channel whose port interrupts.
    channel_task: Option<EntityId>,
    /// How many CPUs run them.
    cpus: usize,
}

/// The weight of the control channel's task: that of a guest which asks for no other one. It uses what answers cost, and no
/// launcher can make them cost more than its share.
const CHANNEL_WEIGHT: Weight = DEFAULT_WEIGHT;

/// Starts the CPUs. Returns what this one does from now on.
fn begin(board: &'static Board, made: Made) -> Result<fn() -> !, StartupError> {
    let guests = vm::install(made.guests, made.channel_task);
    panic::set_last_exits(vm::write_last_exits);
    // In the order in which `Maker::guest` and `make` have added them.
    let mut entities: Vec<&'static dyn Entity> = Vec::new();
    for vm in guests {
        for index in 0..vm.vcpus.len() {
            entities.push(Box::leak(Box::new(Runnable { vm, index })));
        }
        entities.push(Box::leak(Box::new(RestartTask(vm))));
        if let Some(entity) = vm.devices().virtio.task() {
            entities.push(Box::leak(Box::new(IoTask { vm, entity })));
        }
        if let Some(swap) = vm.swap() {
            entities.push(Box::leak(Box::new(SwapTask { vm, swap })));
        }
    }
    for task in host_devices::cards().iter().filter_map(|card| CardTask::of(card)) {
        entities.push(Box::leak(Box::new(task)));
    }
    if let Some(task) = made.balance_task {
        entities.push(Box::leak(Box::new(BalanceTask::new(task, guests))));
    }
    if let Some(task) = made.channel_task {
        entities.push(Box::leak(Box::new(ChannelTask::new(task, guests))));
    }
    shutdown::before_end(commands::finish_consoles);
    schedule::cpu::install(entities, made.cpus);
    schedule::begin(made.scheduler, &board.cpus[..made.cpus]);
    for vm in guests.iter().filter(|vm| !vm.has_stopped()) {
        schedule::wake(vm.vcpus[0].entity);
    }
    if let Some(task) = made.balance_task {
        schedule::wake(task);
    }
    if let Some(task) = made.channel_task {
        // An edge of the port's interrupt before the distributor was set up is lost.
        schedule::wake(task);
    }
    host_devices::begin();
    BOARD.call_once(|| board);
    for cpu in 1..made.cpus {
        cpus::start(board, cpu, |_| run_guests()).map_err(SurveyError::from)?;
    }
    heap::mark();
    Ok(run_guests)
}

static BOARD: Once<&'static Board> = Once::new();

/// Runs guests on this CPU.
fn run_guests() -> ! {
    let (Some(board), Some(vm)) = (BOARD.get(), vm::all().first()) else { power::park() };
    let redistributor = vm::confine_this_cpu(board, vm.sources());
    schedule::cpu::run(redistributor, *vm.sources(), vm.counts_instructions())
}

/// Why the guest cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// The bundle is bad.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The guests do not fit together.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Free memory has too few large pieces.
    #[error("guest {0:?}: --memory: the free memory is too broken up for it: use a smaller --memory")]
    Broken(Name),
    /// The guest's memory cannot be made.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The CPUs cannot run the guest together.
    #[error(transparent)]
    Cpus(#[from] SurveyError),
    /// This image's experiment cannot begin.
    #[error(transparent)]
    Experiment(#[from] <Observer as ExitObserver>::Error),
    /// The bundle asks for baselines, and this image has none.
    #[error(transparent)]
    NoBaselines(#[from] NoBaselines),
    /// The guest's test memory needs more than is free in one piece.
    #[error("the guest wants {wanted} MiB of test memory in one piece, but {free} MiB are free: use a smaller one")]
    NoMemory {
        /// What the guest needs, in MiB.
        wanted: u64,
        /// What is free, in MiB.
        free: u64,
    },
    /// The guest's store cannot be made.
    #[error("guest {0:?}: {1}")]
    Swap(Name, SwapError),
    /// The device tree lacks an interrupt.
    #[error(transparent)]
    NoInterrupt(#[from] NoInterrupt),
    /// The launcher wants the consoles on a control channel, and there is none.
    #[error(
        "the guests' consoles were to be on the control channel, and this machine has none whose port interrupts: start \
         the image with `cargo xtask run`"
    )]
    NoChannel,
    /// The guest's interrupt controller cannot be made.
    #[error(transparent)]
    GuestGic(#[from] vgic::ConfigError),
    /// The guests' virtio devices cannot be made.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// The interrupt controller cannot be used.
    #[error(transparent)]
    Gic(#[from] Unusable),
}

/// Reports why the guests cannot be started, and exits.
pub fn cannot_start(why: &dyn fmt::Display) -> ! {
    error!("{why}");
    println!("twofold: {why}");
    control::end("error");
    shutdown::exit(exit::CANNOT_START)
}

fn make(board: &'static Board, bundle: &Bundle<'static>, taken: Taken) -> Result<Made, StartupError> {
    // SAFETY: only the boot CPU runs, and no guest.
    unsafe { physical_offset::survey() };
    let has = |flag| bundle.flags & flag != 0;
    let vcpus: u32 = bundle.guests.iter().map(|guest| guest.config.cpus).sum();
    let cpus = board.cpus.len().min(vcpus as usize);
    let baselines = Baselines::read(bundle.policies)?;
    let (mut features, guest_cpu, needs) = survey::common_features(board, cpus)?;
    features.forced_write_back &= !has(flags::NO_FORCED_WRITE_BACK);
    Observer::begin(board, vcpus, &features, &taken)?;
    let mut frames = Frames::new(features);
    taken.free.into_iter().for_each(|range| frames.add(range));
    let missing = (!Cpu::read().has_gic_registers()).then_some(Missing::ListRegisters);
    let host =
        Host { free: frames.huge_pages() * HUGE_PAGE, vmid_bits: features.vmid_bits, page: granule::PAGE, missing };
    let admitted = guests::admit(&bundle.guests, &host)?;
    let port = channel::interrupt(board);
    host_devices::find(board);
    let sources = Sources { port, ..Sources::of(board, Cpu::read().has_physical_offset())? };
    // SAFETY: the board is this machine's, and only the boot CPU runs, once, here.
    unsafe { physical::set_up(board, &sources)? };
    let scheduler = Scheduler::new(cpus, read_sysreg!(CNTFRQ_EL0) / 1000 * schedule::SLICE);
    let shares_uart = bundle.guests.len() > 1;
    let on_channel = has(flags::CONSOLES);
    if on_channel && port.is_none() {
        return Err(StartupError::NoChannel);
    }
    let metadata = taken.metadata;
    let supplies = Supplies::new(&bundle.guests, &mut frames, MACHINE)?;
    let mut maker =
        Maker { board, sources, guest_cpu, needs, features, metadata, scheduler, shares_uart, on_channel, supplies };
    let waits_trap = vcpus as usize > cpus;
    let mut all = Vec::with_capacity(bundle.guests.len());
    let frames = divide(frames, &bundle.guests, &admitted, has(flags::TEST_SCARCE))?;
    for ((guest, admitted), own) in bundle.guests.iter().zip(&admitted).zip(frames) {
        all.push(maker.guest(guest, admitted, (own, all.len()), baselines, waits_trap)?);
    }
    for card in host_devices::cards().iter().filter(|card| card.is_attached()) {
        let group = maker.scheduler.add_group(DEFAULT_WEIGHT);
        card.set_task(maker.scheduler.add(group));
    }
    let sharing = admitted.iter().filter(|admitted| admitted.pool > 0).count();
    let balance_task = (sharing > 1).then(|| {
        let group = maker.scheduler.add_group(DEFAULT_WEIGHT);
        maker.scheduler.add(group)
    });
    let channel_task = port.map(|_| {
        let group = maker.scheduler.add_group(CHANNEL_WEIGHT);
        maker.scheduler.add(group)
    });
    log!("{features:?}");
    if !on_channel {
        serial::start_receiving();
    }
    Ok(Made { guests: all, scheduler: maker.scheduler, balance_task, channel_task, cpus })
}

/// What all guests are made from.
struct Maker {
    board: &'static Board,
    sources: Sources,
    guest_cpu: GuestCpu,
    needs: Needs,
    features: Features,
    metadata: MetadataMap,
    scheduler: Scheduler,
    /// Whether several guests write to the machine's UART.
    shares_uart: bool,
    /// Whether the control channel has the guests' consoles.
    on_channel: bool,
    /// What the guests' virtio devices are made from.
    supplies: Supplies,
}

/// The machine's devices behind those of the guests.
const MACHINE: Machine = Machine {
    disk: |id| host_devices::disk(id).map(|disk| disk as &dyn HostDisk),
    card: |mac| host_devices::card(mac).map(|card| card as &dyn HostCard),
};

impl Maker {
    fn guest(
        &mut self,
        guest: &Guest<'static>,
        admitted: &Admitted,
        (mut frames, number): (Frames, usize),
        baselines: Baselines,
        waits_trap: bool,
    ) -> Result<Vm, StartupError> {
        let Guest { name, config, .. } = guest;
        let layout = admitted.layout;
        let group = self.scheduler.add_group(admitted.weight);
        let affinities: Vec<u64> = (0..u64::from(config.cpus)).map(device_tree::affinity).collect();
        let vcpus: Vec<_> = affinities.iter().map(|mpidr| (*mpidr, self.scheduler.add(group))).collect();
        let task = self.scheduler.add(group);
        let io_task = (config.virtio_devices() > 0).then(|| self.scheduler.add(group));
        let swap_task = config.swap.map(|_| self.scheduler.add(group));
        let wire = match (self.on_channel, self.shares_uart) {
            (true, _) => Wire::channel(),
            (false, true) => Wire::shared(*name),
            (false, false) => Wire::Whole,
        };
        let geometry = Geometry::new(GRANULE, ipa_bits(config), &self.features).map_err(MemoryError::from)?;
        // SAFETY: EL2 maps all RAM one to one, and the frames are RAM that nothing else uses.
        let platform = unsafe { Counted::new(self.metadata, &self.features) };
        let platform = observed(platform, &self.features);
        let has_random = self.guest_cpu.has_random();
        let virtio = self.supplies.devices(guest, io_task, has_random, (&platform, &self.features))?;
        let devices = Devices::new(self.board, &vcpus, &self.sources, wire, virtio)?;
        let given = given(config, &mut frames, &platform)?;
        let of_swap = |why| StartupError::Swap(*name, why);
        let store = StoreMemory::take(config, &mut frames).map_err(of_swap)?;
        let mut memory = GuestMemory::new(platform, geometry, Vmid::new(admitted.vmid), frames, config.pages)?;
        let mut add = |slot| memory.add_slot(slot).map_err(MemoryError::from);
        let ram = add(slot(virt::RAM_BASE, config.memory, Backing::Ram))?;
        let stolen = add(slot(virt::STOLEN_TIME_BASE, virt::STOLEN_TIME_SIZE, Backing::Ram))?;
        let flash = match config.has_firmware() {
            true => Some(add(slot(virt::FLASH_BASE, virt::FLASH_SIZE, Backing::Ram))?),
            false => None,
        };
        let test = test_slots(config, given).map(add).collect::<Result<Vec<_>, _>>()?;
        baselines.apply(&mut memory);
        let swap = match swap_task {
            Some(task) => Swap::attach(config, &mut memory, store, number, task).map_err(of_swap)?,
            None => None,
        };
        let blob = device_tree::build(config, &layout, &affinities);
        // The memory of a guest that comes from elsewhere comes with it.
        if config.flags & flags::INCOMING == 0 {
            layout.load(config, &blob, &memory)?;
        }
        swap.as_ref().map_or(Ok(()), |swap| swap.limit(config, &memory)).map_err(of_swap)?;
        let (size, cpus, pages) = (config.memory >> 20, config.cpus, config.pages);
        log!("guest {name:?}: {size} MiB at {:#x}, {cpus} vCPUs, {pages:?}, {geometry:?}", virt::RAM_BASE);
        if let Some(test) = config.test {
            log!("guest {name:?}: {} MiB of test memory at {:#x}, {} slots", test.size() >> 20, test.start, test.slots);
        }
        Ok(Vm::new(Parts {
            name: *name,
            memory: (memory, ram, test, stolen, flash),
            swap,
            sources: self.sources,
            devices,
            guest_cpu: self.guest_cpu,
            needs: self.needs,
            vcpus,
            images: Images { config: *config, layout, device_tree: blob },
            task,
            flags: config.flags,
            waits_trap,
        }))
    }
}

/// The frames of each guest. A single guest gets everything. Several share them, each up to what it was admitted with, so
/// that a guest that ends leaves its frames to the others; a guest whose test memory is made at the start, or whose pages
/// leave to a store, has its own. Guests that share what they may have in memory have a pool for it, and their own for tables.
fn divide(
    mut free: Frames,
    guests: &[Guest<'_>],
    admitted: &[Admitted],
    is_scarce: bool,
) -> Result<Vec<Frames>, StartupError> {
    if guests.len() == 1 {
        return Ok(Vec::from([free]));
    }
    let features = free.features();
    let has_own = |guest: &Guest<'_>| guest.config.test.is_some() || guest.config.swap.is_some();
    let pooled: u64 = admitted.iter().map(|admitted| admitted.pool).sum();
    let pool = match pooled {
        0 => None,
        _ => Some(Arc::new(FramePool::new(share(&mut free, pooled).ok_or(StartupError::Broken(guests[0].name))?))),
    };
    let with_pool = |own: Frames, admitted: &Admitted| match &pool {
        Some(pool) if admitted.pool > 0 => own.with_pool(Arc::clone(pool)),
        _ => own,
    };
    let mut own = Vec::new();
    for (guest, admitted) in guests.iter().zip(admitted) {
        let broken = || StartupError::Broken(guest.name);
        let take = |free: &mut Frames| share(free, admitted.frames).ok_or_else(broken);
        own.push(if has_own(guest) { Some(with_pool(take(&mut free)?, admitted)) } else { None });
    }
    let mut shared = SharedFrames::new(&mut free);
    let mut left = shared.count();
    let shared = Arc::new(shared);
    let mut all = Vec::with_capacity(guests.len());
    for ((guest, admitted), own) in guests.iter().zip(admitted).zip(own) {
        all.push(match own {
            Some(own) => own,
            None => {
                let chunks = admitted.frames.div_ceil(HUGE_PAGE / 4096);
                left = left.checked_sub(chunks).ok_or(StartupError::Broken(guest.name))?;
                Frames::sharing(
                    features,
                    Arc::clone(&shared),
                    if is_scarce { admitted.frames / 2 } else { admitted.frames },
                )
            }
        });
    }
    Ok(all)
}

/// Takes this number of frames for one guest, in few pieces. `None` if free memory is too broken up.
fn share(frames: &mut Frames, count: u64) -> Option<Frames> {
    const HUGE: u64 = HUGE_PAGE / 4096;
    let mut own = Frames::new(frames.features());
    let mut left = count.next_multiple_of(HUGE);
    let mut piece = 1 << left.checked_ilog2()?;
    while left != 0 {
        piece = piece.min(1 << left.ilog2());
        match frames.take(piece) {
            Some(run) => {
                own.add_run(run);
                left -= piece;
            }
            None if piece == HUGE => return None,
            None => piece /= 2,
        }
    }
    Some(own)
}

/// The smallest IPA space that holds the guest's RAM, unless the bundle sets it. Up to 34 bits a walk has two levels.
fn ipa_bits(config: &Config<'_>) -> u32 {
    config.ipa_bits.unwrap_or_else(|| (config.end() - 1).ilog2().saturating_add(1).max(32))
}

/// Zeroed memory for the slots of the guest's test memory, if they are allocated at the start.
fn given<P: Platform>(config: &Config<'_>, frames: &mut Frames, platform: &P) -> Result<Vec<Run>, StartupError> {
    let Some(test) = config.test.filter(|test| test.leaf.is_some()) else { return Ok(Vec::new()) };
    let mut take = || {
        let frames_free = frames.free();
        let run = frames
            .take(test.slot_size / 4096)
            .ok_or(StartupError::NoMemory { wanted: test.slot_size >> 20, free: frames_free >> 8 })?;
        run.zero(platform, &frames.features());
        Ok(run)
    };
    (0..test.slots).map(|_| take()).collect()
}

/// The slots of the guest's test memory.
fn test_slots(config: &Config<'_>, given: Vec<Run>) -> impl Iterator<Item = Slot> {
    let slots = config.test.into_iter().flat_map(|test| (0..u64::from(test.slots)).map(move |number| (test, number)));
    let mut given = given.into_iter();
    slots.map(move |(test, number)| {
        let backing = match (test.leaf, given.next()) {
            (Some(largest), Some(frames)) => Backing::Preallocated { frames, largest },
            _ => Backing::Ram,
        };
        slot(test.start + number * test.slot_size, test.slot_size, backing)
    })
}

fn slot(start: u64, size: u64, backing: Backing) -> Slot {
    Slot { range: Ipa::new(start)..Ipa::new(start + size), backing, writable: true }
}
