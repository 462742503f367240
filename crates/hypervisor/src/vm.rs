// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one virtual machine: made from a bundle, run, and its end.
//!
//! Locking: there is one lock, around the guest's memory. Each CPU takes it for one fault at a time, holds no
//! other meanwhile, and never enters the guest with it.

use alloc::vec::Vec;
use core::fmt;

use spin::{Mutex, MutexGuard, Once};
use twofold_abi::{bundle, exit, virt};
use twofold_memory::{Backing, Error as MemoryError, Frames, GuestMemory, Slot};
use twofold_stage2::{Donated, Features, Geometry, Granule, Ipa, Pa, Vmid};

use crate::board::Board;
use crate::config::{Config, ConfigError};
use crate::cpus::{self, StartError};
use crate::load::{Layout, LoadError};
use crate::platform::{self, Counted};
use crate::psci::Power;
use crate::stats::{self, Stats};
use crate::{control, device_tree, error, log, panic, power, println, vcpu, world};

/// The virtual machine.
pub struct Vm {
    board: &'static Board,
    memory: Mutex<GuestMemory<Counted>>,
    hcr: u64,
    flags: u32,
    /// The vCPUs, in the order of the machine's CPUs.
    pub(crate) vcpus: Vec<VcpuSlot>,
}

/// What others see of a vCPU.
pub(crate) struct VcpuSlot {
    pub(crate) mpidr: u64,
    pub(crate) power: Power,
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

/// Why no guest can be started.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// The bundle is bad.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel is bad, or does not fit.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its memory cannot be made.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// There is less memory than it wants.
    #[error("the guest wants {wanted} MiB, but this machine has {free} MiB free: use a smaller --memory")]
    NoMemory {
        /// What it wants, in MiB.
        wanted: u64,
        /// What is free, in MiB.
        free: u64,
    },
    /// There are fewer CPUs than it wants.
    #[error("the guest wants {wanted} vCPUs, but this machine has {cpus} CPUs: each vCPU needs one")]
    NoCpus {
        /// What it wants.
        wanted: u32,
        /// How many there are.
        cpus: usize,
    },
}

static VM: Once<Vm> = Once::new();
/// The only guest.
const VMID: Vmid = Vmid::new(1);

/// Makes the guest and runs it. `bundle` is what the boot loader left in memory; `free` is RAM that is nobody's.
pub fn run(board: &'static Board, bundle: &[u8], free: Vec<Donated>) -> ! {
    let config = match Config::from_bundle(bundle) {
        Ok(config) => config,
        Err(error) => cannot_start(&error.into()),
    };
    match make(board, &config, free) {
        Ok((vm, layout)) => {
            let vm = VM.call_once(|| vm);
            panic::set_last_exits(|out| {
                for (index, vcpu) in VM.get().into_iter().flat_map(|vm| &vm.vcpus).enumerate() {
                    vcpu.stats.write_last(index, out);
                }
            });
            vcpu::run(vm, 0, layout.kernel.raw(), layout.device_tree.raw())
        }
        Err(error) => cannot_start(&error),
    }
}

/// Says why there is no guest, and ends.
pub fn cannot_start(why: &StartupError) -> ! {
    error!("{why}");
    println!("twofold: {why}");
    control::end("error");
    power::exit(exit::CANNOT_START)
}

fn make(board: &'static Board, config: &Config<'_>, free: Vec<Donated>) -> Result<(Vm, Layout), StartupError> {
    if config.cpus as usize > board.cpus.len() {
        return Err(StartupError::NoCpus { wanted: config.cpus, cpus: board.cpus.len() });
    }
    let layout = Layout::new(config)?;
    let features = platform::features();
    let mut frames = Frames::new(features);
    free.into_iter().for_each(|range| frames.add(range));
    // Beside the RAM itself: its tables, and what alignment to sections may cost.
    let spare = config.memory / 512 + (8 << 20);
    if frames.free() * 4096 < config.memory + spare {
        let free = (frames.free() * 4096).saturating_sub(spare) >> 20;
        return Err(StartupError::NoMemory { wanted: config.memory >> 20, free });
    }
    let geometry = Geometry::new(Granule::KIB_4, ipa_bits(config), &features).map_err(MemoryError::from)?;
    // SAFETY: EL2 maps all RAM one to one, and `free` is RAM that nothing else uses.
    let platform = unsafe { Counted::new() };
    let mut memory = GuestMemory::new(platform, geometry, VMID, frames, config.pages)?;
    for slot in slots(config, board) {
        memory.add_slot(slot)?;
    }
    let blob = device_tree::build(config, &layout, board);
    layout.load(config, &blob, &mut memory)?;
    log!("guest: {} MiB at {:#x}, {} vCPUs, {:?}", config.memory >> 20, virt::RAM_BASE, config.cpus, config.pages);
    log!("{geometry:?} {features:?}");
    // A VMID of a firmware's or a boot loader's guest may be in the TLB.
    memory.stage2().invalidate_all();
    let vcpus = board.cpus.iter().take(config.cpus as usize).enumerate().map(|(index, mpidr)| VcpuSlot {
        mpidr: *mpidr,
        power: Power::new(index == 0),
        stats: Stats::default(),
        start: Mutex::new((0, 0)),
    });
    let vcpus = vcpus.collect();
    let vm = Vm { board, memory: Mutex::new(memory), hcr: hcr(&features), flags: config.flags, vcpus };
    Ok((vm, layout))
}

/// The smallest IPA space that holds the guest's RAM: up to 34 bits a walk has two levels.
fn ipa_bits(config: &Config<'_>) -> u32 {
    (virt::RAM_BASE.saturating_add(config.memory) - 1).ilog2().saturating_add(1).max(32)
}

fn slots(config: &Config<'_>, board: &Board) -> impl Iterator<Item = Slot> {
    let slot = |start: u64, size: u64, backing| Slot {
        range: Ipa::new(start)..Ipa::new(start + size),
        backing,
        writable: true,
    };
    let redistributors = board.cpus.len() as u64 * virt::GICR_SIZE;
    let device = |physical: &core::ops::Range<u64>| Backing::Device(Pa::new(physical.start));
    [
        slot(virt::GICD_BASE, virt::GICD_SIZE, device(&board.gicd)),
        slot(virt::GICR_BASE, redistributors, device(&board.gicr[0])),
        slot(virt::UART_BASE, virt::UART_SIZE, device(&board.uart)),
        slot(virt::RAM_BASE, config.memory, Backing::Ram),
    ]
    .into_iter()
}

/// HCR_EL2 for the guest: AArch64, its memory behind stage 2, SMC trapped, set/way cache operations made to clean,
/// and all that it may use by itself left to it (pointer authentication, SCXTNUM, allocation tags).
fn hcr(features: &Features) -> u64 {
    const VM: u64 = 1 << 0;
    const SWIO: u64 = 1 << 1;
    const PTW: u64 = 1 << 2;
    const TSC: u64 = 1 << 19;
    const RW: u64 = 1 << 31;
    const APK: u64 = 1 << 40;
    const API: u64 = 1 << 41;
    const FWB: u64 = 1 << 46;
    const EN_SCXT: u64 = 1 << 53;
    const ATA: u64 = 1 << 56;
    let fwb = if features.forced_write_back { FWB } else { 0 };
    VM | SWIO | PTW | TSC | RW | APK | API | EN_SCXT | ATA | fwb
}

impl Vm {
    /// The guest's memory, for one fault.
    pub(crate) fn memory(&self) -> MutexGuard<'_, GuestMemory<Counted>> {
        self.memory.lock()
    }

    /// Sets this CPU up so that a guest on it sees nothing but this virtual machine.
    pub(crate) fn confine_this_cpu(&self) {
        // SAFETY: a CPU comes here before its first vCPU is entered; the value keeps EL2 as it is.
        unsafe { world::init_cpu(self.hcr) };
        vcpu::load_tables(self.memory().stage2());
    }

    pub(crate) fn counts_instructions(&self) -> bool {
        self.flags & bundle::flags::COUNT != 0
    }

    pub(crate) fn panics_on_call(&self) -> bool {
        self.flags & bundle::flags::TEST_PANIC != 0
    }

    /// Starts vCPU `index`, whose power state the caller has won, on its CPU.
    pub(crate) fn start_vcpu(&'static self, index: usize, entry: u64, argument: u64) -> Result<(), StartError> {
        *self.vcpus[index].start.lock() = (entry, argument);
        cpus::start(self.board, index, |index| {
            let vm = VM.get().expect("only a running virtual machine starts vCPUs");
            let (entry, argument) = *vm.vcpus[index].start.lock();
            vcpu::run(vm, index, entry, argument)
        })
    }

    /// The guest is over: reports, and ends.
    pub(crate) fn end(&self, end: End) -> ! {
        let memory = self.memory();
        let engine = memory.stage2().platform().counts();
        stats::report(self.vcpus.iter().map(|vcpu| &vcpu.stats), &memory.counts(), engine);
        let (how, status) = match end {
            End::PowerOff => ("power-off", exit::POWER_OFF),
            End::Reset => ("reset", exit::RESET),
        };
        control::end(how);
        power::exit(status)
    }

    /// The guest cannot go on.
    pub(crate) fn fail(&self, why: fmt::Arguments) -> ! {
        panic!("the guest cannot go on: {why}")
    }
}
