// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a post-copy migration: pages whose content is elsewhere.
//!
//! Invariant: a page is *absent* from [`make_absent`](GuestMemory::make_absent) on until its content has come, once: so what
//! the guest writes then is not replaced.

use twofold_stage2::{Granule, Ipa, Platform};

use super::single::{Page, Singles};
use super::store::Place;
use crate::async_fault::Arrival;
use crate::guest::{Error, GuestMemory};
use crate::ram::Kind;

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// States that the content of the page at `page` is in the store, at `place`: for the target of a post-copy migration,
    /// before its guest runs. What the page holds here, if anything, is old; its frame is free then.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] if no slot has RAM of frames there, or no store is attached; [`Error::Busy`] if the page is
    /// pinned, or is in the store or on its way already; [`Error::NoFrames`] if the heap is full; [`Error::Stage2`] if
    /// the page was mapped and cannot be unmapped. Nothing has changed.
    pub fn make_absent(&self, page: Ipa, place: Place) -> Result<(), Error> {
        let page = page.align_down(G::SIZE);
        let platform = self.stage2.platform();
        let (Some(swap), Some((slot, ram))) = (self.swap.as_deref(), self.find_ram(page)) else {
            return Err(Error::NoRam { ipa: page });
        };
        swap.refill(platform);
        {
            let mut ram = ram.lock(platform);
            if let Kind::Untouched = ram.page(page) {
                let singles = Singles::new().ok_or(Error::NoFrames { ipa: page })?;
                ram.keep_singles(page, singles).map_err(|_| Error::NoFrames { ipa: page })?;
            }
            if let Kind::Single(state @ Page::Zero, _) = ram.page(page) {
                *state = Page::Absent(place);
                return Ok(());
            }
        }
        // It has old content. It leaves as any page does, but for the write.
        let (leaving, lent) = self.begin_leaving(swap, (page, slot, ram)).map_err(|refused| match refused {
            Ok(_) => Error::Busy { ipa: page },
            Err(_) => Error::NoFrames { ipa: page },
        })?;
        let (run, _) = self.take_away(slot, page, lent).map_err(|(error, lent)| {
            self.stay(swap, &leaving, lent, leaving.kept);
            Error::from(error)
        })?;
        let until = swap.waiting.lock(platform).next();
        self.settle(swap, ram, (page, run), |_, run, memory| {
            memory.give_data(run);
            Page::Absent(place)
        });
        self.discard(leaving.kept.map(|kept| kept.place));
        // No guest runs yet. Whatever waited for the old content asks again.
        self.wake(swap, page, until, Arrival::Failed);
        self.serve(swap);
        Ok(())
    }
}
