// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pass over a range, for maintenance: each table that has something to do is locked once, and handed over as a whole.
//!
//! Invariant: an entry that was mapped before the pass began, and stayed so, is seen. A table is passed over only where
//! its counts say that there is nothing to do, and it was in the tree when they were read. An entry that somebody is
//! changing is waited for: what it becomes may be what the pass is there to change.
//!
//! A pass visits as much of a table as there is between two tables; what it does to a visitor's result happens
//! without any lock.

use core::ops::Range;

use crate::descent::{Locked, Moment, Moved};
use crate::platform::Platform;
use crate::primitive;
use crate::record::Counts;
use crate::table::Table;
use crate::{Error, Ipa, IpaRange, Level, Stage2};

/// What a pass does.
pub(crate) trait Pass<P: Platform> {
    /// Whether the leaves of a table with these counts are of interest.
    fn wants(counts: Counts) -> bool;

    /// Some entries, none of which is a table or busy, under the table's lock.
    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, first: Ipa);

    /// What is to be done about them without the lock, directly after.
    fn unlocked(&mut self, level: Level, first: Ipa) {
        let _ = (level, first);
    }
}

impl<P: Platform> Stage2<P> {
    /// From the first of the 64 pages from `first` on whose bits are set in `mask` to the last.
    ///
    /// # Errors
    ///
    /// A page is not in the IPA space, or `first` is not aligned.
    pub(crate) fn masked_range(&self, first: Ipa, mask: u64) -> Result<IpaRange, Error> {
        let (page, bits) = (self.geometry().granule().size(), self.geometry().ipa_bits());
        let (skipped, count) = (mask.trailing_zeros() % 64, 64 - mask.leading_zeros());
        let at = |bit: u32| first.checked_add(u64::from(bit) * page);
        let range = at(skipped).zip(at(count.max(1))).map(|(start, end)| start..end);
        let range = range.ok_or(Error::OutsideIpa { ipa: first, bits })?;
        self.geometry().check(&range)?;
        Ok(range)
    }

    /// Passes over those of the 64 pages from `first` on whose bits are set in `mask`: `range`, which is from the first of
    /// them to the last ([`masked_range`](Self::masked_range)), and in that one run of them after the other. The visitor is
    /// not called without the lock.
    pub(crate) fn pass_masked<V: Pass<P>>(&self, first: Ipa, mask: u64, range: &IpaRange, visitor: &mut V) {
        if mask != 0 {
            self.pass(range, &mut Masked { first, mask, visitor });
        }
    }

    /// Passes over `range`, which has to be checked.
    pub(crate) fn pass<V: Pass<P>>(&self, range: &IpaRange, visitor: &mut V) {
        let mut at = range.start;
        while at < range.end {
            let then = self.unlinked.now();
            let level = self.geometry().root_level();
            // What is done stays done: `at` is where it ended.
            let _ = self.pass_table(self.root(), level, then, &mut at, range.end, visitor);
        }
    }

    fn pass_table<V: Pass<P>>(
        &self,
        table: Table<'_>,
        level: Level,
        then: Moment,
        at: &mut Ipa,
        end: Ipa,
        visitor: &mut V,
    ) -> Result<(), Moved> {
        if level == Level::L3 {
            let index = self.geometry().index(*at, level);
            return self.pass_entries(table, level, index, then, at, end, visitor);
        }
        let shift = self.geometry().granule().span_shift(level);
        let mut index = self.geometry().index(*at, level);
        while index < table.len() && *at < end {
            let here = at.align_down(1 << shift);
            let next = here + (1 << shift);
            let entry = table.entry(index).look();
            if !self.unlinked.is_still(then) {
                return Err(Moved);
            }
            match level.below() {
                Some(below) if entry.is_table(level) => {
                    let counts = self.platform().record(entry.address()).peek();
                    if !self.unlinked.is_still(then) {
                        return Err(Moved);
                    }
                    if counts.is_none_or(|counts| counts.tables() > 0 || counts.busy() > 0 || V::wants(counts)) {
                        self.pass_table(self.table(entry), below, then, at, end, visitor)?;
                    }
                    *at = next;
                }
                _ if entry.is_vacant() => *at = next,
                _ => self.pass_entries(table, level, index, then, at, end, visitor)?,
            }
            index += ((*at - here) >> shift) as usize;
        }
        Ok(())
    }

    /// The entries from `index` on, as far as the next table, the end of this one, or `end`.
    #[allow(clippy::too_many_arguments, reason = "the place, and the walk's own state")]
    fn pass_entries<V: Pass<P>>(
        &self,
        table: Table<'_>,
        level: Level,
        index: usize,
        then: Moment,
        at: &mut Ipa,
        end: Ipa,
        visitor: &mut V,
    ) -> Result<(), Moved> {
        let shift = self.geometry().granule().span_shift(level);
        let first = at.align_down(1 << shift);
        let mut locked = self.lock_table(table.pa(), table.len(), level, then)?.quiet()?;
        let most = (index + MOST_ENTRIES).min(table.len());
        let wanted = ((end - first - 1) >> shift) as usize + 1;
        let mut last = most.min(index.saturating_add(wanted));
        if level < Level::L3 {
            last = (index..last).find(|index| locked.entry(*index).is_table(level)).unwrap_or(last);
        }
        // Nearly always there are some, and a visitor's loops that know that are shorter.
        if V::wants(locked.counts) && index < last {
            // For descents that are late, as in `frame::take`: a visitor's stores are relaxed.
            primitive::release_fence();
            visitor.entries(&mut locked, index..last, first);
            drop(locked);
            visitor.unlocked(level, first);
        }
        // Not back, where a table is by now.
        *at = (*at).max(first + (((last - index) as u64) << shift));
        Ok(())
    }
}

/// The most entries that are handed over at once: those of a table with the 4 KiB granule.
pub(crate) const MOST_ENTRIES: usize = 512;

/// Visits those of 64 pages that are in a mask.
struct Masked<'a, V> {
    first: Ipa,
    mask: u64,
    visitor: &'a mut V,
}

impl<P: Platform, V: Pass<P>> Pass<P> for Masked<'_, V> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        V::wants(counts)
    }

    #[inline(always)]
    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, first: Ipa) {
        if locked.level < Level::L3 {
            // A block is larger than 64 pages, so at most two are met, each by a page that is in the mask.
            return self.visitor.entries(locked, indexes, first);
        }
        let shift = locked.stage2.geometry().granule().shift();
        let skipped = (first - self.first) >> shift;
        let mut left = self.mask >> skipped & (u64::MAX >> (64 - indexes.len()));
        while left != 0 {
            let start = left.trailing_zeros();
            let end = start + (left >> start).trailing_ones();
            left &= !(u64::MAX >> (64 - end));
            let run = indexes.start + start as usize..indexes.start + end as usize;
            self.visitor.entries(locked, run, first + (u64::from(start) << shift));
        }
    }
}
