// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading a page where it is: steps K1 to K4 of the protocol in [`super`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::{Granule, Ipa, Kib4, Platform, Run};

use super::peeks::{Bytes, State};
use super::single::Page;
use super::state::Swap;
use super::store_error::StoreError;
use crate::frames::FRAME;
use crate::guest::GuestMemory;
use crate::ram::Content as PageContent;

/// A page that is read where it is. While this lives, the store may be reading the page; dropped, it is forgotten.
#[must_use = "look at it until the page was read"]
pub struct Peek<'a, P: Platform, G: Granule = Kib4> {
    memory: &'a GuestMemory<P, G>,
    swap: &'a Swap,
    page: Ipa,
    id: u64,
}

/// What a look at a page has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Peeked {
    /// The page was read.
    Read,
    /// The page is on its way out or in, or waits for a frame. Look again later.
    Later,
    /// The store could not read the page. The next look asks again.
    Failed(StoreError),
}

/// Why a page cannot be peeked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeekError {
    /// The guest has no page store.
    #[error("the guest has no page store: attach one")]
    NotAttached,
    /// The guest has no RAM of frames there.
    #[error("the guest has no RAM at {page} that can be in a store")]
    NoRam {
        /// The page.
        page: Ipa,
    },
    /// The heap is full.
    #[error("no memory is left to read the page at {page} into")]
    NoMemory {
        /// The page.
        page: Ipa,
    },
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Begins to read the page at `page`, wherever it is. If it is in the store, it is read there and does not become
    /// resident; meanwhile it takes a frame under the limit, for which it waits as other pages do.
    ///
    /// # Errors
    ///
    /// [`PeekError`].
    pub fn peek(&self, page: Ipa) -> Result<Peek<'_, P, G>, PeekError> {
        let swap = self.swap.as_deref().ok_or(PeekError::NotAttached)?;
        let page = page.align_down(G::SIZE);
        self.find_ram(page).ok_or(PeekError::NoRam { page })?;
        let add = |bytes| swap.waiting.lock(self.stage2.platform()).peeks.add(page, bytes);
        let id = empty().and_then(add).ok_or(PeekError::NoMemory { page })?;
        Ok(Peek { memory: self, swap, page, id })
    }

    /// K4: ends the peeks that wait for what was read of this page, with the lock of the slot's backing.
    pub(super) fn end_peeks(&self, swap: &Swap, page: Ipa, frame: &Run, result: Result<(), StoreError>) {
        let platform = self.stage2.platform();
        loop {
            let taken = swap.waiting.lock(platform).peeks.take(page);
            let Some((id, mut bytes)) = taken else { return };
            if result.is_ok() {
                frame.read(platform, 0, &mut bytes[..]);
            }
            swap.waiting.lock(platform).peeks.fill(id, bytes, result);
        }
    }
}

impl<P: Platform, G: Granule> Peek<'_, P, G> {
    /// The page.
    pub fn page(&self) -> Ipa {
        self.page
    }

    /// Looks at the page, and reads it if it is there. It never waits.
    pub fn look(&mut self, bytes: &mut [u8; FRAME as usize]) -> Peeked {
        match self.step(bytes) {
            Step::Found(found) => return found,
            Step::Start => {
                // One that has a frame already is read by now, or a completion fills it.
                self.memory.start(self.swap, self.page);
            }
        }
        // This serves, too: a frame may have become free otherwise.
        if self.memory.wants_frames() > 0 {
            self.swap.notify.frames_wanted();
        }
        match self.step(bytes) {
            Step::Found(found) => found,
            Step::Start => Peeked::Later,
        }
    }

    /// K1 to K3, as far as they are under locks.
    fn step(&self, bytes: &mut [u8; FRAME as usize]) -> Step {
        let platform = self.memory.stage2.platform();
        let Some((_, ram)) = self.memory.find_ram(self.page) else { return Step::Found(Peeked::Later) };
        let ram = ram.lock(platform);
        match ram.content(self.page) {
            PageContent::At(lent, offset) => {
                lent.run().read(platform, offset, bytes);
                return Step::Found(Peeked::Read);
            }
            PageContent::Zero => {
                bytes.fill(0);
                return Step::Found(Peeked::Read);
            }
            PageContent::Away => {}
        }
        let is_absent = matches!(ram.single(self.page), Some(Page::Absent(_)));
        let mut waiting = self.swap.waiting.lock(platform);
        match waiting.peeks.state(self.id) {
            State::Filled => {
                waiting.peeks.bytes(self.id).iter().for_each(|filled| bytes.copy_from_slice(*filled));
                Step::Found(Peeked::Read)
            }
            State::Failed(cause) => {
                waiting.peeks.reset(self.id);
                Step::Found(Peeked::Failed(cause))
            }
            State::Idle | State::Reading if is_absent => {
                waiting.queue_peek(self.id);
                Step::Start
            }
            State::Wants(_) => Step::Start,
            State::Idle | State::Reading => Step::Found(Peeked::Later),
        }
    }
}

/// What a look does next.
enum Step {
    Found(Peeked),
    /// The page waits for a frame.
    Start,
}

impl<P: Platform, G: Granule> Drop for Peek<'_, P, G> {
    fn drop(&mut self) {
        self.swap.waiting.lock(self.memory.stage2.platform()).peeks.remove(self.id);
        // Another may have stood back for it.
        self.memory.serve(self.swap);
    }
}

/// Room for a page. `None` if the heap is full.
fn empty() -> Option<Bytes> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(FRAME as usize).ok()?;
    bytes.resize(FRAME as usize, 0);
    Box::<[u8]>::from(bytes).try_into().ok()
}
