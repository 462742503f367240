// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writing a whole page where it is: steps O1 to O5 of the protocol in [`super`].

use twofold_stage2::{Granule, Ipa, Kib4, Platform};

use super::single::{Page, Present};
use super::state::Swap;
use super::store::Failure;
use crate::frames::FRAME;
use crate::guest::{Error, GuestMemory};
use crate::ram::{Content, Kind};

/// A page that is to be written as a whole, wherever it is. While this lives, the page may be next in the queue for frames,
/// and a frame is left to it: look soon. Dropped, it is forgotten.
#[must_use = "look at it until the page was written"]
pub struct Poke<'a, P: Platform, G: Granule = Kib4> {
    memory: &'a GuestMemory<P, G>,
    swap: &'a Swap,
    page: Ipa,
    id: u64,
}

/// What a look at a page that is to be written has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Poked {
    /// The page was written.
    Written,
    /// The page is on its way out or in, or waits for a frame. Look again later.
    Later,
    /// The write-out task frees no frame ([`fail_waiting`](GuestMemory::fail_waiting)): the store is full, or fails. The
    /// last write that it could not do, if there is one. The next look waits anew.
    Failed(Option<Failure>),
}

/// A page of zeroes.
const ZEROES: [u8; FRAME as usize] = [0; FRAME as usize];

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Begins to write the page at `page`, for which [`write`](Self::write) has said [`Error::Absent`].
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] if no slot has RAM of frames there, or no store is attached; [`Error::NoFrames`] if the heap is
    /// full.
    pub fn poke(&self, page: Ipa) -> Result<Poke<'_, P, G>, Error> {
        let page = page.align_down(G::SIZE);
        let (Some(swap), Some(_)) = (self.swap.as_deref(), self.find_ram(page)) else {
            return Err(Error::NoRam { ipa: page });
        };
        let id = swap.waiting.lock(self.stage2.platform()).pokes.add(page).ok_or(Error::NoFrames { ipa: page })?;
        Ok(Poke { memory: self, swap, page, id })
    }
}

impl<P: Platform, G: Granule> Poke<'_, P, G> {
    /// The page.
    pub fn page(&self) -> Ipa {
        self.page
    }

    /// Looks at the page, and writes all of it if it can: `None` for zeroes. It never waits.
    ///
    /// # Errors
    ///
    /// As [`GuestMemory::write`], but for [`Error::Absent`].
    pub fn look(&mut self, content: Option<&[u8; FRAME as usize]>) -> Result<Poked, Error> {
        let poked = self.step(content)?;
        // This serves, too: a page that waits behind this one may go on.
        if self.memory.wants_frames() > 0 {
            self.swap.notify.frames_wanted();
        }
        Ok(poked)
    }

    fn step(&mut self, content: Option<&[u8; FRAME as usize]>) -> Result<Poked, Error> {
        let Self { memory, swap, page, id } = *self;
        let platform = memory.stage2.platform();
        let waiting = || swap.waiting.lock(platform);
        {
            let mut waiting = waiting();
            if waiting.pokes.take_failed(id) {
                return Ok(Poked::Failed(waiting.failure));
            }
        }
        let slot = memory.slots.find(page).ok_or(Error::NoRam { ipa: page })?;
        let (_, ram) = memory.find_ram(page).ok_or(Error::NoRam { ipa: page })?;
        let replaced = {
            let mut ram = ram.lock(platform);
            if content.is_none() && matches!(ram.content(page), Content::Zero) {
                waiting().pokes.end(id);
                return Ok(Poked::Written);
            }
            match ram.page(page) {
                Kind::Single(state, _) => match *state {
                    // O2.
                    Page::Leaving { .. } | Page::Arriving(_) => return Ok(Poked::Later),
                    // O3.
                    Page::Absent(place) => {
                        let Some(new) = self.replacement(content) else {
                            waiting().queue_poke(id);
                            return Ok(Poked::Later);
                        };
                        *state = new;
                        let mut waiting = waiting();
                        waiting.pokes.end(id);
                        Some((place, waiting.next()))
                    }
                    _ => None,
                },
                Kind::Untouched | Kind::Whole => None,
            }
        };
        if let Some((place, until)) = replaced {
            memory.note_writes(slot, page..page + G::SIZE);
            memory.replaced(swap, page, place, until);
            return Ok(Poked::Written);
        }
        // O1. It may have left since.
        match memory.write(page, content.unwrap_or(&ZEROES)) {
            Ok(()) => {
                waiting().pokes.end(id);
                Ok(Poked::Written)
            }
            Err(Error::Absent { .. }) => {
                waiting().queue_poke(id);
                Ok(Poked::Later)
            }
            Err(error) => Err(error),
        }
    }

    /// The state of a page with this content and no place; `None` if there is no frame for it.
    fn replacement(&self, content: Option<&[u8; FRAME as usize]>) -> Option<Page> {
        let Some(bytes) = content else { return Some(Page::Zero) };
        let frame = self.memory.take_frame(self.page)?;
        frame.write(self.memory.stage2.platform(), 0, bytes);
        Some(Page::Present(Present { lent: self.memory.lent(self.page, frame), kept: None }))
    }
}

impl<P: Platform, G: Granule> Drop for Poke<'_, P, G> {
    fn drop(&mut self) {
        self.swap.waiting.lock(self.memory.stage2.platform()).pokes.remove(self.id);
        // Another may have stood back for it.
        self.memory.serve(self.swap);
    }
}
