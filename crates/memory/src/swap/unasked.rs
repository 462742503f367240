// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Content that comes although nothing has asked for its page: a store has the neighbours of a page that is wanted at
//! hand, and the source of a post-copy migration sends every page in the end.
//!
//! Both take a request for the page *first* ([`begin_read`](GuestMemory::begin_read)), and complete it as any other. From
//! then on the page is *arriving*, as if it had been brought: its place is not discarded, and a CPU that needs the page
//! meanwhile waits for this read. So no content is out of date, and each page has one way into the guest
//! ([`complete_read`](GuestMemory::complete_read)).
//!
//! Zeroes need no frame, so they need no request ([`make_zero`](GuestMemory::make_zero)).

use twofold_stage2::{Granule, Ipa, Platform};

use super::single::Page;
use super::state::Swap;
use super::store::{Place, ReadRequest};
use crate::async_fault::Arrival;
use crate::guest::GuestMemory;
use crate::ram::Kind;

/// Where content is that comes unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// It is still in the store, which can read it along. It takes no frame that others need: pages that wait for frames
    /// come first, and half of the [headroom](super::SwapOptions::headroom) is for faults.
    Ahead,
    /// It has come, and cannot wait: it takes any free frame. A page that is about to take its frame looks as if it waited
    /// for one, so this does not stand behind pages that wait.
    Here,
}

/// Why content that comes unasked is not taken. Nothing has changed. The caller answers each case in its own way, so a new
/// one must not compile unseen: the cases are exhaustive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// The page is not at that place, or not any more. It keeps what it has.
    #[error("the page is not at that place")]
    Elsewhere,
    /// The page is on its way in: its request takes the content.
    #[error("the page is on its way in")]
    Asked,
    /// There is no frame for it.
    #[error("there is no frame for the page")]
    NoFrame,
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// A request to read the page at `page`, for which nothing has asked.
    ///
    /// # Errors
    ///
    /// [`NotBegun`].
    pub fn begin_read(&self, page: Ipa, place: Place, content: Unasked) -> Result<ReadRequest, NotBegun> {
        let page = page.align_down(G::SIZE);
        self.with_absent(page, place, |swap, state| {
            let platform = self.stage2.platform();
            if content == Unasked::Ahead && swap.waiting.lock(platform).wanting() > 0 {
                return Err(NotBegun::NoFrame);
            }
            let frame = {
                let mut frames = self.frames.lock(platform);
                if content == Unasked::Ahead && frames.data_room() <= swap.options.headroom / 2 {
                    return Err(NotBegun::NoFrame);
                }
                frames.take_data(self.stage2.platform(), 1).ok_or(NotBegun::NoFrame)?
            };
            *state = Page::Arriving(place);
            swap.arriving.add();
            Ok(ReadRequest::new(page, place, self.stage2.vttbr(), frame))
        })
    }

    /// States that the content at `place` is zeroes, although nothing has asked for it. The page takes no frame, and the
    /// place is discarded.
    ///
    /// # Errors
    ///
    /// [`NotBegun`], but never for want of a frame.
    pub fn make_zero(&self, page: Ipa, place: Place) -> Result<(), NotBegun> {
        let page = page.align_down(G::SIZE);
        let until = self.with_absent(page, place, |swap, state| {
            *state = Page::Zero;
            Ok(swap.waiting.lock(self.stage2.platform()).next())
        })?;
        self.swap.iter().for_each(|swap| self.replaced(swap, page, place, until));
        Ok(())
    }

    /// Calls `change` with the state of a page that is *absent* at `place`, under the lock of the slot's backing.
    fn with_absent<R>(
        &self,
        page: Ipa,
        place: Place,
        change: impl FnOnce(&Swap, &mut Page) -> Result<R, NotBegun>,
    ) -> Result<R, NotBegun> {
        let (Some(swap), Some((_, ram))) = (self.swap.as_deref(), self.find_ram(page)) else {
            return Err(NotBegun::Elsewhere);
        };
        match ram.lock(self.stage2.platform()).page(page) {
            Kind::Single(state, _) => match *state {
                Page::Absent(at) if at == place => change(swap, state),
                Page::Arriving(at) if at == place => Err(NotBegun::Asked),
                _ => Err(NotBegun::Elsewhere),
            },
            Kind::Untouched | Kind::Whole => Err(NotBegun::Elsewhere),
        }
    }

    /// An absent page has its content without having been read: its place is not needed any more, and the entries below
    /// `until` for it end.
    pub(super) fn replaced(&self, swap: &Swap, page: Ipa, place: Place, until: u64) {
        swap.discard(place);
        self.wake(swap, page, until, Arrival::Present);
        self.serve(swap);
    }
}
