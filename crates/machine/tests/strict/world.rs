// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine with one guest's tables on it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::strict::{Bbm, Hosted, Knowledge, Machine, Options};
use twofold_stage2::{Features, Geometry, Granule, Kib4, Level, Pa, Run, Stage2, TablePage, TableSource, Vmid};

pub const PAGE: u64 = 4 << 10;
pub const MIB_2: u64 = 2 << 20;
pub const GIB: u64 = 1 << 30;

/// All features that make the engine's sequences shorter.
pub const MODERN: Features = Features::NONE
    .with_granule_16k(true)
    .with_lpa2_4k(true)
    .with_lpa2_16k(true)
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_execute_per_el(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_common_not_private(true)
    .with_instruction_cache_pipt(true)
    .with_zero_block(64);

/// Armv8.0, with hardware's access flag and dirty state. Long lines, so that cleaning a large block is not 16 Mi calls.
pub const PLAIN: Features = Features::NONE
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_data_line(2048)
    .with_instruction_line(2048);

/// Table pages that the CPUs share.
pub struct Pages<G: Granule = Kib4> {
    /// Each page with the knowledge of the CPU that returned it, which the lock transfers.
    free: Mutex<Vec<(TablePage<G>, Option<Knowledge>)>>,
    count: u64,
}

impl<G: Granule> Pages<G> {
    pub fn new(machine: &Machine, features: Features, count: u64) -> Self {
        let mut rest = machine.arena().donate_part(ROOTS * 16 * PAGE, count * G::SIZE).unwrap().into_run();
        let mut free = Vec::new();
        while !rest.is_empty() {
            let (page, others) = rest.split_at(G::SIZE).unwrap();
            free.push((page.into_table(&features).unwrap(), None));
            rest = others;
        }
        free.reverse();
        Self { free: Mutex::new(free), count }
    }

    /// The number of pages that are taken.
    pub fn out(&self) -> u64 {
        self.count - self.free.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

impl<G: Granule> TableSource<G> for &Pages<G> {
    fn take(&mut self) -> Option<TablePage<G>> {
        let (page, known) = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        known.iter().for_each(Knowledge::learn);
        Some(page)
    }

    fn give(&mut self, page: TablePage<G>) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push((page, Knowledge::of_this_cpu()));
    }
}

/// The number of roots that fit at the start of memory.
pub const ROOTS: u64 = 8;

/// A machine and its table pages; the guests' frames follow these.
pub struct World<G: Granule = Kib4> {
    pub machine: Machine,
    pub pages: Pages<G>,
    pub features: Features,
}

impl World {
    /// A machine with `memory` bytes, of which 16 MiB are for tables.
    pub fn new(features: Features, cpus: usize, seed: u64, memory: u64) -> Self {
        Self::with(features, Bbm::of(&features), cpus, seed, memory)
    }

    /// The same, on CPUs with this level of FEAT_BBM.
    pub fn with(features: Features, bbm: Bbm, cpus: usize, seed: u64, memory: u64) -> Self {
        Self::of(Self::options(features, bbm, cpus, seed, memory))
    }

    /// The same, recorded in a file.
    pub fn recorded(features: Features, cpus: usize, seed: u64, memory: u64, file: PathBuf) -> Self {
        Self::of(Options { trace: Some(file), ..Self::options(features, Bbm::of(&features), cpus, seed, memory) })
    }

    /// A machine with this number of table pages, and this mean number of events between two switches.
    pub fn narrow(features: Features, cpus: usize, seed: u64, (pages, events): (u64, u32)) -> Self {
        let options = Self::options(features, Bbm::of(&features), cpus, seed, 64 << 20);
        let world = Self::of(Options { events_between_switches: events, ..options });
        let pages = Pages::new(&world.machine, features, pages);
        Self { pages, ..world }
    }

    fn options(features: Features, bbm: Bbm, cpus: usize, seed: u64, memory: u64) -> Options {
        let mut memory = ArenaOptions::new(memory, Backing::Anonymous);
        memory.tables = Some(TABLES);
        Options { cpus, seed, events_between_switches: 24, features, bbm, memory, trace: None }
    }
}

impl<G: Granule> World<G> {
    fn of(options: Options) -> Self {
        let features = options.features;
        let machine = Machine::new(options).unwrap_or_else(|error| panic!("{error}"));
        let pages = Pages::new(&machine, features, ((TABLES / 2) / G::SIZE).min(2048));
        Self { machine, pages, features }
    }

    /// A machine for tables of this granule, with `memory` bytes from `base` on.
    pub fn of_granule(features: Features, cpus: usize, seed: u64, base: Pa, memory: u64) -> Self {
        let mut options = World::options(features, Bbm::of(&features), cpus, seed, memory);
        options.memory.base = base;
        Self::of(options)
    }

    /// The empty tables of a guest. The caller has to be a CPU of the machine.
    pub fn tables(&self, number: u64, vmid: u16, ipa_bits: u32) -> Stage2<Hosted, G> {
        let geometry = Geometry::new(G::default(), ipa_bits, &self.features).unwrap();
        let root = self.machine.arena().donate_part(number * 16 * PAGE, geometry.root_size()).unwrap();
        let root = root.into_run().into_root(&geometry).unwrap();
        Stage2::new(self.machine.platform(), self.features, geometry, Vmid::new(vmid), root).unwrap()
    }

    /// Frames of the guests, to which the hypervisor may write.
    pub fn run(&self, offset: u64, size: u64) -> Run {
        self.machine.arena().donate_part(Self::frames() + offset, size).unwrap().into_run()
    }

    /// The frame at `offset` bytes into the guests' frames.
    pub fn frame(&self, offset: u64) -> Pa {
        self.machine.arena().base() + Self::frames() + offset
    }

    /// The number of bytes before the guests' frames, which begin as a huge page does.
    fn frames() -> u64 {
        TABLES.max(G::default().span(Level::L2))
    }
}

const TABLES: u64 = 16 << 20;
