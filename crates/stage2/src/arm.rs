// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Having hardware record writes page by page (DBM, FEAT_HAFDBS), and reading what it recorded.
//!
//! A leaf is *armed* while DBM is set: where it may not be written (S2AP\[1\] clear) it is *clean*, and the first write makes
//! hardware set S2AP\[1\], without a fault: *dirty*. Without DBM the same leaf is read-only. Blocks are never armed here: a
//! record of one would say nothing of its pages.
//!
//! Arming needs no flush: an entry in a TLB from before causes at most one more fault, which
//! [`relax`](Stage2::relax) ends. Making clean does, as taking any write access. Hardware changes an armed leaf at any
//! time, so such a leaf is changed by read-modify-writes (source S3 lost writes by a plain store).

use core::ops::Range;

use crate::age::{Found, marked};
use crate::descent::Locked;
use crate::pass::Pass;
use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::record::Counts;
use crate::table::ROW;
use crate::tlb::{Changed, Span};
use crate::{Descriptor, Error, Ipa, IpaRange, Level, Marked, Narrowed, Pending, Stage2};

impl<P: Platform> Stage2<P> {
    /// Arms the pages that are mapped in `range`. What may be written stays so, and counts as dirty; what may not is clean
    /// from now on, and hardware may make it dirty: it is the caller who knows that the guest may write all of it. Blocks
    /// stay as they are. Who reads, with acquire, what the caller stores after this finds in its own passes what was armed.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space; [`Error::NoDirtyState`].
    pub fn arm(&self, range: IpaRange) -> Result<(), Error> {
        self.check_dirty_state()?;
        self.geometry().check(&range)?;
        self.pass(&range, &mut Arm);
        Ok(())
    }

    /// Arms the pages that are mapped in `range`, and makes them clean. Blocks are write-protected, whole.
    ///
    /// Memory may be read as of that moment only after the flush.
    ///
    /// # Errors
    ///
    /// As [`arm`](Self::arm).
    pub fn arm_clean(&self, range: IpaRange) -> Result<Pending<'_, P, Narrowed>, Error> {
        self.check_dirty_state()?;
        self.geometry().check(&range)?;
        self.begin_to_narrow();
        let mut pass = ArmClean { changed: Changed::default() };
        self.pass(&range, &mut pass);
        Ok(Pending::narrowed(self, pass.changed, range))
    }

    /// The same for those of the 64 pages from `first` on whose bits are set in `mask`, and not for the pages between.
    ///
    /// # Errors
    ///
    /// A page is not in the IPA space, or `first` is not aligned; [`Error::NoDirtyState`].
    pub fn arm_clean_mask(&self, first: Ipa, mask: u64) -> Result<Pending<'_, P, Narrowed>, Error> {
        self.check_dirty_state()?;
        let range = self.masked_range(first, mask)?;
        self.begin_to_narrow();
        let mut pass = ArmClean { changed: Changed::default() };
        self.pass_masked(first, mask, &range, &mut pass);
        Ok(Pending::narrowed(self, pass.changed, range))
    }

    /// Ends hardware's records in `range`, and keeps them: what was dirty may be written on, what was clean may not be
    /// written any more. After the flush nothing is added, and [`written`](Self::written) tells what was recorded.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn seal(&self, range: IpaRange) -> Result<Pending<'_, P, Narrowed>, Error> {
        self.geometry().check(&range)?;
        self.begin_to_narrow();
        let mut pass = Seal { changed: Changed::default() };
        self.pass(&range, &mut pass);
        Ok(Pending::narrowed(self, pass.changed, range))
    }

    /// Tells which of the armed leaves in `range` are dirty, and changes nothing: a hint, while the guest runs, of what was
    /// written up to now.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn dirty(&self, range: IpaRange, dirty: &mut dyn FnMut(Marked)) -> Result<(), Error> {
        self.geometry().check(&range)?;
        self.pass(&range, &mut Look::<true> { found: Found::default(), told: dirty });
        Ok(())
    }

    /// Tells which leaves in `range` may be written, armed or not, and changes nothing. Clean ones are not among them.
    ///
    /// # Errors
    ///
    /// The range is not made of whole pages inside the IPA space.
    pub fn written(&self, range: IpaRange, written: &mut dyn FnMut(Marked)) -> Result<(), Error> {
        self.geometry().check(&range)?;
        self.pass(&range, &mut Look::<false> { found: Found::default(), told: written });
        Ok(())
    }

    fn check_dirty_state(&self) -> Result<(), Error> {
        if self.features().hardware_dirty_state { Ok(()) } else { Err(Error::NoDirtyState) }
    }
}

/// Arms pages.
struct Arm;

impl<P: Platform> Pass<P> for Arm {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > counts.armed()
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, _: Ipa) {
        if locked.level < Level::L3 {
            return;
        }
        if locked.counts.armed() == 0 {
            arm_cells::<false>(locked, &indexes, &mut Span::default());
            return;
        }
        for index in indexes {
            if locked.entry(index).is_valid() {
                locked.change(index, Descriptor::with_dirty_by_hardware);
            }
        }
    }
}

/// Arms pages, and makes them clean.
struct ArmClean {
    changed: Changed,
}

impl<P: Platform> Pass<P> for ArmClean {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.leaves() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, first: Ipa) {
        let mut span = Span::default();
        if locked.level == Level::L3 && locked.counts.armed() == 0 {
            arm_cells::<true>(locked, &indexes, &mut span);
        } else {
            clean_one_by_one(locked, &indexes, &mut span);
        }
        let shift = locked.stage2.geometry().granule().span_shift(locked.level);
        self.changed.leaves(span.addresses(first, shift), locked.level);
    }
}

/// Makes leaves clean of which some are armed, or all are blocks, and arms the pages among them; adds to `span` whose writes
/// it took.
#[inline(always)]
fn clean_one_by_one(locked: &mut Locked<'_, impl Platform>, indexes: &Range<usize>, span: &mut Span) {
    let arms = if locked.level == Level::L3 { Descriptor::DIRTY_BY_HARDWARE } else { 0 };
    for (at, index) in indexes.clone().enumerate() {
        let cell = locked.table.entry(index);
        let entry = cell.read();
        // Armed it stays, and is counted as it was: one bit goes, and only where it is set.
        if arms != 0 && entry.is_armed() {
            if entry.is_writable() {
                cell.clear(Descriptor::WRITE, locked.stage2.platform());
                span.add(at);
            }
            continue;
        }
        if !entry.is_valid() {
            continue;
        }
        let clean = |old: Descriptor| Descriptor::from_raw(old.without(WRITES).raw() | arms);
        let (old, new) = locked.change(index, clean);
        // Of a block that was armed, a TLB lets hardware grant writes.
        if old.raw() & !new.raw() & WRITES != 0 {
            span.add(at);
        }
    }
}

/// Arms the leaves of a table of pages in which none is armed yet, so that stores do; with `CLEAN` it takes their write
/// access too, and adds to `span` whose it took.
#[inline(always)]
fn arm_cells<const CLEAN: bool>(locked: &mut Locked<'_, impl Platform>, indexes: &Range<usize>, span: &mut Span) {
    let (rows, rest) = locked.table.cells(indexes.start, indexes.end).as_chunks::<ROW>();
    let (mut leaves, mut were_writable) = (0, 0);
    let mut row = |cells: &[Word], at: usize| {
        let writable = arm_row::<CLEAN>(cells, &mut leaves);
        were_writable += u64::from(writable.count_ones());
        if CLEAN && writable != 0 {
            span.add_mask(at, writable);
        }
    };
    for (number, cells) in rows.iter().enumerate() {
        row(cells, number * ROW);
    }
    row(rest, rows.len() * ROW);
    locked.counts.arm(leaves, were_writable);
}

/// The same for at most eight: adds how many leaves there are, and tells which may be written.
#[inline(always)]
fn arm_row<const CLEAN: bool>(cells: &[Word], leaves: &mut u64) -> u32 {
    let mut writable = 0;
    for (index, cell) in cells.iter().enumerate() {
        // An invalid entry has no bit set, as none is busy, and stays as it is.
        let old = cell.load(Ordering::Relaxed);
        let leaf = old & Descriptor::VALID;
        writable |= (old & Descriptor::WRITE) << index;
        *leaves += leaf;
        let kept = if CLEAN { old & !Descriptor::WRITE } else { old };
        cell.store(kept | leaf << Descriptor::DIRTY_BY_HARDWARE.trailing_zeros(), Ordering::Relaxed);
    }
    (writable >> Descriptor::WRITE.trailing_zeros()) as u32
}

/// The bits that let a guest write, or hardware let it write.
const WRITES: u64 = Descriptor::WRITE | Descriptor::DIRTY_BY_HARDWARE;

/// Ends hardware's records.
struct Seal {
    changed: Changed,
}

impl<P: Platform> Pass<P> for Seal {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        counts.armed() > 0
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, first: Ipa) {
        let mut span = Span::default();
        for (at, index) in indexes.enumerate() {
            if locked.entry(index).is_armed() {
                locked.clear(index, Descriptor::DIRTY_BY_HARDWARE);
                span.add(at);
            }
        }
        let shift = locked.stage2.geometry().granule().span_shift(locked.level);
        self.changed.leaves(span.addresses(first, shift), locked.level);
    }
}

/// Looks for what may be written: if it is armed, or all.
struct Look<'a, const ARMED: bool> {
    found: Found,
    told: &'a mut dyn FnMut(Marked),
}

impl<P: Platform, const ARMED: bool> Pass<P> for Look<'_, ARMED> {
    #[inline(always)]
    fn wants(counts: Counts) -> bool {
        if ARMED { counts.armed() > 0 } else { counts.writable() > 0 }
    }

    fn entries(&mut self, locked: &mut Locked<'_, P>, indexes: Range<usize>, _: Ipa) {
        self.found.shift = locked.stage2.geometry().granule().span_shift(locked.level);
        let (rows, rest) = locked.table.cells(indexes.start, indexes.end).as_chunks::<ROW>();
        for (number, cells) in rows.iter().enumerate() {
            self.found.add(number * ROW, written_in::<ARMED>(cells));
        }
        self.found.add(rows.len() * ROW, written_in::<ARMED>(rest));
    }

    fn unlocked(&mut self, level: Level, first: Ipa) {
        self.found.tell(level, first, self.told);
    }
}

/// Which of at most eight leaves may be written: if they are armed, or all.
#[inline(always)]
fn written_in<const ARMED: bool>(cells: &[Word]) -> u32 {
    // Most rows are clean: seen at a glance.
    let any = cells.iter().fold(0, |any, cell| any | cell.load(Ordering::Relaxed));
    if any & Descriptor::WRITE == 0 {
        return 0;
    }
    if !ARMED {
        return marked::<{ Descriptor::WRITE }>(cells);
    }
    const APART: u32 = Descriptor::DIRTY_BY_HARDWARE.trailing_zeros() - Descriptor::WRITE.trailing_zeros();
    let mut mask = 0;
    for (index, cell) in cells.iter().enumerate() {
        // The one bit is where the other one is, then.
        let entry = cell.load(Ordering::Relaxed);
        mask |= (entry & entry >> APART & Descriptor::WRITE) << index;
    }
    (mask >> Descriptor::WRITE.trailing_zeros()) as u32
}
