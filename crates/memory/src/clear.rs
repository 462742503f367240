// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RAM that loses its content, for a guest that is reset.
//!
//! Invariant: when [`GuestMemory::clear`] returns, no byte of the range is what it was, whether a vCPU, a device or the
//! hypervisor reads it. A huge page that is whole costs one flush and no write: its pages are zeroed at their next touch,
//! as at their first.

use twofold_stage2::{Granule, Ipa, IpaRange, Platform};

use crate::frames::{FRAME, HUGE_PAGE};
use crate::guest::{Error, GuestMemory};
use crate::ram::Forgotten;
use crate::slots::{Content, Memslot, SlotError, SlotId};

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Makes the addresses in `range` that are in the slot read as zero. The pages are in a running dirty log when this
    /// returns. No vCPU may run: a page that one touches meanwhile may keep its content.
    ///
    /// # Errors
    ///
    /// As [`unmap`](Self::unmap); and [`Error::Absent`] for a page that a page store holds. Pages before that one are
    /// zero then.
    pub fn clear(&self, slot: SlotId, range: IpaRange) -> Result<(), Error> {
        self.unmap(slot, range.start..range.end)?;
        let slot = self.slots.get(slot).ok_or(SlotError::Gone)?;
        let (mut at, end) = (range.start.max(slot.range.start), range.end.min(slot.range.end));
        while at < end {
            let next = (at.align_down(HUGE_PAGE) + HUGE_PAGE).min(end);
            self.clear_huge_page(slot, at..next)?;
            self.note_writes(slot, at..next);
            at = next;
        }
        Ok(())
    }

    /// A range within one huge page.
    fn clear_huge_page(&self, slot: &Memslot<G>, range: IpaRange) -> Result<(), Error> {
        if let Content::Ram(ram) = &slot.content {
            let forgotten = ram.lock(self.stage2.platform()).forget(&range);
            if forgotten == Forgotten::All {
                return Ok(());
            }
        }
        let mut page = range.start;
        while page < range.end {
            self.clear_page(slot, page)?;
            page = page + G::SIZE;
        }
        Ok(())
    }

    fn clear_page(&self, slot: &Memslot<G>, page: Ipa) -> Result<(), Error> {
        // A page that no frame holds reads as zero already.
        match self.frame_of(page)? {
            Some(_) => (0..G::SIZE)
                .step_by(FRAME as usize)
                .try_for_each(|at| self.write_in_page(slot, page + at, &[0; FRAME as usize])),
            None => Ok(()),
        }
    }
}
