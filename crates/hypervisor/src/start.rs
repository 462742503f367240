// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a bundle to a running guest, or to the reason why it cannot run.
//!
//! Invariant: either everything that the guest needs exists before its first instruction, or the guest is not started.

use alloc::string::String;
use alloc::vec::Vec;

use spin::Once;
use twofold_abi::bundle::flags;
use twofold_abi::{exit, virt};
use twofold_devices::vgic;
use twofold_memory::{Backing, Error as MemoryError, Frames, GuestMemory, HUGE_PAGE, Slot};
use twofold_stage2::{Geometry, Granule, Ipa, Platform, Run, Vmid};
use twofold_vmm::config::{Config, ConfigError};
use twofold_vmm::device_tree;
use twofold_vmm::load::{Layout, LoadError};
use twofold_vmm::power::Start;
use twofold_vmm::scheduler::{DEFAULT_WEIGHT, Scheduler};

use crate::board::Board;
use crate::emulation::Devices;
use crate::experiment::baselines::{Baselines, NoBaselines};
use crate::experiment::platform::observed;
use crate::experiment::{ExitObserver, Observer};
use crate::gic::physical::{self, Unusable};
use crate::gic::sources::{NoInterrupt, Sources};
use crate::memory::Taken;
use crate::platform::Counted;
use crate::registers::Cpu;
use crate::schedule::{self, Entity};
use crate::survey::{self, SurveyError};
use crate::vm::{self, Parts, Vm};
use crate::{control, cpus, error, heap, log, panic, power, println, read_sysreg, serial, shutdown};

/// Makes the guest and runs it. `bundle` is the boot loader's; `taken` is the rest of the memory.
pub fn run(board: &'static Board, bundle: &[u8], taken: Taken) -> ! {
    let config = match Config::from_bundle(bundle) {
        Ok(config) => config,
        Err(error) => cannot_start(&error.into()),
    };
    match make(board, &config, taken).and_then(|made| begin(board, made)) {
        Ok(loop_of_this_cpu) => loop_of_this_cpu(0),
        Err(error) => cannot_start(&error),
    }
}

/// All guests, before their first instruction.
struct Made {
    guests: Vec<Vm>,
    scheduler: Scheduler,
    /// How many CPUs run them.
    cpus: usize,
}

/// Starts the CPUs. Returns what this one does from now on.
fn begin(board: &'static Board, made: Made) -> Result<fn(usize) -> !, StartupError> {
    let guests = vm::install(made.guests);
    panic::set_last_exits(vm::write_last_exits);
    let entities = guests.iter().flat_map(|vm| (0..vm.vcpus.len()).map(move |index| Entity::Vcpu(vm, index)));
    schedule::begin(made.scheduler, entities.collect(), &board.cpus[..made.cpus]);
    for vm in guests {
        schedule::wake(vm.vcpus[0].entity);
    }
    BOARD.call_once(|| board);
    for cpu in 1..made.cpus {
        cpus::start(board, cpu, |_| run_guests(0)).map_err(SurveyError::from)?;
    }
    heap::mark();
    Ok(run_guests)
}

static BOARD: Once<&'static Board> = Once::new();

/// Runs guests on this CPU.
fn run_guests(_: usize) -> ! {
    let (Some(board), Some(vm)) = (BOARD.get(), vm::first()) else { power::park() };
    let redistributor = vm::confine_this_cpu(board, vm.sources());
    schedule::cpu::run(redistributor, *vm.sources(), vm.counts_instructions())
}

/// Why the guest cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// The bundle is bad.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel is not an Image, or does not fit.
    #[error(transparent)]
    Load(#[from] LoadError),
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
    /// The guest needs more memory than is free.
    #[error("the guest wants {wanted} MiB, but this machine has {free} MiB free: use a smaller --memory")]
    NoMemory {
        /// What the guest needs, in MiB.
        wanted: u64,
        /// What is free, in MiB.
        free: u64,
    },
    /// The device tree lacks an interrupt.
    #[error(transparent)]
    NoInterrupt(#[from] NoInterrupt),
    /// The guest's interrupt controller cannot be made.
    #[error(transparent)]
    GuestGic(#[from] vgic::ConfigError),
    /// The interrupt controller cannot be used.
    #[error(transparent)]
    Gic(#[from] Unusable),
}

/// The only guest.
const VMID: Vmid = Vmid::new(1);

/// Reports why the guest cannot be started, and exits.
pub fn cannot_start(why: &StartupError) -> ! {
    error!("{why}");
    println!("twofold: {why}");
    control::end("error");
    shutdown::exit(exit::CANNOT_START)
}

fn make(board: &'static Board, config: &Config<'_>, taken: Taken) -> Result<Made, StartupError> {
    let cpus = board.cpus.len().min(config.cpus as usize);
    let baselines = Baselines::read(config.policies)?;
    let (mut features, guest_cpu) = survey::common_features(board, cpus)?;
    features.forced_write_back &= !config.has(flags::NO_FORCED_WRITE_BACK);
    Observer::begin(board, config.cpus, &features, &taken)?;
    let mut frames = Frames::new(features);
    taken.free.into_iter().for_each(|range| frames.add(range));
    // A guest needs tables beside its RAM, and these too may break up whole huge pages (2 MiB).
    let wanted = config.memory.saturating_add(config.test.map_or(0, |test| test.size()));
    let tables = (wanted / 512).saturating_add(4 << 20);
    let free = (frames.huge_pages() * HUGE_PAGE).saturating_sub(tables);
    if free < wanted.div_ceil(HUGE_PAGE).saturating_mul(HUGE_PAGE) {
        return Err(StartupError::NoMemory { wanted: wanted >> 20, free: free >> 20 });
    }
    let sources = Sources::of(board, Cpu::read().has_physical_offset())?;
    let mut scheduler = Scheduler::new(cpus, read_sysreg!(CNTFRQ_EL0) / 1000 * schedule::SLICE);
    let group = scheduler.add_group(DEFAULT_WEIGHT);
    let affinities: Vec<u64> = (0..u64::from(config.cpus)).map(affinity).collect();
    let vcpus: Vec<_> = affinities.iter().map(|mpidr| (*mpidr, scheduler.add(group))).collect();
    let devices = Devices::new(board, &vcpus, &sources)?;
    // SAFETY: the board is this machine's, and only the boot CPU runs, once, here.
    unsafe { physical::set_up(board, &sources)? };
    let layout = Layout::new(config)?;
    let geometry = Geometry::new(Granule::KIB_4, ipa_bits(config), &features).map_err(MemoryError::from)?;
    // SAFETY: EL2 maps all RAM one to one, and `taken` is RAM that nothing else uses.
    let platform = unsafe { Counted::new(taken.metadata, &features) };
    let platform = observed(platform, &features);
    let given = given(config, &mut frames, &platform)?;
    let mut memory = GuestMemory::new(platform, geometry, VMID, frames, config.pages)?;
    let mut add = |slot| memory.add_slot(slot).map_err(MemoryError::from);
    let ram = add(slot(virt::RAM_BASE, config.memory, Backing::Ram))?;
    let test = test_slots(config, given).map(add).collect::<Result<Vec<_>, _>>()?;
    baselines.apply(&mut memory);
    let blob = device_tree::build(config, &layout, &affinities);
    layout.load(config, &blob, &memory)?;
    log!("guest: {} MiB at {:#x}, {} vCPUs, {:?}", config.memory >> 20, virt::RAM_BASE, config.cpus, config.pages);
    if let Some(test) = config.test {
        log!("guest: {} MiB of test memory at {:#x}, {} slots", test.size() >> 20, test.start, test.slots);
    }
    log!("{geometry:?} {features:?}");
    serial::start_receiving();
    let boot = Start { entry: layout.kernel.raw(), argument: layout.device_tree.raw() };
    let waits_trap = vcpus.len() > cpus;
    let vm = Vm::new(Parts {
        name: String::new(),
        memory: (memory, ram, test),
        sources,
        devices,
        guest_cpu,
        vcpus,
        boot,
        flags: config.flags,
        waits_trap,
    });
    Ok(Made { guests: Vec::from([vm]), scheduler, cpus })
}

/// The affinity of a vCPU, as on QEMU's `virt`: 16 in a cluster, which is as many as an SGI reaches at once.
fn affinity(vcpu: u64) -> u64 {
    (vcpu / 16) << 8 | vcpu % 16
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
