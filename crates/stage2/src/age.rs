// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What hardware recorded in leaves, collected: accesses (age) and writes (clean, disarm).
//!
//! Collecting accesses needs no flush: a TLB that still holds the entry delays the next record, no more. Collecting
//! writes does: until the flush is complete, a guest may write through its TLB without a record.
//!
//! What is found is told after the table was unlocked, so the caller may do what it likes.

use core::ops::Range;

use crate::descent::Locked;
use crate::pass::{MOST_ENTRIES, Pass};
use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::record::Counts;
use crate::table::ROW;
use crate::tlb::{Changed, Span};
use crate::{Descriptor, Error, Ipa, IpaRange, Level, Narrowed, Pending, Stage2};

/// Leaves that hardware had marked: up to 64 of the same level, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The address of the first of the 64.
    pub ipa: Ipa,
    /// Their level.
    pub level: Level,
    /// Bit `n` stands for the leaf behind the `n` first ones.
    pub mask: u64,
}

impl Marked {
    /// The addresses of the leaves that were marked, ascending, with this many bytes to a leaf.
    pub fn leaves(self, span: u64) -> impl Iterator<Item = Ipa> {
        let mut left = self.mask;
        core::iter::from_fn(move || {
            let bit = left.checked_ilog2().map(|_| left.trailing_zeros())?;
            left &= left - 1;
            Some(self.ipa + u64::from(bit) * span)
        })
    }
}

impl<P: Platform> Stage2<P> {
    /// Takes the access flags out of the leaves in `range`, and tells which had one. TLBs are not invalidated.
    /// Blocks are told of, and cleared, whole.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn age(&self, range: IpaRange, young: &mut dyn FnMut(Marked)) -> Result<(), Error> {
        self.geometry().check(&range)?;
        self.pass(&range, &mut Age { found: Found::default(), young });
        Ok(())
    }

    /// Takes the recorded writes out of the leaves in `range` that hardware marks (DBM): each such leaf becomes
    /// clean, and `dirty` is told which. Blocks are told of, and cleaned, whole.
    ///
    /// Only after the flush is complete may the memory be read.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn clean(&self, range: IpaRange, dirty: &mut dyn FnMut(Marked)) -> Result<Pending<'_, P, Narrowed>, Error> {
        self.geometry().check(&range)?;
        self.begin_to_narrow();
        let mut pass = Clean { found: Found::default(), changed: Changed::default(), dirty };
        self.pass(&range, &mut pass);
        Ok(Pending::narrowed(self, pass.changed, range))
    }
}

impl<P: Platform> Stage2<P> {
    /// Takes write access, and DBM, from the leaves in `range` whose writes hardware records, and tells which were dirty up
    /// to that moment: the way from hardware's records to [`write_protect`](Self::write_protect), at which no record is
    /// lost. Other leaves stay as they are. Blocks are told of, and changed, whole.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn disarm(&self, range: IpaRange, dirty: &mut dyn FnMut(Marked)) -> Result<Pending<'_, P, Narrowed>, Error> {
        self.geometry().check(&range)?;
        self.begin_to_narrow();
        let mut pass = Disarm { found: Found::default(), changed: Changed::default(), dirty };
        self.pass(&range, &mut pass);
        Ok(Pending::narrowed(self, pass.changed, range))
    }
}

/// What was found in one table.
pub(crate) struct Found {
    masks: [u64; MOST_ENTRIES / 64],
    /// Of a leaf's size.
    pub(crate) shift: u32,
}

impl Default for Found {
    fn default() -> Self {
        Self { masks: [0; _], shift: 0 }
    }
}

impl Found {
    /// Adds those from `at` on whose bits are set: at most eight, or as many as there are.
    #[inline(always)]
    pub(crate) fn add(&mut self, at: usize, mask: u32) {
        if mask == 0 {
            return;
        }
        self.masks[at / 64] |= u64::from(mask) << (at % 64);
    }

    /// Tells what was found from `first` on, and forgets it.
    pub(crate) fn tell(&mut self, level: Level, first: Ipa, to: &mut dyn FnMut(Marked)) {
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

impl<P: Platform> Pass<P> for Age<'_> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, _: Ipa) {
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let cells = locked.table.cells(indexes.start, indexes.end);
        if locked.counts.armed() > 0 {
            // Where hardware may record a write at this moment, the bit alone is taken.
            for (at, index) in indexes.enumerate() {
                if locked.entry(index).is_accessed() {
                    locked.table.entry(index).clear(Descriptor::ACCESSED, locked.stage2.platform());
                    self.found.add(at, 1);
                }
            }
            return;
        }
        let (rows, rest) = cells.as_chunks::<ROW>();
        for (number, cells) in rows.iter().enumerate() {
            self.found.add(number * ROW, age_row(cells));
        }
        self.found.add(rows.len() * ROW, age_row(rest));
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.tell(level, first, self.young);
    }
}

/// Takes the access flags of at most eight leaves, where hardware records no writes; which had one.
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

/// Makes leaves clean that hardware has marked dirty.
struct Clean<'a> {
    found: Found,
    changed: Changed,
    dirty: &'a mut dyn FnMut(Marked),
}

impl<P: Platform> Pass<P> for Clean<'_> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.armed() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, first: Ipa) {
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let mut span = Span::default();
        let cells = locked.table.cells(indexes.start, indexes.end);
        for (number, cells) in cells.chunks(ROW).enumerate() {
            // Most rows are clean: seen at a glance.
            let writable = cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) & Descriptor::WRITE;
            if writable == 0 {
                continue;
            }
            let dirty = marked::<{ Descriptor::WRITE }>(cells) & marked::<{ Descriptor::DIRTY_BY_HARDWARE }>(cells);
            let mut left = dirty;
            while left != 0 {
                let index = indexes.start + number * ROW + left.trailing_zeros() as usize;
                locked.take_bits(index, Descriptor::WRITE);
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
        self.found.tell(level, first, self.dirty);
    }
}

/// Ends hardware's records.
struct Disarm<'a> {
    found: Found,
    changed: Changed,
    dirty: &'a mut dyn FnMut(Marked),
}

impl<P: Platform> Pass<P> for Disarm<'_> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.armed() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, first: Ipa) {
        const BITS: u64 = Descriptor::WRITE | Descriptor::DIRTY_BY_HARDWARE;
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let mut span = Span::default();
        for (at, index) in indexes.enumerate() {
            if !locked.entry(index).is_armed() {
                continue;
            }
            let old = locked.clear(index, BITS);
            self.found.add(at, u32::from(old.is_hardware_dirty()));
            span.add(at);
        }
        self.changed.leaves(span.addresses(first, self.found.shift), locked.level);
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.tell(level, first, self.dirty);
    }
}

/// Which of at most eight entries have this bit. An invalid entry has none, as none is busy.
#[inline(always)]
pub(crate) fn marked<const BIT: u64>(cells: &[Word]) -> u32 {
    let mut mask = 0;
    for (index, cell) in cells.iter().enumerate() {
        mask |= (cell.load(Ordering::Relaxed) >> BIT.trailing_zeros() & 1) << index;
    }
    mask as u32
}
