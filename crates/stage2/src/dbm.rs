// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty tracking by hardware, page by page (DBM, FEAT_HAFDBS).
//!
//! A leaf is *hardware-tracked* if DBM is set. While S2AP\[1\] is clear, it is *clean*. The first write makes hardware
//! set S2AP\[1\] without a fault, and then it is *dirty*. Without DBM, a leaf with S2AP\[1\] clear is read-only. This
//! module sets DBM on pages only: the record of a block would not show which of its pages were written.
//!
//! Hardware may record a write in any leaf of a contiguous group, so its pages lose the hint before they get DBM.
//!
//! Setting DBM needs no flush: an old TLB entry causes at most one more fault, which [`relax`](Stage2::relax) ends.
//! Making a leaf clean needs one, like any removal of write permission.
//!
//! Hardware changes a leaf with DBM at any time, so such a leaf is changed by read-modify-writes. (The series of
//! Kolothum 2023 lost writes by a plain store.)

use core::ops::Range;

use crate::age::{Found, marked};
use crate::counts::Counts;
use crate::group::has_groups;
use crate::lockless_walk::Locked;
use crate::pass::Pass;
use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::table::ROW;
use crate::tlb::{Changed, Span};
use crate::{Descriptor, Downgrade, Error, Granule, Ipa, IpaRange, Level, Marked, Pending, Stage2};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Sets DBM on the pages that are mapped in `range`. A writable page stays writable, and counts as dirty. A
    /// read-only page becomes clean, and hardware may make it dirty. So the caller must know that the guest may write
    /// all of `range`. Blocks stay as they are.
    ///
    /// Ordering: if the caller then stores a flag with release, a CPU that loads the flag with acquire finds these
    /// leaves hardware-tracked in its own passes.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space; [`Error::NoDirtyState`].
    pub fn set_dbm(&self, range: IpaRange) -> Result<(), Error> {
        self.check_dirty_state()?;
        self.geometry().check(&range)?;
        self.without_groups(&range, || {
            let mut pass = SetDbm::default();
            self.pass(&range, &mut pass);
            pass.grouped
        });
        Ok(())
    }

    /// Sets DBM on the pages that are mapped in `range`, and makes them clean: hardware may make each of them dirty, also one that
    /// was read-only. So the caller must know that the guest may write all of `range`. A block gets no DBM: it is write-protected
    /// whole, even if it lies only partly in `range`. So [`split`](Self::split) blocks first.
    ///
    /// The caller may read the memory, for example to copy it, only after the flush is complete.
    ///
    /// # Errors
    ///
    /// As [`set_dbm`](Self::set_dbm).
    pub fn set_dbm_clean(&self, range: IpaRange) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.check_dirty_state()?;
        self.geometry().check(&range)?;
        self.begin_downgrade();
        let mut pass = SetDbmClean::default();
        self.without_groups(&range, || {
            self.pass(&range, &mut pass);
            core::mem::take(&mut pass.grouped)
        });
        Ok(Pending::downgrade(self, pass.changed, range))
    }

    /// [`set_dbm_clean`](Self::set_dbm_clean) for those of the 64 pages from `first` on whose bits are set in `mask`. The pages
    /// between stay as they are.
    ///
    /// # Errors
    ///
    /// A page is outside the IPA space, or `first` is not aligned; [`Error::NoDirtyState`].
    pub fn set_dbm_clean_mask(&self, first: Ipa, mask: u64) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.check_dirty_state()?;
        let range = self.masked_range(first, mask)?;
        self.begin_downgrade();
        let mut pass = SetDbmClean::default();
        self.without_groups(&range, || {
            self.pass_masked(first, mask, &range, &mut pass);
            core::mem::take(&mut pass.grouped)
        });
        Ok(Pending::downgrade(self, pass.changed, range))
    }

    /// Clears DBM in `range`, and keeps the records: a dirty leaf stays writable, a clean leaf becomes read-only. After
    /// the flush hardware adds no record, and [`written`](Self::written) reports the records.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn clear_dbm(&self, range: IpaRange) -> Result<Pending<'_, P, Downgrade, G>, Error> {
        self.geometry().check(&range)?;
        self.begin_downgrade();
        let mut pass = ClearDbm { changed: Changed::default() };
        self.pass(&range, &mut pass);
        Ok(Pending::downgrade(self, pass.changed, range))
    }

    /// Calls `dirty` with the hardware-tracked leaves in `range` that are dirty, and changes nothing. While the guest
    /// runs, the result is a hint of what was written up to now.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn dirty(&self, range: IpaRange, dirty: &mut dyn FnMut(Marked)) -> Result<(), Error> {
        self.geometry().check(&range)?;
        self.pass(&range, &mut Look::<true> { found: Found::default(), reported: dirty });
        Ok(())
    }

    /// Calls `written` with the leaves in `range` that have write permission (S2AP\[1\]), with or without DBM, and
    /// changes nothing. Clean leaves are not reported.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn written(&self, range: IpaRange, written: &mut dyn FnMut(Marked)) -> Result<(), Error> {
        self.geometry().check(&range)?;
        self.pass(&range, &mut Look::<false> { found: Found::default(), reported: written });
        Ok(())
    }

    fn check_dirty_state(&self) -> Result<(), Error> {
        if self.features().hardware_dirty_state { Ok(()) } else { Err(Error::NoDirtyState) }
    }
}

/// Sets DBM on pages.
#[derive(Default)]
struct SetDbm {
    /// Some pages are still in contiguous groups, and were left as they are: another CPU made the groups meanwhile.
    grouped: bool,
}

impl<P: Platform, G: Granule> Pass<P, G> for SetDbm {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > counts.hardware_tracked()
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, _: Ipa) {
        if locked.level < Level::L3 {
            return;
        }
        if has_groups(locked, &indexes) {
            self.grouped = true;
            return;
        }
        if locked.counts.hardware_tracked() == 0 {
            set_dbm_in_cells::<false>(locked, &indexes, &mut Span::default());
            return;
        }
        for index in indexes {
            if locked.entry(index).is_valid() {
                locked.change(index, Descriptor::with_dirty_by_hardware);
            }
        }
    }
}

/// Sets DBM on pages, and makes them clean.
#[derive(Default)]
struct SetDbmClean {
    changed: Changed,
    /// As in [`SetDbm`], for blocks too.
    grouped: bool,
}

impl<P: Platform, G: Granule> Pass<P, G> for SetDbmClean {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        if has_groups(locked, &indexes) {
            self.grouped = true;
            return;
        }
        let mut span = Span::default();
        if locked.level == Level::L3 && locked.counts.hardware_tracked() == 0 {
            set_dbm_in_cells::<true>(locked, &indexes, &mut span);
        } else {
            clean_one_by_one(locked, &indexes, &mut span);
        }
        let shift = locked.stage2.geometry().granule().span_shift(locked.level);
        self.changed.leaves(span.addresses(first, shift), locked.level);
    }
}

/// Makes leaves clean one by one, and sets DBM on pages: for a table in which some leaves have DBM, or all leaves are
/// blocks. Adds the leaves that lost write permission to `span`.
#[inline(always)]
fn clean_one_by_one<G: Granule>(locked: &mut Locked<'_, impl Platform, G>, indexes: &Range<usize>, span: &mut Span) {
    let dbm = if locked.level == Level::L3 { Descriptor::DIRTY_BY_HARDWARE } else { 0 };
    for (at, index) in indexes.clone().enumerate() {
        let cell = locked.table.entry(index);
        let entry = cell.read();
        // A leaf with DBM keeps it, and its counts do not change. Only S2AP[1] is cleared, if it is set.
        if dbm != 0 && entry.is_hardware_tracked() {
            if entry.is_writable() {
                cell.clear_bits(Descriptor::WRITE, locked.stage2.platform());
                span.add(at);
            }
            continue;
        }
        if !entry.is_valid() {
            continue;
        }
        let clean = |old: Descriptor<G>| Descriptor::from_raw(old.without(WRITES).raw() | dbm);
        let (old, new) = locked.change(index, clean);
        // A block that loses DBM needs the flush too: by an old TLB entry with DBM, hardware still grants writes.
        if old.raw() & !new.raw() & WRITES != 0 {
            span.add(at);
        }
    }
}

/// Sets DBM on the leaves of a level 3 table in which no leaf has DBM yet, so that plain stores do. With `CLEAN` it
/// also clears their write permission, and adds the leaves that had it to `span`.
#[inline(always)]
fn set_dbm_in_cells<const CLEAN: bool>(
    locked: &mut Locked<'_, impl Platform, impl Granule>,
    indexes: &Range<usize>,
    span: &mut Span,
) {
    let (rows, rest) = locked.table.cells(indexes.start, indexes.end).as_chunks::<ROW>();
    let (mut leaves, mut were_writable) = (0, 0);
    let mut row = |cells: &[Word], at: usize| {
        let writable = set_dbm_in_row::<CLEAN>(cells, &mut leaves);
        were_writable += u64::from(writable.count_ones());
        if CLEAN && writable != 0 {
            span.add_mask(at, writable);
        }
    };
    for (number, cells) in rows.iter().enumerate() {
        row(cells, number * ROW);
    }
    row(rest, rows.len() * ROW);
    locked.counts.set_dbm(leaves, were_writable);
}

/// [`set_dbm_in_cells`] for at most eight entries. Adds the number of leaves to `leaves`, and returns which of them were
/// writable.
#[inline(always)]
fn set_dbm_in_row<const CLEAN: bool>(cells: &[Word], leaves: &mut u64) -> u32 {
    let mut writable = 0;
    for (index, cell) in cells.iter().enumerate() {
        // An invalid entry stays as it is: none is busy during a pass, and a stale entry has none of the tested bits.
        let old = cell.load(Ordering::Relaxed);
        let leaf = old & Descriptor::VALID;
        writable |= (old & Descriptor::WRITE) << index;
        *leaves += leaf;
        let kept = if CLEAN { old & !Descriptor::WRITE } else { old };
        cell.store(kept | leaf << Descriptor::DIRTY_BY_HARDWARE.trailing_zeros(), Ordering::Relaxed);
    }
    (writable >> Descriptor::WRITE.trailing_zeros()) as u32
}

/// The bits that let a guest write, at once or through hardware.
const WRITES: u64 = Descriptor::WRITE | Descriptor::DIRTY_BY_HARDWARE;

/// Clears DBM of hardware-tracked leaves.
struct ClearDbm {
    changed: Changed,
}

impl<P: Platform, G: Granule> Pass<P, G> for ClearDbm {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.hardware_tracked() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, first: Ipa) {
        let mut span = Span::default();
        for (at, index) in indexes.enumerate() {
            if locked.entry(index).is_hardware_tracked() {
                locked.clear(index, Descriptor::DIRTY_BY_HARDWARE);
                span.add(at);
            }
        }
        let shift = locked.stage2.geometry().granule().span_shift(locked.level);
        self.changed.leaves(span.addresses(first, shift), locked.level);
    }
}

/// Looks for leaves with write permission: for those with DBM (`TRACKED`), or for all.
struct Look<'a, const TRACKED: bool> {
    found: Found,
    reported: &'a mut dyn FnMut(Marked),
}

impl<P: Platform, G: Granule, const TRACKED: bool> Pass<P, G> for Look<'_, TRACKED> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        if TRACKED { counts.hardware_tracked() > 0 } else { counts.writable() > 0 }
    }

    fn entries(&mut self, locked: &mut Locked<'_, P, G>, indexes: Range<usize>, _: Ipa) {
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let (rows, rest) = locked.table.cells(indexes.start, indexes.end).as_chunks::<ROW>();
        for (number, cells) in rows.iter().enumerate() {
            self.found.add(number * ROW, written_in::<TRACKED>(cells));
        }
        self.found.add(rows.len() * ROW, written_in::<TRACKED>(rest));
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.report(level, first, self.reported);
    }
}

/// Which of at most eight leaves have write permission: of those with DBM (`TRACKED`), or of all.
#[inline(always)]
fn written_in<const TRACKED: bool>(cells: &[Word]) -> u32 {
    // Most rows are clean: one test for all of a row.
    let any = cells.iter().fold(0, |any, cell| any | cell.load(Ordering::Relaxed));
    if any & Descriptor::WRITE == 0 {
        return 0;
    }
    if !TRACKED {
        return marked::<{ Descriptor::WRITE }>(cells);
    }
    const APART: u32 = Descriptor::DIRTY_BY_HARDWARE.trailing_zeros() - Descriptor::WRITE.trailing_zeros();
    let mut mask = 0;
    for (index, cell) in cells.iter().enumerate() {
        // Shifts the DBM bit to the place of S2AP[1].
        let entry = cell.load(Ordering::Relaxed);
        mask |= (entry & entry >> APART & Descriptor::WRITE) << index;
    }
    (mask >> Descriptor::WRITE.trailing_zeros()) as u32
}
