// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block and a table that map the same replace each other in one step, without a break (FEAT_BBM level 2).
//!
//! Break-before-make (Arm ARM DDI 0487K.a, D8.16.1) makes the guest fault between break and make, and takes a flush. At
//! level 2 of FEAT_BBM an entry may change its size while TLBs hold the old one. A guest that hits both may get a TLB
//! conflict abort, at stage 1 too, where its hypervisor does not see it. So the engine does this only on CPUs that raise
//! no such abort ([`Features::no_conflict_abort`]).
//!
//! At level 1 the engine breaks, as at level 0. There a block must be marked (nT) and flushed before it is replaced, and
//! flushed again after that: two flushes, where a break takes one.
//!
//! * **Split** ([`Stage2::replace_block`]): no break, no busy entry and no flush. TLBs may hold the block for as long as
//!   they like, since it maps what the table maps. In return, *any later flush of this tree* has to reach entries of
//!   blocks that were split. A level hint could miss them, so the tree gives none from its first such split on
//!   ([`LiveSplits`]). An invalidation by address removes whatever translates that address, of any size.
//! * **Coalesce** ([`Stage2::replace_table`]): the old table is unlinked, so a flush has to come before its pages are
//!   freed. Until then walk entries may lead to it, and hardware may record there. So no other CPU may change the block:
//!   the parent stays locked during the flush. That is the one exception to "no lock is held while a TLB is flushed". The
//!   guest finds its memory mapped all the time. Only for a table of pages, each of which maps its part of the block: the
//!   check takes a few hundred loads, and for the tables of 1 GiB it would take a quarter of a million, under the lock.

use crate::counts::Counts;
use crate::lockless_walk::{EntryLocation, Locked};
use crate::platform::Platform;
use crate::primitive::{self, Claim, Ordering, Word};
use crate::tlb::Scope;
use crate::{Descriptor, Features, Granule, Ipa, Level, Stage2, TablePage};

impl Features {
    /// Whether a block and a table may replace each other in one step.
    pub(crate) const fn resizes_live(&self) -> bool {
        self.bbm >= 2 && self.no_conflict_abort
    }
}

/// Whether a tree ever replaced a block with a table without a flush.
#[derive(Debug, Default)]
pub(crate) struct LiveSplits(Word);

impl LiveSplits {
    /// Notes that a block is about to be replaced. Relaxed: a CPU that changes an entry of the table has found it by a
    /// load with acquire (W2) of the link that is made after this.
    fn note(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Whether such a split was ever noted.
    pub(crate) fn are_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Replaces a block with the table `new`, which was filled when the block was `block`. Since then only hardware has
    /// changed it.
    pub(crate) fn replace_block(
        &self,
        mut locked: Locked<'_, P, G>,
        location: &EntryLocation<'_, G>,
        block: Descriptor<G>,
        new: &TablePage<G>,
    ) {
        let Some(below) = location.level.below() else { return };
        self.live_splits.note();
        let (mut filled, table) = (block, Descriptor::table(new.pa()));
        loop {
            let now = location.cell.read();
            if now != filled {
                self.refill(self.table_in(new), below, now.part(below));
                filled = now;
            }
            // Hardware may record once more.
            if location.cell.replace(now, table, self.platform()) {
                locked.counts -= Counts::of(now, location.level);
                locked.counts += Counts::of(table, location.level);
                break;
            }
        }
        drop(locked);
        self.publish();
    }

    /// Whether `child` is a table of pages that maps exactly what `block` maps.
    pub(crate) fn is_whole_block(&self, child: &Locked<'_, P, G>, block: Descriptor<G>) -> bool {
        let page = block.part(Level::L3);
        let size = self.geometry().granule().size();
        child.level == Level::L3
            && child.counts.live() == child.table.len() as u64
            && (0..child.table.len()).all(|index| child.entry(index).maps_as(page.advanced(index as u64 * size)))
    }

    /// Replaces the table `child` with `block`, which maps the same. Flushes under the lock of the parent; afterwards the
    /// table is unlinked, and its content is final.
    pub(crate) fn replace_table(
        &self,
        (mut parent, child): (Locked<'_, P, G>, Locked<'_, P, G>),
        location: &EntryLocation<'_, G>,
        ipa: Ipa,
        block: Descriptor<G>,
    ) {
        // Software changes the entry under this lock only, and hardware changes no entry of a table.
        parent.counts -= Counts::of(location.cell.read(), location.level);
        parent.make(location.cell, block);
        let _ = self.sequence.count(self.platform());
        let range = ipa..ipa + self.geometry().granule().span(location.level);
        self.tlb().invalidate(&Scope { range, level: None, tables: true });
        primitive::claim(Claim::Visible);
        drop(child);
        drop(parent);
    }
}
