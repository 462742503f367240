// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collects what hardware recorded in leaves: accesses (`age`) and writes (`clean`, `clear_dbm_and_write`).
//!
//! Collecting accesses needs no flush: a TLB that still holds the entry only delays the next record. Collecting writes
//! needs one: until the flush is complete, a guest may write through its TLB without a record.
//!
//! A callback runs after the table was unlocked, so it may call any operation.

use core::ops::Range;

use crate::contiguous::group_around;
use crate::counts::Counts;
use crate::lockless_walk::Locked;
use crate::pass::{MOST_ENTRIES, Pass};
use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::table::{Cell, ROW};
use crate::tlb::{Changed, Span};
use crate::{Descriptor, Downgrade, Error, Granule, Ipa, IpaRange, Level, Pending, Stage2};

/// Leaves that hardware had marked: up to 64 neighbours of the same level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The address of the first of the 64.
    pub ipa: Ipa,
    /// Their level.
    pub level: Level,
    /// Bit `n` is set if the `n`th leaf, counted from 0, was marked.
    pub mask: u64,
}

impl Marked {
    /// The addresses of the marked leaves, ascending. `span` is the size of one leaf in bytes.
    pub fn leaves(self, span: u64) -> impl Iterator<Item = Ipa> {
        let mut left = self.mask;
        core::iter::from_fn(move || {
            let bit = left.checked_ilog2().map(|_| left.trailing_zeros())?;
            left &= left - 1;
            Some(self.ipa + u64::from(bit) * span)
        })
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Clears the access flags of the leaves in `range`, and calls `young` with those that had one set. Does not
    /// invalidate TLBs. A block that lies partly in `range` is cleared and reported whole. So is a contiguous group: if one
    /// of its leaves had a flag set, all are reported.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn age(&self, range: IpaRange, young: &mut dyn FnMut(Marked)) -> Result<(), Error> {
        self.geometry().check(&range)?;
        self.pass(&range, &mut Age { found: Found::default(), young });
        Ok(())
    }

    /// Makes the dirty hardware-tracked leaves in `range` clean, and calls `dirty` with them. A block that lies partly
    /// in `range` is cleaned and reported whole.
    ///
    /// The caller may read the memory, for example to copy it, only after the flush is complete.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn clean(&self, range: IpaRange, dirty: &mut dyn FnMut(Marked)) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.geometry().check(&range)?;
        self.begin_downgrade();
        let mut pass = Clean { found: Found::default(), changed: Changed::default(), dirty };
        self.pass(&range, &mut pass);
        Ok(Pending::downgrade(self, pass.changed, range))
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Clears write permission and DBM of the hardware-tracked leaves in `range`, and calls `dirty` with those that
    /// were dirty up to that moment. No record is lost on the way from hardware tracking to
    /// [`write_protect`](Self::write_protect). Other leaves stay as they are. A block that lies partly in `range` is
    /// changed and reported whole.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn clear_dbm_and_write(
        &self,
        range: IpaRange,
        dirty: &mut dyn FnMut(Marked),
    ) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.geometry().check(&range)?;
        self.begin_downgrade();
        let mut pass = ClearDbmAndWrite { found: Found::default(), changed: Changed::default(), dirty };
        self.pass(&range, &mut pass);
        Ok(Pending::downgrade(self, pass.changed, range))
    }
}

/// The marked leaves of one table.
pub(crate) struct Found {
    masks: [u64; MOST_ENTRIES / 64],
    /// log2 of a leaf's size in bytes.
    pub(crate) shift: u32,
}

impl Default for Found {
    fn default() -> Self {
        Self { masks: [0; _], shift: 0 }
    }
}

impl Found {
    /// Adds the leaves from `at` on whose bits are set in `mask`: one row, which is at most eight.
    #[inline(always)]
    pub(crate) fn add(&mut self, at: usize, mask: u32) {
        if mask == 0 {
            return;
        }
        if let Some(word) = self.masks.get_mut(at / 64) {
            *word |= u64::from(mask) << (at % 64);
        }
    }

    /// Adds all leaves of each contiguous group of which one was found. `indexes` are the entries that were searched, and
    /// whole groups.
    #[inline(always)]
    fn complete_groups<G: Granule>(&mut self, locked: &Locked<'_, impl Platform, G>, indexes: &Range<usize>) {
        if !G::GROUPS {
            return;
        }
        for (at, index) in indexes.clone().enumerate() {
            let found = self.masks.get(at / 64).is_some_and(|mask| mask >> (at % 64) & 1 == 1);
            if found && locked.entry(index).is_contiguous() {
                for index in group_around::<G>(index, locked.level) {
                    self.add(index - indexes.start, 1);
                }
            }
        }
    }

    /// Calls `to` with the leaves that were found, counted from `first`, and clears them.
    pub(crate) fn report(&mut self, level: Level, first: Ipa, to: &mut dyn FnMut(Marked)) {
        for (number, mask) in self.masks.iter_mut().enumerate() {
            if *mask != 0 {
                let ipa = first + ((number as u64 * 64) << self.shift);
                to(Marked { ipa, level, mask: core::mem::take(mask) });
            }
        }
    }
}

/// Clears access flags.
struct Age<'a> {
    found: Found,
    young: &'a mut dyn FnMut(Marked),
}

impl<P: Platform, G: Granule> Pass<P, G> for Age<'_> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, _: Ipa) {
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let cells = locked.table.cells(indexes.start, indexes.end);
        if locked.counts.hardware_tracked() > 0 {
            // Hardware may record a write at this moment, so only the one bit is cleared, by a read-modify-write.
            for (words, mask) in cells.chunks(64).zip(&mut self.found.masks) {
                for (at, word) in words.iter().enumerate() {
                    let cell = Cell::<G>::of(word);
                    if cell.read().is_accessed() {
                        cell.clear_bits(Descriptor::ACCESSED, locked.stage2.platform());
                        *mask |= 1 << at;
                    }
                }
            }
            return self.found.complete_groups(locked, &indexes);
        }
        let (rows, rest) = cells.as_chunks::<ROW>();
        for (number, cells) in rows.iter().enumerate() {
            self.found.add(number * ROW, age_row(cells));
        }
        self.found.add(rows.len() * ROW, age_row(rest));
        self.found.complete_groups(locked, &indexes);
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.report(level, first, self.young);
    }
}

/// Clears the access flags of at most eight leaves without DBM, and returns which had one.
#[inline(always)]
fn age_row(cells: &[Word]) -> u32 {
    let young = marked::<{ Descriptor::ACCESSED }>(cells);
    if young != 0 {
        for cell in cells {
            cell.store(cell.load(Ordering::Relaxed) & !Descriptor::ACCESSED, Ordering::Relaxed);
        }
    }
    young
}

/// Makes dirty hardware-tracked leaves clean.
struct Clean<'a> {
    found: Found,
    changed: Changed,
    dirty: &'a mut dyn FnMut(Marked),
}

impl<P: Platform, G: Granule> Pass<P, G> for Clean<'_> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.hardware_tracked() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let mut span = Span::default();
        let cells = locked.table.cells(indexes.start, indexes.end);
        for (number, cells) in cells.chunks(ROW).enumerate() {
            // Most rows are clean: one test for all of a row.
            let writable = cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) & Descriptor::WRITE;
            if writable == 0 {
                continue;
            }
            let dirty = marked::<{ Descriptor::WRITE }>(cells) & marked::<{ Descriptor::DIRTY_BY_HARDWARE }>(cells);
            let mut left = dirty;
            while left != 0 {
                // Each bit of `dirty` is one of the cells.
                if let Some(word) = cells.get(left.trailing_zeros() as usize) {
                    locked.take_bits(Cell::of(word), Descriptor::WRITE);
                }
                left &= left - 1;
            }
            if dirty != 0 {
                self.found.add(number * ROW, dirty);
                span.add_mask(number * ROW, dirty);
            }
        }
        self.changed.leaves(span.addresses(first, self.found.shift), locked.level);
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.report(level, first, self.dirty);
    }
}

/// Clears write permission and DBM of hardware-tracked leaves.
struct ClearDbmAndWrite<'a> {
    found: Found,
    changed: Changed,
    dirty: &'a mut dyn FnMut(Marked),
}

impl<P: Platform, G: Granule> Pass<P, G> for ClearDbmAndWrite<'_> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.hardware_tracked() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        const BITS: u64 = Descriptor::WRITE | Descriptor::DIRTY_BY_HARDWARE;
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let mut span = Span::default();
        for (at, index) in indexes.enumerate() {
            if !locked.entry(index).is_hardware_tracked() {
                continue;
            }
            let old = locked.clear(index, BITS);
            self.found.add(at, u32::from(old.is_hardware_dirty()));
            span.add(at);
        }
        self.changed.leaves(span.addresses(first, self.found.shift), locked.level);
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.report(level, first, self.dirty);
    }
}

/// Which of at most eight entries have this bit set. Invalid entries never count: none is busy during a pass, and a
/// stale entry has none of the tested bits.
#[inline(always)]
pub(crate) fn marked<const BIT: u64>(cells: &[Word]) -> u32 {
    let mut mask = 0;
    for (index, cell) in cells.iter().enumerate() {
        mask |= (cell.load(Ordering::Relaxed) >> BIT.trailing_zeros() & 1) << index;
    }
    mask as u32
}
