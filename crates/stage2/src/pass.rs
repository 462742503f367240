// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A maintenance pass over a range: it locks each table that has work once, and hands its entries to a visitor.
//!
//! **Invariant.** The visitor sees each entry that is mapped during the whole pass. The pass skips a table only if its
//! counts show no work for the visitor, and the table was linked when they were read. The pass waits for a busy entry,
//! because its new value may need the change too.
//!
//! One visit covers the entries between two tables of a lower level. Work that needs no lock follows each visit
//! ([`Pass::unlocked`]).

use core::ops::Range;

use crate::contiguous::MOST_GROUPED;
use crate::counts::Counts;
use crate::group::whole_groups;
use crate::lockless_walk::{Locked, Retry};
use crate::platform::Platform;
use crate::primitive;
use crate::sequence::Snapshot;
use crate::table::Table;
use crate::{Error, Granule, Ipa, IpaRange, Level, Stage2};

/// A visitor of a pass.
pub(crate) trait Pass<P: Platform, G: Granule> {
    /// Whether a table with these counts has work for the visitor.
    fn wants(counts: Counts) -> bool;

    /// Visits some entries, at least one, under their table's lock. None of them is a table or busy.
    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa);

    /// Visits some entries, and reports their number to the platform.
    #[inline(always)]
    fn visit(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        locked.stage2.platform().on_entries(indexes.len());
        self.entries(locked, indexes, first);
    }

    /// Work on the visited entries without the lock, directly after [`entries`](Self::entries).
    fn unlocked(&mut self, level: Level, first: Ipa) {
        let _ = (level, first);
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// The range from the first to the last of the pages that `mask` selects: bit `n` is the page `n` pages after
    /// `first`.
    pub(crate) fn masked_range(&self, first: Ipa, mask: u64) -> Result<IpaRange, Error> {
        let (page, bits) = (self.geometry().granule().size(), self.geometry().ipa_bits());
        let (skipped, count) = (mask.trailing_zeros() % 64, 64 - mask.leading_zeros());
        let at = |bit: u32| first.checked_add(u64::from(bit) * page);
        let range = at(skipped).zip(at(count.max(1))).map(|(start, end)| start..end);
        let range = range.ok_or(Error::OutsideIpa { ipa: first, bits })?;
        self.geometry().check(&range)?;
        Ok(range)
    }

    /// Passes over the pages that `mask` selects: bit `n` is the page `n` pages after `first`. Each run of adjacent
    /// pages is one visit.
    ///
    /// `range` is the result of [`masked_range`](Self::masked_range). [`Pass::unlocked`] is not called.
    pub(crate) fn pass_masked<V: Pass<P, G>>(&self, first: Ipa, mask: u64, range: &IpaRange, visitor: &mut V) {
        if mask != 0 {
            self.pass(range, &mut Masked { first, mask, visitor });
        }
    }

    /// Passes over `range`, which the caller has checked.
    pub(crate) fn pass<V: Pass<P, G>>(&self, range: &IpaRange, visitor: &mut V) {
        let mut at = range.start;
        while at < range.end {
            let then = self.sequence.now();
            let level = self.geometry().root_level();
            // An unlink sends the pass back to the root. Finished work is not repeated: `at` is where it ended.
            let _ = self.pass_table(self.root(), level, then, &mut at, range.end, visitor);
        }
    }

    fn pass_table<V: Pass<P, G>>(
        &self,
        table: Table<'_, G>,
        level: Level,
        then: Snapshot,
        at: &mut Ipa,
        end: Ipa,
        visitor: &mut V,
    ) -> Result<(), Retry> {
        if level == Level::L3 {
            let index = self.geometry().index(*at, level);
            self.pass_entries(table, level, index, then, at, end, visitor)?;
            // A table of a larger granule takes several visits.
            while G::ENTRIES > MOST_ENTRIES && *at < end && self.geometry().index(*at, level) != 0 {
                let index = self.geometry().index(*at, level);
                self.pass_entries(table, level, index, then, at, end, visitor)?;
            }
            return Ok(());
        }
        let shift = self.geometry().granule().span_shift(level);
        let mut index = self.geometry().index(*at, level);
        while index < table.len() && *at < end {
            let here = at.align_down(1 << shift);
            let next = here + (1 << shift);
            let entry = table.entry(index).look();
            if !self.sequence.is_still(then) {
                return Err(Retry);
            }
            match level.below() {
                Some(below) if entry.is_table(level) => {
                    let counts = self.platform().metadata(entry.address()).peek();
                    if !self.sequence.is_still(then) {
                        return Err(Retry);
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

    /// Visits the entries from `index` on, up to the next table, the end of this table, or `end`.
    #[allow(clippy::too_many_arguments, reason = "the location, and the walk's own state")]
    fn pass_entries<V: Pass<P, G>>(
        &self,
        table: Table<'_, G>,
        level: Level,
        index: usize,
        then: Snapshot,
        at: &mut Ipa,
        end: Ipa,
        visitor: &mut V,
    ) -> Result<(), Retry> {
        let shift = self.geometry().granule().span_shift(level);
        let first = at.align_down(1 << shift);
        let mut locked = self.lock_table(table.pa(), table.len(), level, then)?.quiet()?;
        let aligned = if G::GROUPS { index & !(MOST_GROUPED - 1) } else { index };
        let most = (aligned + MOST_ENTRIES).min(table.len());
        let wanted = ((end - first - 1) >> shift) as usize + 1;
        let mut last = most.min(index.saturating_add(wanted));
        if level < Level::L3 {
            last = (index..last).find(|index| locked.entry(*index).is_table(level)).unwrap_or(last);
        }
        // There is nearly always an entry. A visitor's loops are shorter if they know that.
        if V::wants(locked.counts) && index < last {
            // A contiguous group is visited as a whole. It reaches neither before `aligned` nor beyond `most`.
            let indexes = whole_groups(&locked, index..last);
            let visited = first - (((index - indexes.start) as u64) << shift);
            // As in `frame::take`: a visitor's stores are relaxed, and a late lockless walk may read them.
            primitive::release_fence();
            visitor.visit(&mut locked, indexes, visited);
            drop(locked);
            visitor.unlocked(level, visited);
        }
        // If `last` is `index`, a table was linked there. `at` must not go back to the start of the entry.
        *at = (*at).max(first + (((last - index) as u64) << shift));
        Ok(())
    }
}

/// The most entries of one visit: a table of the 4 KiB granule. A lock is held for so long at most.
pub(crate) const MOST_ENTRIES: usize = 512;

/// Limits a visitor to the pages that a 64-page mask selects.
struct Masked<'a, V> {
    first: Ipa,
    mask: u64,
    visitor: &'a mut V,
}

impl<P: Platform, G: Granule, V: Pass<P, G>> Pass<P, G> for Masked<'_, V> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        V::wants(counts)
    }

    /// Only the selected entries are visited and reported.
    #[inline(always)]
    fn visit(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        self.entries(locked, indexes, first);
    }

    #[inline(always)]
    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        if locked.level < Level::L3 {
            // A block is larger than 64 pages, so at most two blocks are visited, each for a page of the mask.
            return self.visitor.visit(locked, indexes, first);
        }
        let shift = locked.stage2.geometry().granule().shift();
        // With contiguous groups, the visit may begin before the first page of the mask, and end after its last.
        let before = if G::GROUPS { (self.first.raw().saturating_sub(first.raw()) >> shift) as usize } else { 0 };
        let skipped = if before == 0 { (first - self.first) >> shift } else { 0 };
        let (from, first) = (indexes.start + before, first + ((before as u64) << shift));
        let here = if G::GROUPS { (indexes.end - from).min(64) } else { indexes.len() };
        let mut left = self.mask >> skipped & (u64::MAX >> (64 - here));
        while left != 0 {
            let start = left.trailing_zeros();
            let end = start + (left >> start).trailing_ones();
            left &= !(u64::MAX >> (64 - end));
            let run = from + start as usize..from + end as usize;
            let whole = whole_groups(locked, run.clone());
            let ahead = (run.start - whole.start) as u64;
            self.visitor.visit(locked, whole, first + (u64::from(start) << shift) - (ahead << shift));
        }
    }
}
