// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log of a guest's test slots, one operation of the experiments each, with what it cost the calling thread.
//!
//! What is timed is the call to KVM: memory for its answer is there before.

use std::ops::Range;

use crate::bitmap::Bitmap;
use crate::calls;
use crate::error::KvmError;
use crate::guest::{KvmGuest, no_slot};
use crate::measure::{Cost, measured};
use crate::options::{Clearing, Log};
use crate::ring::Rings;

impl KvmGuest {
    /// Starts the log of a test slot. Where bits are not initially set, all of it is write-protected now, and split, if
    /// there is a chunk.
    ///
    /// # Errors
    ///
    /// There is no such slot, or KVM refused.
    pub fn enable_log(&self, slot: usize) -> Result<Cost, KvmError> {
        let (result, cost) = measured(|| self.set_log(slot, true));
        result.map(|()| cost)
    }

    /// Stops the log of a test slot, and forgets what it has.
    ///
    /// # Errors
    ///
    /// There is no such slot, or KVM refused.
    pub fn disable_log(&self, slot: usize) -> Result<Cost, KvmError> {
        let (result, cost) = measured(|| self.set_log(slot, false));
        result.map(|()| cost)
    }

    /// Reads a slot's log into `bitmap`, which has a bit for each of its pages. With [`Clearing::ByGet`] they are clean and
    /// protected thereafter.
    ///
    /// # Errors
    ///
    /// There is no such slot, another number of pages, no log runs, or the guest has rings.
    pub fn get_log(&self, slot: usize, bitmap: &mut Bitmap) -> Result<Cost, KvmError> {
        self.check_bitmap(slot, bitmap)?;
        let (result, cost) = measured(|| calls::get_dirty_log(&self.vm, slot as u32 + 1, bitmap));
        result.map_err(|errno| KvmError::Refused { what: "KVM_GET_DIRTY_LOG", errno })?;
        Ok(cost)
    }

    /// Cleans and protects pages of a slot: those of `pages` whose bits are set in `bitmap`, the slot's whole bitmap.
    /// `pages` are whole words of 64, but for the last.
    ///
    /// # Errors
    ///
    /// There is no such slot or page, they are not whole words, no log runs, or the guest's is not cleared manually.
    pub fn clear_log(&self, slot: usize, pages: Range<u64>, bitmap: &Bitmap) -> Result<Cost, KvmError> {
        self.check_bitmap(slot, bitmap)?;
        if !matches!(self.granted().log, Log::Bitmap(Clearing::Manual | Clearing::ManualInitiallySet)) {
            return Err(KvmError::Options("this guest's log is not cleared manually".to_owned()));
        }
        let whole = pages.start.is_multiple_of(64) && (pages.end.is_multiple_of(64) || pages.end == bitmap.pages());
        let count = u32::try_from(pages.end.saturating_sub(pages.start)).unwrap_or(0);
        if !whole || pages.end > bitmap.pages() || count == 0 {
            return Err(KvmError::Nowhere(format!(
                "pages {pages:?} of {}: a log is cleared in whole words of 64 pages",
                bitmap.pages()
            )));
        }
        let (result, cost) = measured(|| calls::clear_dirty_log(&self.vm, slot as u32 + 1, pages.start, count, bitmap));
        result.map_err(|errno| KvmError::Refused { what: "KVM_CLEAR_DIRTY_LOG", errno })?;
        Ok(cost)
    }

    /// Moves what is in the rings of all vCPUs into the slots' logs; answers with the number of entries. The pages are clean
    /// again after [`reset_ring`](Self::reset_ring).
    ///
    /// # Errors
    ///
    /// The guest has no rings.
    pub fn collect_ring(&self) -> Result<(u64, Cost), KvmError> {
        let rings = self.rings()?;
        Ok(measured(|| rings.collect()))
    }

    /// Cleans and protects the pages that were collected; answers with their number.
    ///
    /// # Errors
    ///
    /// The guest has no rings, or KVM refused.
    pub fn reset_ring(&self) -> Result<(u64, Cost), KvmError> {
        self.rings()?;
        let (result, cost) = measured(|| calls::reset_dirty_rings(&self.vm));
        Ok((result.map_err(|errno| KvmError::Refused { what: "KVM_RESET_DIRTY_RINGS", errno })?, cost))
    }

    /// What was collected of a slot since this was last asked, by [`collect_ring`](Self::collect_ring) and by vCPUs whose
    /// ring was full.
    ///
    /// # Errors
    ///
    /// The guest has no rings, or no such slot.
    pub fn take_ring_log(&self, slot: usize) -> Result<Bitmap, KvmError> {
        self.rings()?.take(slot).ok_or_else(|| no_slot(slot))
    }

    fn rings(&self) -> Result<&Rings, KvmError> {
        self.rings.as_deref().ok_or_else(|| KvmError::Options("this guest has no dirty rings".to_owned()))
    }

    fn check_bitmap(&self, slot: usize, bitmap: &Bitmap) -> Result<(), KvmError> {
        if slot >= self.slots() {
            return Err(no_slot(slot));
        }
        let pages = self.slot_pages();
        let wrong = || KvmError::Nowhere(format!("a bitmap of {} pages for a slot of {pages}", bitmap.pages()));
        if bitmap.pages() == pages { Ok(()) } else { Err(wrong()) }
    }
}
