// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a post-copy migration: pages whose content is elsewhere, and content that comes unasked.
//!
//! Invariant: a page is *absent* from [`make_absent`](GuestMemory::make_absent) on until its content has come, by a read
//! or by [`supply`](GuestMemory::supply). Only the first of them counts, so what the guest writes then is not replaced.

use twofold_stage2::{Ipa, Platform};

use super::single::{Page, Present, Singles};
use super::store::Place;
use crate::async_fault::Arrival;
use crate::frames::FRAME;
use crate::guest::{Error, GuestMemory};
use crate::ram::Kind;

/// What [`GuestMemory::supply`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Supplied {
    /// The page was absent, and is in memory now. Its place was discarded.
    Stored,
    /// The store has been asked for the page: its request takes the content.
    Asked,
    /// The page is not absent. It keeps what it has.
    NotAbsent,
    /// No frame is free for it.
    NoFrame,
}

impl<P: Platform> GuestMemory<P> {
    /// States that the content of the page at `page` is in the store, at `place`: for the target of a post-copy migration,
    /// before its guest runs. What the page holds here, if anything, is old; its frame is free then.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] if no slot has RAM of frames there, or no store is attached; [`Error::Busy`] if the page is
    /// pinned, or is in the store or on its way already; [`Error::NoFrames`] if the heap is full; [`Error::Stage2`] if
    /// the page was mapped and cannot be unmapped. Nothing has changed.
    pub fn make_absent(&self, page: Ipa, place: Place) -> Result<(), Error> {
        let page = page.align_down(FRAME);
        let platform = self.stage2.platform();
        let (Some(swap), Some((slot, ram))) = (self.swap.as_deref(), self.find_ram(page)) else {
            return Err(Error::NoRam { ipa: page });
        };
        let has_spare = swap.refill(platform);
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
        let (leaving, lent) =
            self.begin_leaving(swap, (page, slot, ram), has_spare).map_err(|refused| match refused {
                Ok(_) => Error::Busy { ipa: page },
                Err(_) => Error::NoFrames { ipa: page },
            })?;
        let (run, _) = self.take_away(slot, page, lent).map_err(|(error, lent)| {
            self.stay(swap, &leaving, lent, leaving.kept);
            Error::from(error)
        })?;
        let until = swap.waiting.lock(platform).next();
        let is_needed = self.settle(swap, ram, (page, run), |_, run, memory| {
            memory.frames.lock(memory.stage2.platform()).give_data(run);
            Page::Absent(place)
        });
        self.discard(leaving.kept.map(|kept| kept.place));
        if is_needed {
            // No guest runs yet. Whatever waited for the old content asks again.
            self.wake(swap, page, until, Arrival::Failed);
        }
        self.serve(swap);
        Ok(())
    }

    /// Gives an absent page its content, which has come without a request for it; `None` for zeroes, which take no frame.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] if no slot has RAM of frames there, or no store is attached.
    pub fn supply(&self, page: Ipa, bytes: Option<&[u8; FRAME as usize]>) -> Result<Supplied, Error> {
        let page = page.align_down(FRAME);
        let platform = self.stage2.platform();
        let (Some(swap), Some((_, ram))) = (self.swap.as_deref(), self.find_ram(page)) else {
            return Err(Error::NoRam { ipa: page });
        };
        let (place, until) = {
            let mut ram = ram.lock(platform);
            let (state, place) = match ram.page(page) {
                Kind::Single(state, _) => match *state {
                    Page::Absent(place) => (state, place),
                    Page::Arriving(_) => return Ok(Supplied::Asked),
                    _ => return Ok(Supplied::NotAbsent),
                },
                Kind::Untouched | Kind::Whole => return Ok(Supplied::NotAbsent),
            };
            *state = match bytes {
                None => Page::Zero,
                Some(bytes) => {
                    // Not in the queue's order: a page that is about to take its frame looks as if it waited for one, and
                    // what has come cannot wait.
                    let frame = self.frames.lock(platform).take_data(1);
                    let Some(frame) = frame else { return Ok(Supplied::NoFrame) };
                    frame.write(platform, 0, bytes);
                    Page::Present(Present { lent: self.lent(page, frame), kept: None })
                }
            };
            (place, swap.waiting.lock(platform).next())
        };
        swap.store.discard(place);
        self.wake(swap, page, until, Arrival::Present);
        self.serve(swap);
        Ok(Supplied::Stored)
    }
}
