// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that were taken out of the tree: chained until the flush, then looked through and freed.
//!
//! What hangs below a table that was taken out stays as it was, so a chain holds the topmost tables only. Until the
//! flush is complete, hardware may still walk through them, and mark entries; software finds none of them any more,
//! since it was counted ([`Unlinked`](crate::descent::Unlinked)) before. So a table's content is final when the flush
//! is complete, and is looked at only then: a write that hardware recorded at the last moment is not lost.
//!
//! The chain is kept in the tables' records, as hardware still reads the pages.

use crate::platform::{Domain, Platform};
use crate::primitive::{self, Ordering};
use crate::record::Counts;
use crate::removed::{Broken, Removal, Removed};
use crate::table::Table;
use crate::{Descriptor, Ipa, Leaf, Level, Pa, Stage2, TablePage, TableSource, cache, frame};

/// Tables that were taken out.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    first: Option<Link>,
}

/// A table, its level and where it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) table: Pa,
    pub(crate) level: Level,
    pub(crate) ipa: Ipa,
}

impl Chain {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds a table, in whose record nothing but its lock is of use any more.
    pub(crate) fn push<P: Platform>(&mut self, link: Link, stage2: &Stage2<P>) {
        let next = self.first.replace(link);
        let record = stage2.platform().record(link.table);
        // The level of the next one tells that there is one: a table in a chain has no level 0.
        record.set_link(next.map_or(0, |next| next.table.raw() | u64::from(next.level.raw())));
        // Where the next one was is kept where this one's counts were.
        stage2.set_state(link.table, next.map_or(0, |next| next.ipa.raw()));
    }

    /// Adds those of another chain.
    pub(crate) fn join<P: Platform>(&mut self, other: Self, stage2: &Stage2<P>) {
        for link in other.links(stage2) {
            self.push(link, stage2);
        }
    }

    /// All of them. Each one's record is read before it is handed out.
    fn links<P: Platform>(self, stage2: &Stage2<P>) -> impl Iterator<Item = Link> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let this = next?;
            let record = stage2.platform().record(this.table);
            let link = record.link();
            next = Level::new((link & 3) as u8).filter(|level| *level > Level::L0).map(|level| Link {
                table: Pa::new(link & !(TablePage::SIZE - 1)),
                level,
                ipa: Ipa::new(record.last().raw()),
            });
            Some(this)
        })
    }

    /// Tells `removed` of each leaf in them, cleans what has to be cleaned, and gives the pages back. The flush is
    /// complete.
    pub(crate) fn free<P: Platform, R: Removed>(
        self,
        stage2: &Stage2<P>,
        tables: &mut impl TableSource,
        removed: &mut R,
        removal: Removal,
    ) -> u64 {
        let cleans = stage2.leaves_lines();
        let mut freed = 0;
        for link in self.links(stage2) {
            freed += if R::WATCHES || cleans {
                let mut leaf = |leaf| removed.leaf(Broken::new(leaf, removal));
                stage2.free_tree(link, Look::Everywhere { cleans }, tables, &mut leaf)
            } else {
                stage2.free_tree(link, Look::Nowhere, tables, &mut |_| ())
            };
        }
        freed
    }
}

/// In which tables leaves are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// In none: they were in no tree, or no leaf in them matters.
    Nowhere,
    /// Where hardware records writes: a block is there now.
    Armed,
    /// Everywhere: the watcher wants each leaf, or lines must not stay in caches.
    Everywhere {
        /// Whether lines may have stayed.
        cleans: bool,
    },
}

impl<P: Platform> Stage2<P> {
    /// Frees a table that was taken out, and all below it; calls `leaf` with each leaf where it is to `look` for them.
    /// Returns how many tables that were.
    pub(crate) fn free_tree(
        &self,
        link: Link,
        look: Look,
        tables: &mut impl TableSource,
        leaf: &mut impl FnMut(Leaf),
    ) -> u64 {
        let mut freed = 0;
        let level = link.level;
        if let Some(below) = level.below() {
            let (table, span) = (self.table(Descriptor::table(link.table)), self.geometry().granule().span(level));
            for index in 0..table.len() {
                let entry = table.entry(index).read();
                if entry.is_table(level) {
                    let link = Link { table: entry.address(), level: below, ipa: link.ipa + index as u64 * span };
                    // A table of level 1 is taken out only when nothing is in it (modules `unmap`, `below`).
                    debug_assert_eq!(below, Level::L3, "a table with tables that have tables");
                    freed += self.free_table(link, look, tables, leaf);
                }
            }
        }
        freed + self.free_table(link, look, tables, leaf)
    }

    /// Frees one table, as [`free_tree`](Self::free_tree) does; returns 1.
    #[inline(always)]
    fn free_table(
        &self,
        Link { table: pa, level, ipa }: Link,
        look: Look,
        tables: &mut impl TableSource,
        leaf: &mut impl FnMut(Leaf),
    ) -> u64 {
        let wanted = match look {
            Look::Nowhere => false,
            Look::Armed => self.platform().record(pa).last().armed() > 0,
            Look::Everywhere { cleans } => {
                if cleans {
                    let table = self.table(Descriptor::table(pa));
                    self.clean_leaves(table, level, |leaf| leaf.leaves_lines(self.features()));
                }
                true
            }
        };
        if wanted {
            self.tell_leaves(self.table(Descriptor::table(pa)), level, ipa, leaf);
        }
        frame::give(tables, TablePage::from_tree(pa, self.features()));
        1
    }

    /// Calls `leaf` with each leaf of a table that nobody changes any more.
    #[inline(always)]
    fn tell_leaves(&self, table: Table<'_>, level: Level, ipa: Ipa, leaf: &mut impl FnMut(Leaf)) {
        let span = self.geometry().granule().span(level);
        let mut ipa = ipa;
        for row in table.rows() {
            // Read before any is told: what is told may be written somewhere.
            for raw in row.each_ref().map(|cell| cell.load(Ordering::Relaxed)) {
                let descriptor = Descriptor::from_raw(raw);
                if descriptor.is_leaf(level) {
                    leaf(Leaf { ipa, level, descriptor });
                }
                ipa = ipa + span;
            }
        }
    }

    /// Cleans what the leaves of another type of memory map, in a table that a block is going to replace and in those below
    /// it. After the flush that ended the guest's access by them.
    pub(crate) fn clean_others(&self, table: Table<'_>, level: Level, block: Descriptor) {
        for index in 0..table.len() {
            let entry = table.entry(index).read();
            if let Some(below) = level.below().filter(|_| entry.is_table(level)) {
                self.clean_others(self.table(entry), below, block);
            }
        }
        self.clean_leaves(table, level, |leaf| leaf.memory_bits() != block.memory_bits());
    }

    /// Cleans and invalidates the memory behind the leaves of a table that are `wanted`.
    fn clean_leaves(&self, table: Table<'_>, level: Level, wanted: impl Fn(Descriptor) -> bool) {
        let span = self.geometry().granule().span(level);
        let mut cleaned = false;
        for row in table.rows() {
            for descriptor in row.each_ref().map(|cell| Descriptor::from_raw(cell.load(Ordering::Relaxed))) {
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

    /// The same for one that was removed alone, which is told of then.
    pub(crate) fn tell_removed<R: Removed>(&self, leaf: Leaf, removed: &mut R, removal: Removal) {
        if leaf.descriptor.leaves_lines(self.features()) {
            let size = self.geometry().granule().span(leaf.level);
            cache::clean_lines(self.platform(), self.features(), leaf.descriptor.address(), size);
            primitive::dsb(self.platform(), Domain::Ish);
        }
        removed.leaf(Broken::new(leaf, removal));
    }

    /// Writes a word where the counts of a table were that was taken out.
    fn set_state(&self, table: Pa, state: u64) {
        self.platform().record(table).reset(Counts::from_raw(state), self.platform());
    }
}
