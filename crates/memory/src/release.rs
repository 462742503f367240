// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that has ended, and whose memory other guests get while it still exists as data.
//!
//! The steps, of which the embedder does E1 and E2:
//!
//! - E1. No vCPU of the guest begins to run any more, and nothing else accesses its memory.
//! - E2. Wait until no vCPU runs, or handles a fault. A CPU may still have the guest's root loaded.
//! - E3. For each huge page: take its frames out of the slot, unmap it, flush its addresses by VMID on all CPUs, and only
//!   then give its frames to all guests ([`GuestMemory::release`]).
//! - E4. Flush all of the VMID, and give back what the tables had ([`GuestMemory::release_tables`]).
//!
//! Why no other guest's memory is reached through what is left. After E2 no CPU is in the guest, so no access of it is
//! under way, and by E1 none begins. A CPU's walk hardware may still walk from the root, as long as the root is loaded; so
//! the root is not given back, and E3 leaves nothing valid below it. What a TLB holds of a huge page is gone before its
//! frames have another owner (E3), and what it holds of tables before theirs have (E4). The guest keeps its VMID, which
//! nothing else gets while the image runs. And the other owner sees nothing of what the frames held: a frame is zeroed
//! before it is first mapped (module `ram`), or written as a table.

use twofold_stage2::{Granule, Ipa, IpaRange, Lock, Platform, Unwatched};

use crate::frames::HUGE_PAGE;
use crate::guest::{Error, GuestMemory};
use crate::ram::Ram;
use crate::slots::{Content, SlotError, SlotId};

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// E3, for the huge pages that begin in `range`: their frames belong to all guests that share frames with this one, or
    /// are free frames of this guest's own. Returns how many huge pages had frames. Those of which pages have left to a
    /// store stay as they are.
    ///
    /// E2 must be done.
    ///
    /// # Errors
    ///
    /// The slot was removed, or the tables cannot be changed. That huge page is as before, and those before it are free.
    pub fn release(&self, slot: SlotId, range: IpaRange) -> Result<u64, Error> {
        let slot = self.slots.get(slot).ok_or(SlotError::Gone)?;
        let Content::Ram(ram) = &slot.content else { return Ok(0) };
        let platform = self.stage2.platform();
        let mut released = 0;
        let mut at = range.start.max(slot.range.start).align_down(HUGE_PAGE);
        let end = range.end.min(slot.range.end);
        while at < end {
            released += u64::from(self.release_huge_page(ram, at, platform)?);
            at = at + HUGE_PAGE;
        }
        Ok(released)
    }

    fn release_huge_page(&self, ram: &Lock<Ram<G>>, at: Ipa, platform: &P) -> Result<bool, Error> {
        let Some(lent) = ram.lock(platform).take_whole(at) else { return Ok(false) };
        let tables = &mut self.tables();
        // E3: unmapped, and flushed by `reclaim`.
        let run = match self.stage2.withdraw(lent, tables, Unwatched) {
            Ok(withdrawal) => withdrawal.reclaim(tables).0,
            Err((error, lent)) => {
                ram.lock(platform).put_whole(at, lent);
                return Err(error.into());
            }
        };
        self.frames().release_data(platform, run);
        Ok(true)
    }

    /// E4. Returns how many chunks of 2 MiB the guest still has of those that guests share: the one with the root, and those
    /// of which a frame is in use.
    pub fn release_tables(&self) -> u64 {
        self.stage2.invalidate_all();
        self.frames().give_back_empty(self.stage2.platform())
    }
}
