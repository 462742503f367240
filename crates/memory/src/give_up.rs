// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that the guest gives up while its vCPUs run: they read as zero from now on, and their frames are free.
//!
//! A huge page that is given up as a whole, in these steps:
//!
//! * G1: under the backing's lock, take its frames out of its state. From here on it was never touched.
//! * G2: without the lock, withdraw the frames: break what maps them, and flush.
//! * G3: give the frames to all guests that share frames with this one, or to this guest's own free ones.
//! * G4: put the pages into a running dirty log: their content has changed.
//!
//! Nothing reaches the frames after G2: a grant of them that was made before G1 is stale (module `withdraw` of
//! `twofold-stage2`), and none is made after it. A guest that touches the huge page between G1 and G2 gets new frames,
//! and G2 may unmap them once: they stay its own, with their content.
//!
//! Of a huge page that is given up in part, single pages leave their states (`swap::give_up`). Without a page store there
//! are no such states, and nothing of it becomes free.

use twofold_stage2::{Granule, Ipa, IpaRange, Lent, Lock, Platform, Unwatched};

use crate::frames::{HUGE_PAGE, PAGES};
use crate::guest::{Error, GuestMemory};
use crate::ram::{Kind, Ram};
use crate::slots::{Content, Memslot};

/// What [`GuestMemory::give_up`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the rest of the range may be left to do"]
pub struct GivenUp {
    /// Where the next call goes on: the end of the range, unless an interrupt came.
    pub end: Ipa,
    /// Frames that are free now.
    pub frames: u64,
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Gives up the whole pages of `range`, while vCPUs may run. Each of them reads as zero from now on, or as before if its
    /// frame has to stay: it is pinned, something waits for it, or its huge page is whole, is not given up as a whole, and
    /// cannot be kept page by page. What a vCPU writes there meanwhile may be lost.
    ///
    /// The call looks for a pending interrupt after each piece of the work.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] with the first address without RAM. [`Error::Absent`] with the first page whose I/O is in flight:
    /// [bring](Self::bring) it, and call again. [`Error::Stage2`] if the tables cannot be changed. The pages before that
    /// one are given up.
    pub fn give_up(&self, range: IpaRange) -> Result<GivenUp, Error> {
        let end = range.end.align_down(G::SIZE);
        let mut at = Ipa::new(range.start.raw().next_multiple_of(G::SIZE));
        let mut frames = 0;
        while at < end {
            let slot = self.slots.find(at).ok_or(Error::NoRam { ipa: at })?;
            let next = (at.align_down(HUGE_PAGE) + HUGE_PAGE).min(end).min(slot.range.end);
            let Content::Ram(ram) = &slot.content else {
                at = next;
                continue;
            };
            let done = self.give_up_in_huge_page(slot, ram, at..next)?;
            (at, frames) = (done.end, frames + done.frames);
            if self.stage2.platform().interrupt_is_pending() {
                break;
            }
        }
        Ok(GivenUp { end: at, frames })
    }

    fn give_up_in_huge_page(&self, slot: &Memslot<G>, ram: &Lock<Ram<G>>, range: IpaRange) -> Result<GivenUp, Error> {
        let huge_page = range.start.align_down(HUGE_PAGE);
        let all = huge_page.max(slot.range.start)..(huge_page + HUGE_PAGE).min(slot.range.end);
        // G1.
        let taken = {
            let mut ram = ram.lock(self.stage2.platform());
            let is_all = range == all && !ram.pins.any_in(&range);
            match ram.page(range.start) {
                Kind::Untouched => return Ok(GivenUp { end: range.end, frames: 0 }),
                Kind::Whole if is_all => ram.take_whole(huge_page),
                Kind::Whole | Kind::Single(..) => None,
            }
        };
        match (taken, self.swap.as_deref()) {
            (Some(lent), _) => self.free_huge_page(slot, ram, &range, lent)?,
            (None, Some(swap)) => return self.give_up_pages(swap, slot, ram, range),
            (None, None) => return Ok(GivenUp { end: range.end, frames: 0 }),
        }
        Ok(GivenUp { end: range.end, frames: PAGES })
    }

    /// G2 to G4.
    fn free_huge_page(&self, slot: &Memslot<G>, ram: &Lock<Ram<G>>, range: &IpaRange, lent: Lent) -> Result<(), Error> {
        let (platform, tables) = (self.stage2.platform(), &mut self.tables());
        let run = match self.stage2.withdraw(lent, tables, Unwatched) {
            Ok(withdrawal) => withdrawal.reclaim(tables).0,
            // Blocks of RAM are huge pages, so none has to be split for this, and it never fails.
            Err((error, lent)) => {
                let mut ram = ram.lock(platform);
                if let Kind::Untouched = ram.page(range.start) {
                    ram.put_whole(range.start, lent);
                }
                return Err(error.into());
            }
        };
        self.frames().release_data(platform, run);
        self.note_writes(slot, range.clone());
        self.frame_is_free();
        Ok(())
    }
}
