// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log of a guest's test slots: each operation of the experiments, with its cost for the calling thread.
//!
//! Only the call to KVM is timed. The memory for its result is allocated before.

use std::ops::Range;

use crate::bitmap::Bitmap;
use crate::calls;
use crate::error::KvmError;
use crate::guest::{KvmGuest, no_slot};
use crate::measure::{Cost, measured};
use crate::options::{Clearing, Log};
use crate::ring::Rings;

impl KvmGuest {
    /// Starts the log of a test slot. Unless its bits are initially set, KVM write-protects the whole slot now, and
    /// splits it if there is a chunk.
    ///
    /// # Errors
    ///
    /// An error is returned if there is no such slot, or KVM refuses.
    pub fn enable_log(&self, slot: usize) -> Result<Cost, KvmError> {
        let (result, cost) = measured(|| self.set_log(slot, true));
        result.map(|()| cost)
    }

    /// Stops the log of a test slot, and discards its contents.
    ///
    /// # Errors
    ///
    /// An error is returned if there is no such slot, or KVM refuses.
    pub fn disable_log(&self, slot: usize) -> Result<Cost, KvmError> {
        let (result, cost) = measured(|| self.set_log(slot, false));
        result.map(|()| cost)
    }

    /// Reads a slot's log into `bitmap`, which must have a bit for each of the slot's pages. With [`Clearing::ByGet`],
    /// KVM also clears and protects those pages.
    ///
    /// # Errors
    ///
    /// An error is returned if there is no such slot, the number of pages differs, no log runs, or the guest has rings.
    pub fn get_log(&self, slot: usize, bitmap: &mut Bitmap) -> Result<Cost, KvmError> {
        self.check_bitmap(slot, bitmap)?;
        let (result, cost) = measured(|| calls::get_dirty_log(&self.vm, slot as u32 + 1, bitmap));
        result.map_err(|errno| KvmError::Refused { what: "KVM_GET_DIRTY_LOG", errno })?;
        Ok(cost)
    }

    /// Clears and protects those of `pages` whose bits are set in `bitmap`, which is the slot's whole bitmap. `pages`
    /// must be whole words of 64, except at the slot's end.
    ///
    /// # Errors
    ///
    /// An error is returned if there is no such slot or page, `pages` are not whole words, no log runs, or the log is
    /// not cleared manually.
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

    /// Moves the entries of all vCPUs' rings into the slots' logs; returns their number. Call
    /// [`reset_ring`](Self::reset_ring) to clear the pages' dirty state.
    ///
    /// # Errors
    ///
    /// An error is returned if the guest has no rings.
    pub fn collect_ring(&self) -> Result<(u64, Cost), KvmError> {
        let rings = self.rings()?;
        Ok(measured(|| rings.collect()))
    }

    /// Clears and protects the pages that were collected; returns their number.
    ///
    /// # Errors
    ///
    /// An error is returned if the guest has no rings, or KVM refuses.
    pub fn reset_ring(&self) -> Result<(u64, Cost), KvmError> {
        self.rings()?;
        let (result, cost) = measured(|| calls::reset_dirty_rings(&self.vm));
        Ok((result.map_err(|errno| KvmError::Refused { what: "KVM_RESET_DIRTY_RINGS", errno })?, cost))
    }

    /// Takes the log of a slot: the pages collected since the last call, by [`collect_ring`](Self::collect_ring) and by
    /// vCPUs whose ring was full.
    ///
    /// # Errors
    ///
    /// An error is returned if the guest has no rings, or no such slot.
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
