// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unmapping: break the entries and unlink the tables, flush, then free the pages.
//!
//! **Whole tables.** If all that a table maps is unmapped, the table is unlinked together with the tables below it,
//! without reading its entries. A table is also unlinked with its last entry. Steps U1 to U5 are here and in modules
//! `lockless_walk` and `tables_below`; step U6 is [`Pending::complete`].
//!
//! **Stale entries.** A removed entry is marked stale. A CPU that maps there before the flush is complete invalidates
//! first. Another unmap of the same addresses adds them to its own flush. The mark stays after the flush. So removals that
//! are reported are counted until they are flushed ([`Descriptor::STALE_COUNTED`], module `removal`): while none is pending,
//! a CPU that maps there invalidates nothing. The count takes two atomic operations, which would double the time of
//! unmapping one page without a report. Such a removal is not counted ([`Descriptor::STALE`]): the next CPU that maps
//! there invalidates.
//!
//! **Single leaves** are reported at once, as they were when they were broken, but without their memory ([`Broken`]).
//! Without FEAT_S2FWB, or with non-cacheable mappings, the guest may have written past the caches, and lines may be
//! left in them. So each frame is cleaned and invalidated after the flush that ends the guest's access (module
//! `cache`). For such single leaves the flush is done at once.

use core::ops::Range;

use crate::contiguous::MOST_GROUPED;
use crate::group::{leaf_or_group, whole_groups};
use crate::lockless_walk::{Locked, Retry};
use crate::platform::Platform;
use crate::removal::{Broken, RemovalId, RemovalWatcher};
use crate::sequence::Snapshot;
use crate::table::{Cell, Table};
use crate::tlb::{Changed, Scope, Span};
use crate::unlinked::{Chain, UnlinkedTable};
use crate::{Descriptor, Error, Freed, Granule, Ipa, IpaRange, Leaf, Level, Pending, Root, Stage2, TableSource};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Unmaps `range`, and reports each removed leaf to `removed`. Blocks that reach beyond the range are split first.
    ///
    /// # Errors
    ///
    /// As [`Grant::map`](crate::Grant::map), if a block that reaches beyond the range cannot be split. Nothing was
    /// unmapped then, unless another CPU coalesced a block across an end of the range during the call.
    #[inline(always)] // returning the result through memory would stall on store forwarding
    pub fn unmap<R: RemovalWatcher<G>>(
        &self,
        range: IpaRange,
        tables: &mut impl TableSource<G>,
        removed: R,
    ) -> Result<Pending<'_, P, R, G>, Error> {
        self.unmap_and::<R, false>(range, tables, removed)
    }

    /// [`unmap`](Self::unmap). With `LOCKS_EMPTY`, takes the lock of each table in which an entry of the range is, even
    /// where the entry is empty (T3 in module `withdraw`).
    #[inline(always)]
    pub(crate) fn unmap_and<R: RemovalWatcher<G>, const LOCKS_EMPTY: bool>(
        &self,
        range: IpaRange,
        tables: &mut impl TableSource<G>,
        mut removed: R,
    ) -> Result<Pending<'_, P, R, G>, Error> {
        if let Ok(removal) = self.unmap_page(&range, &mut removed) {
            let changed = Changed::leaves_of(range, Level::L3);
            return Ok(Pending::removal(self, changed, Chain::default(), removed, removal));
        }
        self.unmap_slowly::<R, LOCKS_EMPTY>(range, tables, removed)
    }

    /// The fast path: one page of a table that keeps other entries.
    #[inline(always)]
    fn unmap_page<R: RemovalWatcher<G>>(&self, range: &IpaRange, removed: &mut R) -> Result<RemovalId, Retry> {
        let (ipa, page) = (range.start, self.geometry().granule().size());
        let is_page = range.end.raw() == ipa.raw().wrapping_add(page) && ipa.is_aligned(page);
        if !is_page || ipa >= self.geometry().end() || self.leaves_lines() {
            return Err(Retry);
        }
        let location = self.lockless_walk(ipa, Level::L3);
        if location.level != Level::L3 {
            return Err(Retry);
        }
        let mut locked = self.lock(&location)?;
        let entry = location.cell.read();
        if locked.counts.live() <= 1 || !entry.is_valid() || entry.is_contiguous() {
            return Err(Retry);
        }
        if R::WATCHES {
            let stale = self.begin_removal::<R>();
            let descriptor = locked.take(location.index, stale);
            drop(locked);
            let removal = self.removal_id::<R>();
            removed.leaf(Broken::new(Leaf { ipa, level: Level::L3, descriptor }, removal));
            return Ok(removal);
        }
        locked.take_unrecorded_in(location.cell, entry, Descriptor::STALE);
        Ok(self.removal_id::<R>())
    }

    #[inline(never)]
    fn unmap_slowly<R: RemovalWatcher<G>, const LOCKS_EMPTY: bool>(
        &self,
        range: IpaRange,
        tables: &mut impl TableSource<G>,
        removed: R,
    ) -> Result<Pending<'_, P, R, G>, Error> {
        let mut unmap = Unmap::<P, G, R, LOCKS_EMPTY>::new(self, range, removed);
        while core::mem::take(&mut unmap.beyond) {
            if let Err(error) = self.split_ends(&unmap.range, tables) {
                unmap.pending().complete().free(tables);
                return Err(error);
            }
            unmap.go_through();
        }
        Ok(unmap.pending())
    }

    /// Unmaps everything, reports each removed leaf to `removed`, and gives all table pages back to `tables`. Returns
    /// the root's memory, and the [`Freed`] that opens the reported leaves.
    ///
    /// No TLB entry of the VMID is left, so another guest may get it. *The caller* has stopped the guest on all CPUs,
    /// and has loaded another `VTTBR_EL2` on each: this guest's value names the root.
    pub fn destroy(self, tables: &mut impl TableSource<G>, removed: impl RemovalWatcher<G>) -> (Root, Freed) {
        // No block reaches beyond the whole IPA space, so one round is enough.
        let mut unmap = Unmap::<P, G, _, false>::new(&self, Ipa::new(0)..self.geometry().end(), removed);
        unmap.go_through();
        let mut pending = unmap.pending();
        pending.flush_all();
        let freed = pending.complete().free(tables);
        self.give_deferred(tables);
        (self.into_root(), freed)
    }
}

/// The most single leaves that are broken under one lock.
const BATCH: usize = 64;

/// `LOCKS_EMPTY`: empty entries are read under their table's lock too.
struct Unmap<'a, P: Platform, G: Granule, R, const LOCKS_EMPTY: bool> {
    stage2: &'a Stage2<P, G>,
    range: IpaRange,
    changed: Changed,
    unlinked: Chain,
    removed: R,
    removal: RemovalId,
    /// The mark of what it removes.
    stale: Descriptor<G>,
    /// A block reached beyond the range: another CPU coalesced it after the ends were split.
    beyond: bool,
}

impl<'a, P: Platform, G: Granule, R: RemovalWatcher<G>, const LOCKS_EMPTY: bool> Unmap<'a, P, G, R, LOCKS_EMPTY> {
    fn new(stage2: &'a Stage2<P, G>, range: IpaRange, removed: R) -> Self {
        let stale = stage2.begin_removal::<R>();
        let (changed, unlinked, removal) = (Changed::default(), Chain::default(), stage2.removal_id::<R>());
        Self { stage2, range, changed, unlinked, removed, removal, stale, beyond: true }
    }

    /// Unmaps each leaf and table that lies completely in the range.
    fn go_through(&mut self) {
        let (mut at, end) = (self.range.start, self.range.end);
        while at < end {
            let mut then = self.stage2.sequence.now();
            // An unlink sends this walk back to the root. Finished work is not repeated: `at` is where it ended.
            let _ = self.table(self.stage2.root(), self.stage2.geometry().root_level(), &mut then, &mut at, end);
        }
    }

    fn pending(self) -> Pending<'a, P, R, G> {
        Pending::removal(self.stage2, self.changed, self.unlinked, self.removed, self.removal)
    }

    /// Unmaps the part of a table from `at` to `end`.
    fn table(
        &mut self,
        table: Table<'_, G>,
        level: Level,
        then: &mut Snapshot,
        at: &mut Ipa,
        end: Ipa,
    ) -> Result<(), Retry> {
        let geometry = *self.stage2.geometry();
        let shift = geometry.granule().span_shift(level);
        let mut index = geometry.index(*at, level);
        while index < table.len() && *at < end {
            let here = at.align_down(1 << shift);
            let next = here + (1 << shift);
            let entry = table.entry(index).look();
            if !self.stage2.sequence.is_still(*then) {
                return Err(Retry);
            }
            match level.below() {
                _ if !LOCKS_EMPTY && entry == Descriptor::INVALID => *at = next,
                Some(below) if entry.is_table(level) => {
                    let part = *at..next.min(end);
                    // A table of level 1 is unlinked only when it is empty: with its content, U4 would take too long.
                    let cell = table.entry(index);
                    if part == (here..next) && below > Level::L1 {
                        self.unlink((table, level, cell), here, &part, false, then)?;
                    } else {
                        self.table(self.stage2.table(entry), below, then, at, end)?;
                        // If another CPU gets in the way, the retry starts at this part again, so the table is not left
                        // behind.
                        *at = part.start;
                        self.unlink((table, level, cell), here, &part, true, then)?;
                    }
                    *at = next;
                }
                _ => self.leaves((table, level, index), *then, at, end)?,
            }
            index += ((*at - here) >> shift) as usize;
        }
        Ok(())
    }

    /// Unlinks the table that the entry at `here` leads to (U1 to U5). With `if_empty`, only if the table has no
    /// entries left. `part` is the unmapped part of what the table maps.
    fn unlink(
        &mut self,
        (table, level, cell): (Table<'_, G>, Level, Cell<'_, G>),
        here: Ipa,
        part: &IpaRange,
        if_empty: bool,
        then: &mut Snapshot,
    ) -> Result<(), Retry> {
        let stage2 = self.stage2;
        let Some(below) = level.below() else { return Ok(()) };
        if if_empty {
            let entry = cell.look();
            if !stage2.sequence.is_still(*then) || !entry.is_table(level) {
                return Err(Retry);
            }
            let counts = stage2.platform().metadata(entry.address()).peek();
            if counts.is_some_and(|counts| counts.live() > 0 || counts.busy() > 0) {
                return Ok(());
            }
        }
        let mut parent = stage2.lock_table(table.pa(), table.len(), level, *then)?;
        let entry = cell.read();
        if !entry.is_table(level) {
            return Err(Retry);
        }
        // U1. If an entry of the table is busy, the parent is unlocked too: other CPUs need not wait for that entry.
        let entries = stage2.geometry().granule().entries();
        let child = stage2.lock_whatever(entry.address(), entries, below).quiet()?;
        if if_empty && child.counts.live() > 0 {
            return Ok(());
        }
        parent.take_unrecorded_in(cell, entry, self.stale);
        let before = stage2.finish_unlink(child);
        drop(parent);
        self.changed.table(part.clone());
        self.unlinked.push(UnlinkedTable { table: entry.address(), level: below, ipa: here }, stage2);
        // Another CPU has counted between W4, under the lock, and this count, which has no acquire. This CPU may still
        // read the link that the other broke further up, and would follow it (loom: `unmapping_goes_on_after_a_table`).
        if before != *then {
            return Err(Retry);
        }
        *then = before.next();
        Ok(())
    }

    /// Breaks the leaves from `index` on, up to the next table, the end of this table, or `end`.
    #[inline(never)] // a table that is unlinked as a whole has no use for its registers
    fn leaves(
        &mut self,
        (table, level, index): (Table<'_, G>, Level, usize),
        then: Snapshot,
        at: &mut Ipa,
        end: Ipa,
    ) -> Result<(), Retry> {
        let shift = self.stage2.geometry().granule().span_shift(level);
        let first = at.align_down(1 << shift);
        let locked = self.stage2.lock_table(table.pa(), table.len(), level, then)?.quiet()?;
        let wanted = ((end - first - 1) >> shift) as usize + 1;
        let last = table.len().min(index.saturating_add(wanted));
        // Since this walk was at the entries before, another CPU may have made a contiguous group of them and this one.
        let start = whole_groups(&locked, index..index + 1).start;
        let first = first - (((index - start) as u64) << shift);
        let done = if !R::WATCHES && !locked.leaves_lines() {
            self.take_quietly(locked, start..last, first)
        } else if G::GROUPS {
            // All of a group is broken under one lock (module `group`), and none reaches over a multiple of the most.
            let whole = (start + MOST_GROUPED) & !(MOST_GROUPED - 1);
            self.take_reported::<MOST_GROUPED>(locked, start..last.min(whole), first)
        } else {
            self.take_reported::<BATCH>(locked, start..last, first)
        };
        // If `done` is `index`, a table was linked there. `at` must not go back to the start of the entry.
        *at = (*at).max(first + (((done - start) as u64) << shift));
        Ok(())
    }

    /// Breaks leaves that need not be reported or cleaned. Returns the index where it ended.
    fn take_quietly(&mut self, mut locked: Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) -> usize {
        let mut span = Span::default();
        for index in indexes.clone() {
            let entry = locked.entry(index);
            if entry.is_table(locked.level) {
                return self.taken(&locked, span, first, index);
            }
            let number = index - indexes.start;
            if !entry.is_valid() {
                self.vacant(first, number, (locked.level, entry));
            } else if self.is_inside(first, number, (locked.level, entry)) {
                locked.take_unrecorded(index, self.stale);
                span.add(number);
            }
        }
        self.taken(&locked, span, first, indexes.end)
    }

    /// Whether the range contains the whole leaf that is `number` leaves after `first`, and its contiguous group.
    #[inline(always)]
    fn is_inside(&mut self, first: Ipa, number: usize, (level, entry): (Level, Descriptor<G>)) -> bool {
        let shift = self.stage2.geometry().granule().span_shift(level);
        let whole = leaf_or_group(entry, first + ((number as u64) << shift), level);
        let inside = level == Level::L3 && !entry.is_contiguous()
            || (whole.start >= self.range.start && whole.end <= self.range.end);
        self.beyond |= !inside;
        inside
    }

    /// A vacant entry, `number` entries after `first`. If it is stale, another CPU removed what was there, and its flush may
    /// be pending. This removal may be counted itself.
    #[inline(always)]
    fn vacant(&mut self, first: Ipa, number: usize, (level, entry): (Level, Descriptor<G>)) {
        if self.stage2.is_unflushed(entry, u64::from(R::WATCHES)) {
            self.stale(first, number, level);
        }
    }

    /// Adds a stale entry to this flush. Above level 3 it may have been a table.
    #[cold]
    fn stale(&mut self, first: Ipa, number: usize, level: Level) {
        let span = self.stage2.geometry().granule().span(level);
        let start = first + number as u64 * span;
        if level == Level::L3 {
            self.changed.leaves(start..start + span, level);
        } else {
            self.changed.table(start..start + span);
        }
    }

    fn taken(&mut self, locked: &Locked<'_, P, G>, span: Span, first: Ipa, done: usize) -> usize {
        let shift = self.stage2.geometry().granule().span_shift(locked.level);
        self.changed.leaves(span.addresses(first, shift), locked.level);
        done
    }

    /// Breaks at most `MOST` leaves and reports them. Returns the index where it ended.
    fn take_reported<const MOST: usize>(
        &mut self,
        mut locked: Locked<'_, P, G>,
        indexes: Range<usize>,
        first: Ipa,
    ) -> usize {
        let (stage2, level, cleans) = (self.stage2, locked.level, locked.leaves_lines());
        let mut old = [Descriptor::INVALID; MOST];
        let mut span = Span::default();
        let mut done = indexes.start;
        for ((number, old), _) in old.iter_mut().enumerate().zip(indexes.clone()) {
            let entry = locked.entry(done);
            if entry.is_table(level) {
                break;
            }
            if !entry.is_valid() {
                self.vacant(first, number, (level, entry));
            } else if self.is_inside(first, number, (level, entry)) {
                *old = locked.take(done, self.stale);
                span.add(number);
            }
            done += 1;
        }
        drop(locked);
        let shift = stage2.geometry().granule().span_shift(level);
        let range = span.addresses(first, shift);
        if cleans && range.start < range.end {
            stage2.tlb().invalidate(&Scope { range: range.clone(), level: Some(level), tables: false });
            stage2.claim_flushed(range);
        } else {
            self.changed.leaves(range, level);
        }
        for (number, &descriptor) in old.iter().enumerate().filter(|(_, old)| old.is_valid()) {
            let ipa = first + ((number as u64) << shift);
            stage2.report_removed(Leaf { ipa, level, descriptor }, &mut self.removed, self.removal);
        }
        done
    }
}
