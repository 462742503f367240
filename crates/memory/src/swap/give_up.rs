// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single pages that the guest gives up: steps X1 to X4 of the protocol in [`super`].

use twofold_stage2::{Granule, Ipa, IpaRange, Lock, Platform};

use super::leave::{WriteOutError, WrittenOut};
use super::single::Page;
use super::state::Swap;
use crate::frames::HUGE_PAGE;
use crate::give_up::GivenUp;
use crate::guest::{Error, GuestMemory};
use crate::ram::{Kind, Ram};
use crate::slots::Memslot;

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Gives up the pages of `range`, which is in one huge page. It stops after a page if an interrupt is pending. X4
    /// follows.
    pub(crate) fn give_up_pages(
        &self,
        swap: &Swap,
        slot: &Memslot<G>,
        ram: &Lock<Ram<G>>,
        range: IpaRange,
    ) -> Result<GivenUp, Error> {
        let platform = self.stage2.platform();
        swap.refill(platform);
        let (mut page, mut frames) = (range.start, 0);
        while page < range.end {
            frames += u64::from(self.give_up_page(swap, (page, slot, ram))?);
            page = page + G::SIZE;
            if platform.interrupt_is_pending() {
                break;
            }
        }
        if let Some(singles) = ram.lock(platform).end_singles(range.start.align_down(HUGE_PAGE)) {
            swap.give_back(platform, singles);
        }
        Ok(GivenUp { end: page, frames })
    }

    /// X1 to X3. Returns whether a frame has become free.
    fn give_up_page(&self, swap: &Swap, (page, slot, ram): (Ipa, &Memslot<G>, &Lock<Ram<G>>)) -> Result<bool, Error> {
        let platform = self.stage2.platform();
        let absent = Error::Absent { page, done: 0 };
        // X1.
        let replaced = match ram.lock(platform).page(page) {
            Kind::Single(Page::Zero, _) => return Ok(false),
            Kind::Single(Page::Leaving { .. } | Page::Arriving(_), _) => return Err(absent),
            Kind::Single(state @ Page::Absent(_), _) => match core::mem::take(state) {
                Page::Absent(place) => Some((place, swap.waiting.lock(platform).next())),
                _ => None,
            },
            _ => None,
        };
        if let Some((place, until)) = replaced {
            self.note_writes(slot, page..page + G::SIZE);
            self.replaced(swap, page, place, until);
            return Ok(false);
        }
        // X2: L1 and L2.
        let (leaving, lent) = match self.begin_leaving(swap, (page, slot, ram)) {
            Ok(begun) => begun,
            // The huge page is kept page by page now. The caller takes the interrupt after this page.
            Err(Ok(WrittenOut::Interrupted)) => return self.give_up_page(swap, (page, slot, ram)),
            Err(Ok(WrittenOut::NotPresent)) => return Err(absent),
            // It stays as it is.
            Err(Ok(_) | Err(WriteOutError::NoMemory { .. })) => return Ok(false),
            Err(Err(WriteOutError::Stage2(error))) => return Err(error.into()),
            Err(Err(_)) => return Err(Error::NoRam { ipa: page }),
        };
        let (run, _) = match self.take_away(slot, page, lent) {
            Ok(taken) => taken,
            Err((error, lent)) => {
                self.stay(swap, &leaving, lent, leaving.kept);
                return Err(error.into());
            }
        };
        // X3.
        let freed = self.gone(swap, &leaving, run, None) == WrittenOut::Freed;
        self.discard(leaving.kept.map(|kept| kept.place));
        self.note_writes(slot, page..page + G::SIZE);
        self.serve(swap);
        Ok(freed)
    }

    /// B6, where a frame has become free that was no single page's.
    pub(crate) fn frame_is_free(&self) {
        if let Some(swap) = &self.swap {
            self.serve(swap);
        }
    }
}
