// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with tiny tables: its operations as the tests need them, and the checks after all of them have ended.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;

use super::machine::{Machine, Pages, Watch};
use crate::counts::Counts;
use crate::platform::Platform;
use crate::withdraw::Sample;
use crate::{
    Access, Attributes, Broken, Descriptor, Features, Geometry, Ipa, IpaRange, Kib4, Leaf, Level, Mapped, Memory, Pa,
    Stage2, TableMetadata, TableSource, Unwatched, Vmid,
};

pub(super) const PAGE: u64 = Kib4.span(Level::L3);
pub(super) const BLOCK: u64 = Kib4.span(Level::L2);
pub(super) const LARGE: u64 = Kib4.span(Level::L1);

pub(super) const READ: Attributes = Attributes::ram(Access::READ);
pub(super) const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
/// Hardware-tracked (DBM), and clean.
pub(super) const TRACKED: Attributes = Attributes { dirty_by_hardware: true, ..READ };

/// Features that need no cache maintenance.
pub(super) const FWB: Features =
    Features { forced_write_back: true, instruction_cache_coherent: true, ..Features::NONE };

pub(super) struct Guest {
    pub(super) stage2: Stage2<Machine>,
    pages: usize,
    /// For each page: how often it was mapped as new, minus how often its removal was reported. A lock of `std` and not
    /// of the model checker, so it orders nothing for the engine.
    balance: Mutex<BTreeMap<u64, i32>>,
}

/// The one frame that is ever mapped at `ipa`.
pub(super) fn home(ipa: Ipa) -> Pa {
    Pa::new(0x8000_0000 + ipa.raw())
}

impl Guest {
    /// A guest with `levels` levels of tables of two entries each, and `pages` table pages.
    pub(super) fn new(levels: u32, pages: usize) -> Self {
        Self::on(Machine::new(1 + pages, Watch::Nothing), FWB, levels)
    }

    pub(super) fn on(machine: Machine, features: Features, levels: u32) -> Self {
        let geometry = Geometry::new(Kib4, Kib4.shift() + levels, &features).expect("a shape");
        let donated = machine.donated();
        let pages = (donated.size() / PAGE) as usize - 1;
        let (root, _) = donated.into_run().split_at(PAGE).expect("the first frame");
        let root = root.into_root(&geometry).expect("a page");
        let stage2 = Stage2::new(machine, features, geometry, Vmid::new(1), root).expect("a guest");
        Self { stage2, pages, balance: Mutex::default() }
    }

    pub(super) fn machine(&self) -> &Machine {
        self.stage2.platform()
    }

    /// A pool of table pages.
    pub(super) fn pages(&self, numbers: std::ops::Range<usize>) -> Pages {
        self.spoiled_pages(numbers, None)
    }

    /// [`pages`](Self::pages), where a page that is in no table is full of `junk`.
    pub(super) fn spoiled_pages(&self, numbers: std::ops::Range<usize>, junk: Option<Descriptor>) -> Pages {
        assert!(numbers.end <= self.pages);
        Pages::new(self.machine(), numbers.start + 1..numbers.end + 1, junk)
    }

    fn count(&self, ipa: Ipa, size: u64, by: i32) {
        let mut balance = self.balance.lock().expect("no panic");
        (0..size / PAGE).for_each(|page| *balance.entry(ipa.raw() + page * PAGE).or_default() += by);
    }

    pub(super) fn map_as(&self, at: u64, level: Level, attributes: &Attributes, pages: &mut impl TableSource) {
        let (ipa, sample) = (Ipa::new(at), self.stage2.sample());
        if self.stage2.map_to(ipa, home(ipa), sample, level, attributes, pages).expect("mapped") == Mapped::New {
            self.count(ipa, Kib4.span(level), 1);
        }
    }

    pub(super) fn map(&self, at: u64, level: Level, pages: &mut impl TableSource) {
        self.map_as(at, level, &RAM, pages);
    }

    /// Maps memory that is never withdrawn.
    pub(super) fn map_in_window(&self, at: u64, level: Level, pages: &mut impl TableSource) {
        let ipa = Ipa::new(at);
        let _ = self.stage2.map_to(ipa, home(ipa), Sample::NONE, level, &RAM, pages).expect("mapped");
    }

    /// Unmaps, flushes and frees. Returns the number of leaves reported.
    pub(super) fn unmap_reported(&self, start: u64, size: u64, pages: &mut impl TableSource) -> u64 {
        let mut reported = 0;
        let mut removed = Vec::new();
        let each = |leaf: Broken| {
            self.count(leaf.ipa(), Kib4.span(leaf.level()), -1);
            removed.push(leaf);
            reported += 1;
        };
        let pending = self.stage2.unmap(range(start, size), pages, each).expect("unmapped");
        let freed = pending.complete().free(pages);
        for leaf in removed {
            let leaf = leaf.open(&freed).expect("it was removed here");
            assert_eq!(leaf.descriptor.address(), home(leaf.ipa), "{leaf:?}");
        }
        reported
    }

    /// [`unmap_reported`](Self::unmap_reported), if the number does not matter.
    pub(super) fn unmap(&self, start: u64, size: u64, pages: &mut impl TableSource) {
        self.unmap_reported(start, size, pages);
    }

    /// Unmaps, flushes and frees, without a report of leaves.
    pub(super) fn unmap_quietly(&self, start: u64, size: u64, pages: &mut impl TableSource) {
        let pending = self.stage2.unmap(range(start, size), pages, Unwatched).expect("unmapped");
        pending.complete().free(pages);
    }

    pub(super) fn split(&self, start: u64, size: u64, pages: &mut impl TableSource) {
        let split = self.stage2.split(range(start, size), size, pages, |_, _| ControlFlow::Continue(()));
        assert_eq!(split.expect("split").stopped, None);
    }

    pub(super) fn coalesce(&self, at: u64, level: Level, attributes: &Attributes, pages: &mut Pages) {
        let ipa = Ipa::new(at);
        let (to, sample) = ((ipa, home(ipa)), self.stage2.sample());
        let coalesced = self.stage2.coalesce_to::<false, false>(to, sample, level, attributes, pages, &mut |_| ());
        let _ = coalesced.expect("coalesced");
    }

    pub(super) fn map_range(&self, start: u64, size: u64, largest: Level, pages: &mut Pages) {
        let (range, sample) = (range(start, size), self.stage2.sample());
        self.stage2.map_range_to(range.clone(), home(range.start), sample, largest, &RAM, pages).expect("mapped");
    }

    pub(super) fn write_protect(&self, start: u64, size: u64) {
        let _ = self.stage2.write_protect(range(start, size)).expect("protected").complete();
    }

    /// Whether a leaf is there, which now allows this access.
    pub(super) fn relax(&self, at: u64, access: Access) -> bool {
        self.stage2.relax(Ipa::new(at), access).is_ok()
    }

    /// Whether a leaf is there.
    pub(super) fn make_young(&self, at: u64) -> bool {
        self.stage2.make_young(Ipa::new(at)).is_ok()
    }

    /// The leaf that maps this page, checked to map the right frame.
    pub(super) fn look_up(&self, at: u64) -> Option<Leaf> {
        let leaf = self.stage2.look_up(Ipa::new(at))?;
        assert_eq!(leaf.descriptor.address(), home(leaf.ipa), "{leaf:?} maps a wrong frame");
        Some(leaf)
    }

    pub(super) fn is_mapped(&self, at: u64) -> bool {
        self.look_up(at).is_some()
    }

    /// Checks the tables after all operations have ended: each table's metadata has its counts, nothing is locked or
    /// busy, each leaf maps the right frame, and each page is once in the tree or in one of `pools`. Returns the mapped
    /// pages.
    pub(super) fn check(&self, pools: &[Pages]) -> BTreeMap<u64, Descriptor> {
        let mut seen = Seen { guest: self, leaves: BTreeMap::new(), tables: Vec::new() };
        let root = self.machine().donated().start();
        seen.table(root, self.stage2.geometry().root_level(), Ipa::new(0));
        seen.tables.extend(pools.iter().flat_map(|pool| pool.free.iter()).map(|page| page.pa()));
        seen.tables.sort_unstable();
        let all = (0..=self.pages as u64).map(|number| root + number * PAGE);
        assert_eq!(seen.tables, all.collect::<Vec<_>>(), "a table page is lost, or in two places");
        seen.leaves
    }

    /// [`check`](Self::check), and that each page that was mapped and not removed is there. For tests that coalesce
    /// nothing, and watch all removals.
    pub(super) fn check_balance(&self, pools: &[Pages]) -> BTreeMap<u64, Descriptor> {
        let mapped = self.check(pools);
        for (page, balance) in &*self.balance.lock().expect("no panic") {
            assert_eq!(*balance, i32::from(mapped.contains_key(page)), "{page:#x} was lost, or removed twice");
        }
        mapped
    }
}

struct Seen<'a> {
    guest: &'a Guest,
    leaves: BTreeMap<u64, Descriptor>,
    tables: Vec<Pa>,
}

impl Seen<'_> {
    fn table(&mut self, pa: Pa, level: Level, start: Ipa) {
        let (machine, span) = (self.guest.machine(), Kib4.span(level));
        let (mut counts, mut other_memory) = (Counts::EMPTY, false);
        self.tables.push(pa);
        for index in 0..Kib4.entries() {
            let (entry, ipa) = (machine.read(pa, index), start + index as u64 * span);
            assert_ne!(entry, Descriptor::BUSY, "{ipa} is busy for ever");
            counts += Counts::of(entry, level);
            if entry.is_table(level) {
                self.table(entry.address(), level.below().expect("a level"), ipa);
            } else if entry.is_valid() {
                assert_eq!(entry.address(), home(ipa), "{entry:?} maps {ipa}");
                other_memory |= entry.attributes(self.guest.stage2.features()).memory != Memory::Normal;
                self.leaves.extend((0..span / PAGE).map(|page| (ipa.raw() + page * PAGE, entry)));
            }
        }
        let metadata = machine.metadata(pa);
        assert_eq!(metadata.peek(), Some(counts), "the metadata of the level {level} table at {start}");
        assert!(
            !other_memory || metadata.has_other_memory(),
            "the note of other memory in the table at {start} is lost"
        );
        assert_eq!(metadata.link() & !TableMetadata::OTHER_MEMORY, 0, "the table at {start} is in a chain, or claimed");
    }
}

pub(super) fn range(start: u64, size: u64) -> IpaRange {
    Ipa::new(start)..Ipa::new(start + size)
}
