// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A huge page that is kept page by page, since a page of it has left or since no 2 MiB were free for it.
//!
//! Invariant: the states are accessed under the lock of the slot's backing. A frame has one owner: the page's state, or
//! the request of a page whose state is *leaving* or *arriving*.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::Lent;

use super::store::Place;
use crate::frames::{FRAME, PAGES};

/// The states of the pages of one huge page.
pub(crate) struct Singles(Box<[Page; PAGES as usize]>);

/// The state of one page.
#[derive(Debug, Default)]
pub(crate) enum Page {
    /// It reads as zero, and has no frame and no place.
    #[default]
    Zero,
    /// It reads as zero. Its frame was never zeroed, and is not mapped.
    Unready(Lent),
    /// It is in memory, and may be mapped.
    Present(Present),
    /// It is on its way out. `written`: a CPU has let the guest write to it since.
    Leaving {
        /// Whether a copy in the store may be out of date.
        written: bool,
    },
    /// It is in the store.
    Absent(Place),
    /// It is on its way in.
    Arriving(Place),
}

/// A page in memory.
#[derive(Debug)]
pub(crate) struct Present {
    pub(crate) lent: Lent,
    /// The store's copy, as long as the page is as it was read or written there.
    pub(crate) kept: Option<Kept>,
}

/// A copy in the store that is equal to the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) place: Place,
    /// How many hardware-tracked logs the slot had seen. When there was another, the copy may be out of date.
    pub(crate) logs: u64,
}

impl Singles {
    /// States of pages that read as zero. `None` if the heap is full.
    pub(crate) fn new() -> Option<Self> {
        let mut pages = Vec::new();
        pages.try_reserve_exact(PAGES as usize).ok()?;
        pages.resize_with(PAGES as usize, Page::default);
        Some(Self(pages.try_into().ok()?))
    }

    /// Gives each page its part of the huge page's frames.
    pub(crate) fn fill(&mut self, frames: Lent, ready: impl Fn(usize) -> bool) {
        let mut rest = frames;
        for (number, page) in self.0.iter_mut().enumerate() {
            // Never fails: the rest has a frame for each page that is left.
            let (lent, behind) = match rest.split_at(FRAME) {
                Ok(parts) => parts,
                Err(whole) => return debug_assert!(false, "{whole:?} is smaller than its pages"),
            };
            *page = if ready(number) { Page::Present(Present { lent, kept: None }) } else { Page::Unready(lent) };
            rest = behind;
        }
    }

    pub(crate) fn page(&self, number: usize) -> &Page {
        &self.0[number % PAGES as usize]
    }

    pub(crate) fn page_mut(&mut self, number: usize) -> &mut Page {
        &mut self.0[number % PAGES as usize]
    }

    /// Whether no page has a frame or a place. The last page is looked at first: where a balloon takes pages one by one, in either
    /// order, one look finds that more are to come.
    pub(crate) fn are_zero(&self) -> bool {
        matches!(self.0.last(), Some(Page::Zero)) && self.iter().all(|page| matches!(page, Page::Zero))
    }

    pub(crate) fn into_pages(self) -> impl Iterator<Item = Page> {
        self.0.into_iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Page> {
        self.0.iter_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Page> {
        self.0.iter()
    }
}

impl Page {
    /// Ends the page with its slot: calls `discard` with its place, and `frames` with its frame.
    pub(crate) fn end(self, discard: &mut impl FnMut(Place), frames: &mut impl FnMut(Lent)) {
        match self {
            Self::Zero | Self::Leaving { .. } => {}
            Self::Unready(lent) => frames(lent),
            Self::Present(Present { lent, kept }) => {
                if let Some(kept) = kept {
                    discard(kept.place);
                }
                frames(lent);
            }
            Self::Absent(place) | Self::Arriving(place) => discard(place),
        }
    }

    /// L1: takes the page's frame, and whether it was never zeroed. `None` if the page has none, or I/O in flight.
    #[inline(always)]
    pub(crate) fn leave(&mut self) -> Option<(Present, bool)> {
        let old = match self {
            Self::Present(_) | Self::Unready(_) => core::mem::replace(self, Self::Leaving { written: false }),
            _ => return None,
        };
        match old {
            Self::Present(present) => Some((present, false)),
            Self::Unready(lent) => Some((Present { lent, kept: None }, true)),
            // The state was one of those two.
            _ => None,
        }
    }

    /// Whether a frame is here, and no I/O is in flight.
    pub(crate) fn has_frame(&self) -> bool {
        matches!(self, Self::Unready(_) | Self::Present(_))
    }

    /// Whether it is not in memory, and does not read as zero.
    #[inline]
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Self::Leaving { .. } | Self::Absent(_) | Self::Arriving(_))
    }

    /// Whether I/O is in flight, or about to be.
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self, Self::Leaving { .. } | Self::Arriving(_))
    }
}
