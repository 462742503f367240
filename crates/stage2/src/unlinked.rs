// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unlinked tables: chained until the flush, then searched and freed.
//!
//! A chain holds the topmost tables only: the tables below an unlinked one stay linked to it.
//!
//! After U4 no software changes these tables: the sequence count turns back each late walk (U3, W4). Until the flush U6
//! is complete, hardware may still walk them, and set access flags and dirty state. So their content is final after U6,
//! and is read only then. A write that hardware records at the last moment is not lost.
//!
//! The chain's links are in the tables' metadata, since hardware still reads the pages themselves.

use crate::counts::Counts;
use crate::platform::{Domain, Platform};
use crate::primitive::{self, Ordering};
use crate::removal::{Broken, RemovalId, RemovalWatcher};
use crate::table::Table;
use crate::{Descriptor, Granule, Ipa, Leaf, Level, Pa, Stage2, TablePage, TableSource, cache, frame};

/// A chain of unlinked tables.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    first: Option<UnlinkedTable>,
}

/// An unlinked table, its level, and the first address that it mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnlinkedTable {
    pub(crate) table: Pa,
    pub(crate) level: Level,
    pub(crate) ipa: Ipa,
}

impl Chain {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds a table. Its counts and link word are free for the chain: only the lock in its metadata is still used.
    pub(crate) fn push<P: Platform, G: Granule>(&mut self, link: UnlinkedTable, stage2: &Stage2<P, G>) {
        let next = self.first.replace(link);
        let metadata = stage2.platform().metadata(link.table);
        // Address and level of the next table. Level 0 means that there is none: no unlinked table is of level 0.
        metadata.set_link(next.map_or(0, |next| next.table.raw() | u64::from(next.level.raw())));
        // The next table's IPA takes the place of this table's counts.
        stage2.set_state(link.table, next.map_or(0, |next| next.ipa.raw()));
    }

    /// Adds the tables of another chain.
    pub(crate) fn join<P: Platform, G: Granule>(&mut self, other: Self, stage2: &Stage2<P, G>) {
        for link in other.links(stage2) {
            self.push(link, stage2);
        }
    }

    /// All tables. Each table's metadata is read before the table is returned, since the caller may free it.
    fn links<P: Platform, G: Granule>(self, stage2: &Stage2<P, G>) -> impl Iterator<Item = UnlinkedTable> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let this = next?;
            let metadata = stage2.platform().metadata(this.table);
            let link = metadata.link();
            next = Level::new((link & 3) as u8).filter(|level| *level > Level::L0).map(|level| UnlinkedTable {
                table: Pa::new(link & !(TablePage::SIZE - 1)),
                level,
                ipa: Ipa::new(metadata.last().raw()),
            });
            Some(this)
        })
    }

    /// Reports each leaf in the tables to `removed`, cleans the memory that has to be cleaned, and gives the pages
    /// back. Returns how many. The flush must be complete.
    pub(crate) fn free<P: Platform, G: Granule, R: RemovalWatcher<G>>(
        self,
        stage2: &Stage2<P, G>,
        tables: &mut impl TableSource<G>,
        removed: &mut R,
        removal: RemovalId,
    ) -> u64 {
        let cleans = stage2.leaves_lines();
        let mut freed = 0;
        for link in self.links(stage2) {
            freed += if R::WATCHES || cleans {
                stage2.free_and_report(link, cleans, tables, (removed, removal))
            } else {
                stage2.free_tree(link, Look::Nowhere, tables, &mut |_| ())
            };
        }
        freed
    }
}

/// In which tables to look for leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// In none: the tables were never linked, or none of their leaves matters.
    Nowhere,
    /// In those with hardware-tracked leaves: a block maps the same memory now, and only the recorded writes matter.
    HardwareTracked,
    /// In all: the watcher wants each leaf, or lines have to be cleaned from the caches.
    Everywhere {
        /// Whether lines may have to be cleaned.
        cleans: bool,
    },
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Frees an unlinked table, and all tables below it. Calls `leaf` with each leaf of the tables that `look` selects.
    /// Returns the number of tables.
    pub(crate) fn free_tree(
        &self,
        link: UnlinkedTable,
        look: Look,
        tables: &mut impl TableSource<G>,
        leaf: &mut impl FnMut(Leaf<G>),
    ) -> u64 {
        let mut freed = 0;
        let level = link.level;
        if let Some(below) = level.below() {
            let (table, span) = (self.table(Descriptor::table(link.table)), self.geometry().granule().span(level));
            for index in 0..table.len() {
                let entry = table.entry(index).read();
                if entry.is_table(level) {
                    let link =
                        UnlinkedTable { table: entry.address(), level: below, ipa: link.ipa + index as u64 * span };
                    // A table of level 1 is unlinked only when it is empty (modules `unmap`, `tables_below`).
                    debug_assert_eq!(below, Level::L3, "a table with tables that have tables");
                    freed += self.free_table(link, look, tables, leaf);
                }
            }
        }
        freed + self.free_table(link, look, tables, leaf)
    }

    /// Frees an unlinked table and the tables below it, and reports each leaf of them.
    ///
    /// Nearly all of the work is for the leaves, so one function for all sources of pages is fast enough, and smaller.
    #[inline(never)]
    fn free_and_report<R: RemovalWatcher<G>>(
        &self,
        link: UnlinkedTable,
        cleans: bool,
        mut tables: &mut dyn TableSource<G>,
        (removed, removal): (&mut R, RemovalId),
    ) -> u64 {
        let mut leaf = |leaf| removed.leaf(Broken::new(leaf, removal));
        self.free_tree(link, Look::Everywhere { cleans }, &mut tables, &mut leaf)
    }

    /// Frees one table, as [`free_tree`](Self::free_tree) does; returns 1.
    #[inline(always)]
    fn free_table(
        &self,
        UnlinkedTable { table: pa, level, ipa }: UnlinkedTable,
        look: Look,
        tables: &mut impl TableSource<G>,
        leaf: &mut impl FnMut(Leaf<G>),
    ) -> u64 {
        let wanted = match look {
            Look::Nowhere => false,
            Look::HardwareTracked => self.platform().metadata(pa).last().hardware_tracked() > 0,
            Look::Everywhere { cleans } => {
                if cleans {
                    let table = self.table(Descriptor::table(pa));
                    let types = Descriptor::<G>::types_that_leave_lines(self.features());
                    self.clean_leaves(table, level, |leaf| types.contains(&leaf.memory_type()));
                }
                true
            }
        };
        if wanted {
            self.report_leaves(self.table(Descriptor::table(pa)), level, ipa, leaf);
        }
        frame::give(tables, TablePage::from_tree(pa, self.features()));
        1
    }

    /// Calls `leaf` with each leaf of a table whose content is final.
    #[inline(always)]
    fn report_leaves(&self, table: Table<'_, G>, level: Level, ipa: Ipa, leaf: &mut impl FnMut(Leaf<G>)) {
        let span = self.geometry().granule().span(level);
        let mut ipa = ipa;
        for row in table.rows() {
            // Read the whole row before the first call: `leaf` may store its argument, which would separate the loads.
            for raw in row.each_ref().map(|cell| cell.load(Ordering::Relaxed)) {
                let descriptor = Descriptor::from_raw(raw);
                if descriptor.is_leaf(level) {
                    leaf(Leaf { ipa, level, descriptor });
                }
                ipa = ipa + span;
            }
        }
    }

    /// Cleans the memory of leaves whose type differs from `block`'s, in a table that the block replaces and in the
    /// tables below it. To be called after the flush that ends the guest's access by those leaves.
    pub(crate) fn clean_others(&self, table: Table<'_, G>, level: Level, block: Descriptor<G>) {
        for index in 0..table.len() {
            let entry = table.entry(index).read();
            if let Some(below) = level.below().filter(|_| entry.is_table(level)) {
                self.clean_others(self.table(entry), below, block);
            }
        }
        self.clean_leaves(table, level, |leaf| leaf.memory_bits() != block.memory_bits());
    }

    /// Cleans and invalidates the memory of the leaves of a table that are `wanted`.
    #[inline(never)]
    fn clean_leaves(&self, table: Table<'_, G>, level: Level, wanted: impl Fn(Descriptor<G>) -> bool) {
        let span = self.geometry().granule().span(level);
        let mut cleaned = false;
        for few in table.all().as_chunks::<4>().0 {
            for descriptor in few.each_ref().map(|cell| Descriptor::from_raw(cell.load(Ordering::Relaxed))) {
                if descriptor.is_leaf(level) && wanted(descriptor) {
                    cache::clean_lines(self.platform(), self.features(), descriptor.address(), span);
                    cleaned = true;
                }
            }
        }
        if cleaned {
            primitive::dsb(self.platform(), Domain::Ish);
        }
    }

    /// Cleans the memory of a leaf that was removed alone, if it needs that, and then reports the leaf.
    #[inline(never)]
    pub(crate) fn report_removed<R: RemovalWatcher<G>>(&self, leaf: Leaf<G>, removed: &mut R, removal: RemovalId) {
        if leaf.descriptor.leaves_lines(self.features()) {
            let size = self.geometry().granule().span(leaf.level);
            cache::clean_lines(self.platform(), self.features(), leaf.descriptor.address(), size);
            primitive::dsb(self.platform(), Domain::Ish);
        }
        removed.leaf(Broken::new(leaf, removal));
    }

    /// Writes a word in place of an unlinked table's counts.
    fn set_state(&self, table: Pa, state: u64) {
        self.platform().metadata(table).reset(Counts::from_raw(state), self.platform());
    }
}
