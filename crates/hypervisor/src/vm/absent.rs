// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a post-copy: pages of a guest that come after the guest has begun, by commands of the launcher
//! (`docs/control.md`: absent, wanted, fill, zero).
//!
//! To the guest's memory these pages are in a store, [`swap::peer`](crate::swap), so a vCPU or a device that needs one waits as
//! for any page that has left.
//!
//! Invariants: a page is made absent only before the guest's first instruction. From then on its content is taken once, and only
//! while it is absent (D1 and D3 of `twofold_migration::postcopy::Peer`), so nothing that the guest has written is replaced. A call
//! works on at most 64 pages.

use alloc::vec::Vec;

use thiserror::Error;
use twofold_abi::channel::PAGE_SIZE;
use twofold_abi::channel::wire::WrittenWord;
use twofold_abi::virt::{self, memslot};
use twofold_migration::postcopy::Came;
use twofold_migration::ram::RamError;
use twofold_vmm::life::NotNow;
use zerocopy::FromBytes;

use super::Vm;
use crate::schedule;
use crate::swap::peer::{RAM, Source};

/// Why a page is not made absent, or is not taken.
#[derive(Debug, Error)]
pub(crate) enum Unfilled {
    /// The guest has ended, or begins anew.
    #[error(transparent)]
    State(#[from] NotNow),
    /// The guest has run here.
    #[error("the guest has begun here, so none of its pages can be made absent")]
    HasBegun,
    /// Its bundle says that all of it comes before it begins.
    #[error("the guest does not come by post-copy: start it for that")]
    NoPeer,
    /// Only RAM can be absent.
    #[error("pages of memslot {0} cannot be absent")]
    Memslot(u8),
    /// The content is no list of pages, or no page.
    #[error("{0} bytes are no list of pages, and no page")]
    Content(usize),
    /// There is no such page.
    #[error("the guest's RAM has no page {0:#x}")]
    NoPage(u64),
    /// The guest's memory does not take it.
    #[error(transparent)]
    Memory(#[from] RamError),
}

/// What to do with the pages of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// They are absent.
    Absent,
    /// They were absent, and are zero.
    Zero,
}

/// Whether a page was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// It was.
    Done,
    /// There is no frame for it until another page has left.
    NoFrame,
}

impl Vm {
    /// Does this with the pages of row number `row` of a list of pages of a memslot. Returns whether there are more rows.
    pub(crate) fn take_listed(
        &self,
        listed: Listed,
        memslot: u8,
        content: &[u8],
        row: usize,
    ) -> Result<bool, Unfilled> {
        let peer = self.peer()?;
        if memslot != memslot::RAM {
            return Err(Unfilled::Memslot(memslot));
        }
        let rows = <[WrittenWord]>::ref_from_bytes(content).map_err(|_| Unfilled::Content(content.len()))?;
        let Some(words) = rows.get(row) else { return Ok(false) };
        let (first, mask) = (words.first_page.get(), words.mask.get());
        let pages = (0..64).filter(|bit| mask >> bit & 1 == 1);
        for page in pages.map(|bit| first.saturating_add(bit)) {
            match listed {
                Listed::Absent if !self.is_incoming() => return Err(Unfilled::HasBegun),
                Listed::Absent => {
                    peer.absent_page((RAM, page), |ipa, place| self.memory.make_absent(ipa, place))?;
                }
                Listed::Zero => _ = self.came(peer, page, None)?,
            }
        }
        Ok(row + 1 < rows.len())
    }

    /// Takes the page at `page` times 4096, which has come, if it is absent.
    pub(crate) fn fill(&self, page: u32, content: &[u8]) -> Result<Filled, Unfilled> {
        let peer = self.peer()?;
        let bytes = match content.len() {
            0 => None,
            PAGE_SIZE => Some(content),
            found => return Err(Unfilled::Content(found)),
        };
        let page = u64::from(page);
        let number = page.checked_sub(virt::RAM_BASE / PAGE_SIZE as u64).ok_or(Unfilled::NoPage(page))?;
        self.came(peer, number, bytes)
    }

    /// The absent pages that something waits for, and that were not returned yet, 4 bytes each.
    pub(crate) fn wanted(&self) -> Result<Vec<u8>, Unfilled> {
        /// More are for the next answer.
        const MOST: usize = 64;
        let peer = self.peer()?;
        let numbers = core::iter::from_fn(|| peer.next_question()).take(MOST);
        let first = virt::RAM_BASE / PAGE_SIZE as u64;
        Ok(numbers.flat_map(|(_, page)| ((first + page) as u32).to_le_bytes()).collect())
    }

    /// Whether [`wanted`](Self::wanted) would return nothing although pages are absent.
    pub(crate) fn wants_nothing(&self) -> bool {
        self.peer().is_ok_and(|peer| {
            let (asks, absent) = peer.asks();
            !asks && absent > 0
        })
    }

    /// Stores a page that has come.
    fn came(&self, peer: &Source, page: u64, bytes: Option<&[u8]>) -> Result<Filled, Unfilled> {
        match peer.came(&self.memory, &Came { slot: RAM, page, count: 1, bytes }) {
            Ok(()) => Ok(Filled::Done),
            Err(RamError::NoFrame { slot, page }) => {
                let room = self.swap().filter(|swap| swap.is_own() && !swap.rests()).map(|swap| swap.task());
                // This page is in no queue for frames, so nothing else wakes the task.
                schedule::wake(room.ok_or(RamError::NoFrame { slot, page })?);
                Ok(Filled::NoFrame)
            }
            Err(why) => Err(why.into()),
        }
    }

    /// P2 of [`sweep`](super::sweep), and the source.
    fn peer(&self) -> Result<&Source, Unfilled> {
        self.look()?;
        self.swap().and_then(|swap| swap.peer()).ok_or(Unfilled::NoPeer)
    }
}
