// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Permission downgrades of memory that stays mapped.
//!
//! A downgrade needs no break (Arm ARM DDI 0487K.a, D8.16.1). It holds only after every CPU's TLB is flushed, so the
//! caller gets a [`Pending`] flush.
//!
//! [`protect`](Stage2::protect) changes a leaf with DBM by read-modify-write, so a write that hardware records at this
//! moment is not lost. All other changes are stores, those of [`write_protect`](Stage2::write_protect) too. A store may
//! lose an access flag that hardware sets at this moment: the guest's next access sets it again.

use core::ops::Range;

use crate::counts::Counts;
use crate::group::leaf_or_group;
use crate::lockless_walk::Locked;
use crate::pass::Pass;
use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::table::{Cell, ROW};
use crate::tlb::{Changed, Span};
use crate::{Access, Descriptor, Downgrade, Error, Granule, Ipa, IpaRange, Pending, Stage2, TableSource};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Takes write access from every leaf in `range`. A block, or a contiguous group, that reaches beyond the range
    /// is protected as a whole.
    ///
    /// DBM is cleared too, so hardware grants no writes. What hardware recorded is lost: to collect it, call
    /// [`clear_dbm_and_write`](Self::clear_dbm_and_write) first.
    ///
    /// Guests may write until the flush is complete, so the memory is stable only after it.
    ///
    /// # Errors
    ///
    /// `range` is not whole pages inside the IPA space.
    pub fn write_protect(&self, range: IpaRange) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.geometry().check(&range)?;
        self.begin_downgrade();
        let mut pass = WriteProtect { changed: Changed::default() };
        self.pass(&range, &mut pass);
        Ok(Pending::downgrade(self, pass.changed, range))
    }

    /// [`write_protect`](Self::write_protect) of the pages that `mask` selects: bit `n` is the page `n` pages after
    /// `first`. The pages between keep their access.
    ///
    /// # Errors
    ///
    /// A selected page is outside the IPA space, or `first` is not aligned to a page.
    pub fn write_protect_mask(&self, first: Ipa, mask: u64) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        let range = self.masked_range(first, mask)?;
        self.begin_downgrade();
        let mut pass = WriteProtect { changed: Changed::default() };
        self.pass_masked(first, mask, &range, &mut pass);
        Ok(Pending::downgrade(self, pass.changed, range))
    }

    /// Takes all access that is not in `keep` from every leaf in `range`. Without `keep.write`, DBM is cleared too.
    ///
    /// Blocks that reach beyond the range are split first, which takes table pages. Contiguous groups that do lose their
    /// hint.
    ///
    /// # Errors
    ///
    /// As [`Grant::map`](crate::Grant::map). No access was taken then, unless another CPU coalesced a block across an
    /// end of the range during the call. The block at one end may be split.
    pub fn protect(
        &self,
        range: IpaRange,
        keep: Access,
        tables: &mut impl TableSource<G>,
    ) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.geometry().check(&range)?;
        self.begin_downgrade();
        let mut pass = Protect { range: range.clone(), keep, changed: Changed::default(), beyond: true };
        while core::mem::take(&mut pass.beyond) {
            if let Err(error) = self.split_ends(&range, tables) {
                let _ = Pending::downgrade(self, pass.changed, range).complete();
                return Err(error);
            }
            self.pass(&range, &mut pass);
        }
        Ok(Pending::downgrade(self, pass.changed, range))
    }
}

/// Visitor of [`Stage2::write_protect`].
struct WriteProtect {
    changed: Changed,
}

impl<P: Platform, G: Granule> Pass<P, G> for WriteProtect {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.writable() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        let mut span = Span::default();
        if locked.counts.hardware_tracked() > 0 {
            for (at, word) in locked.table.cells(indexes.start, indexes.end).iter().enumerate() {
                let cell = Cell::of(word);
                // No entry is busy here, and an invalid entry that is not busy has neither bit set.
                if cell.read().raw() & WRITES != 0 {
                    locked.take_bits(cell, WRITES);
                    span.add(at);
                }
            }
        } else {
            let done = write_protect_cells(locked.table.cells(indexes.start, indexes.end), &mut span);
            locked.counts.remove_writable(done);
        }
        let shift = locked.stage2.geometry().granule().span_shift(locked.level);
        self.changed.leaves(span.addresses(first, shift), locked.level);
    }
}

/// The bits that let a guest write, or let hardware grant the write.
const WRITES: u64 = Descriptor::WRITE | Descriptor::DIRTY_BY_HARDWARE;

/// Takes write access from the leaves in `cells`, none of which has DBM. Returns the number of leaves changed.
#[inline(always)]
fn write_protect_cells(cells: &[Word], span: &mut Span) -> u64 {
    let (rows, rest) = cells.as_chunks::<ROW>();
    let mut done = 0;
    let mut row = |cells: &[Word], at: usize| {
        let writable = write_protect_row(cells);
        if writable != 0 {
            done += u64::from(if writable == 0xff { 8 } else { writable.count_ones() });
            span.add_mask(at, writable);
        }
    };
    for (number, cells) in rows.iter().enumerate() {
        row(cells, number * ROW);
    }
    if !rest.is_empty() {
        row(rest, rows.len() * ROW);
    }
    done
}

/// The same for one row of at most eight. Returns the changed leaves as a bit mask.
#[inline(always)]
fn write_protect_row(cells: &[Word]) -> u32 {
    // No entry is busy here, and an invalid entry that is not busy has no bit set.
    let mut writable = 0;
    for (index, cell) in cells.iter().enumerate() {
        writable |= (cell.load(Ordering::Relaxed) & Descriptor::WRITE) << index;
    }
    if writable != 0 {
        for cell in cells {
            cell.store(cell.load(Ordering::Relaxed) & !Descriptor::WRITE, Ordering::Relaxed);
        }
    }
    (writable >> Descriptor::WRITE.trailing_zeros()) as u32
}

/// Visitor of [`Stage2::protect`].
struct Protect {
    range: IpaRange,
    keep: Access,
    changed: Changed,
    /// A block reached beyond the range: another CPU coalesced it after the ends were split.
    beyond: bool,
}

impl<P: Platform, G: Granule> Pass<P, G> for Protect {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        let (keep, features) = (self.keep, locked.stage2.features());
        let shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let mut span = Span::default();
        for index in indexes.clone() {
            let start = first + (((index - indexes.start) as u64) << shift);
            if !locked.entry(index).is_valid() {
                continue;
            }
            let whole = leaf_or_group(locked.entry(index), start, locked.level);
            if whole.start < self.range.start || whole.end > self.range.end {
                self.beyond = true;
                continue;
            }
            let (old, new) = locked.change(index, |old| {
                let new = old.with_access(old.access().intersection(keep), features);
                if keep.write { new } else { new.without(Descriptor::DIRTY_BY_HARDWARE) }
            });
            if old != new {
                span.add(index - indexes.start);
            }
        }
        self.changed.leaves(span.addresses(first, shift), locked.level);
    }
}
