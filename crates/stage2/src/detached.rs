// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that were taken out of the tree: chained until the flush, then looked through and freed.
//!
//! What hangs below a table that was taken out stays as it was, so a chain holds the topmost tables only. Until the
//! flush is complete, hardware may still walk through them, and mark entries; software finds none of them any more,
//! since it was counted ([`Unlinked`](crate::descent::Unlinked)) before. So a table's content is final when the flush
//! is complete, and is looked at only then: a write that hardware recorded at the last moment is not lost.
//!
//! The chain is kept in the tables' records, as hardware still reads the pages.

use crate::platform::Platform;
use crate::record::Counts;
use crate::unmap::Removed;
use crate::{Descriptor, Ipa, Leaf, Level, Memory, Pa, Stage2, TablePage, TableSource, cache};

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
                table: Pa::new(link & !3),
                level,
                ipa: Ipa::new(record.peek().raw()),
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
    ) -> u64 {
        let look = if R::WATCHES || !stage2.features().forced_write_back { Look::All } else { Look::Nowhere };
        let mut freed = 0;
        for link in self.links(stage2) {
            freed += stage2.free_tree(link, look, tables, &mut |leaf| stage2.tell_removed(leaf, removed));
        }
        freed
    }
}

/// In which tables leaves are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nobody wants to know.
    Nowhere,
    /// Where hardware records writes.
    Armed,
    /// Everywhere.
    All,
}

impl<P: Platform> Stage2<P> {
    /// Frees a table that was taken out, and all below it; calls `leaf` with each leaf where it is to
    /// `look` for them.
    pub(crate) fn free_tree(
        &self,
        Link { table: pa, level, ipa }: Link,
        look: Look,
        tables: &mut impl TableSource,
        leaf: &mut impl FnMut(Leaf),
    ) -> u64 {
        let mut freed = 1;
        let leaves = look == Look::All || (look == Look::Armed && self.platform().record(pa).peek().armed() > 0);
        if leaves || level < Level::L3 {
            let table = self.table(Descriptor::table(pa));
            let span = self.geometry().granule().span(level);
            for index in 0..table.len() {
                let descriptor = table.entry(index).load();
                let ipa = ipa + index as u64 * span;
                match level.below() {
                    Some(below) if descriptor.is_table(level) => {
                        let link = Link { table: descriptor.address(), level: below, ipa };
                        freed += self.free_tree(link, look, tables, leaf);
                    }
                    _ if leaves && descriptor.is_valid() => leaf(Leaf { ipa, level, descriptor }),
                    _ => {}
                }
            }
        }
        tables.give(TablePage::from_tree(pa, self.features()));
        freed
    }

    /// What is to be done about a leaf that was removed, after the flush.
    #[inline(always)]
    pub(crate) fn tell_removed<R: Removed>(&self, leaf: Leaf, removed: &mut R) {
        if !self.features().forced_write_back && leaf.descriptor.attributes(self.features()).memory == Memory::Normal {
            let size = self.geometry().granule().span(leaf.level);
            cache::after_unmap(self.platform(), self.features(), (leaf.descriptor.address(), size));
        }
        if R::WATCHES {
            removed.leaf(leaf);
        }
    }

    /// Writes a word where the counts of a table were that was taken out. Somebody who came too late may hold its lock.
    fn set_state(&self, table: Pa, state: u64) {
        let record = self.platform().record(table);
        record.lock(self.platform());
        record.unlock(Counts::from_raw(state));
    }
}
