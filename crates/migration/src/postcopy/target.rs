// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages are absent at the target.
//!
//! Invariant: a page is absent until it was stored ([`Target::stored`]), and is never absent again.

use alloc::string::String;
use alloc::vec::Vec;

use crate::pages::PageSet;
use crate::stream::Slot;

/// The target's state: the pages that it lacks.
#[derive(Clone, Debug)]
pub struct Target {
    slots: Vec<Slot>,
    absent: PageSet,
    /// How many those are.
    left: u64,
    /// Absent pages that vCPUs wait for.
    waits: PageSet,
    /// Why there is no link.
    cut: Option<String>,
}

/// What a vCPU that needs a page does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It goes on: the page is here.
    Here,
    /// It waits, and the source is to be asked for the page now.
    Ask,
    /// It waits. The source was asked.
    Wait,
    /// It waits until there is a link again.
    Cut,
}

/// Whether the guest can go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetState {
    /// Pages come.
    #[error("{absent} pages are absent")]
    Fetching {
        /// The pages that are absent.
        absent: u64,
    },
    /// The link is cut. The guest stands still where it needs an absent page.
    #[error("the link to the source is cut ({reason}): {absent} pages are absent, and vCPUs wait for {waits} of them")]
    Stopped {
        /// Why the link is cut.
        reason: String,
        /// The pages that are absent.
        absent: u64,
        /// Those that vCPUs wait for.
        waits: u64,
    },
    /// All pages are here.
    #[error("all pages are here")]
    Complete,
}

impl Target {
    /// A target that lacks these pages.
    pub fn new(slots: &[Slot], absent: PageSet) -> Self {
        let left = absent.count();
        Self { slots: slots.to_vec(), absent, left, waits: PageSet::none(slots), cut: None }
    }

    /// The memslots. Pages are given by a memslot's index in them.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The pages that are absent.
    pub fn absent(&self) -> &PageSet {
        &self.absent
    }

    /// The absent pages that vCPUs wait for.
    pub fn waits(&self) -> &PageSet {
        &self.waits
    }

    /// How many pages are absent.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Notes that a page is absent, too: before the guest's first entry.
    pub fn lacks(&mut self, slot: usize, page: u64) {
        self.left += u64::from(self.absent.insert(slot, page));
    }

    /// Notes that a vCPU needs a page.
    pub fn need(&mut self, slot: usize, page: u64) -> Need {
        if !self.absent.contains(slot, page) {
            return Need::Here;
        }
        match (self.waits.insert(slot, page), &self.cut) {
            (_, Some(_)) => Need::Cut,
            (true, None) => Need::Ask,
            (false, None) => Need::Wait,
        }
    }

    /// Whether a page that has come is to be stored: it is absent. If not, the guest may have written to it.
    pub fn wants(&self, slot: usize, page: u64) -> bool {
        self.absent.contains(slot, page)
    }

    /// Notes that a page was stored. Returns whether a vCPU waits for it.
    pub fn stored(&mut self, slot: usize, page: u64) -> bool {
        self.left -= u64::from(self.absent.remove(slot, page));
        self.waits.remove(slot, page)
    }

    /// Notes that the link is cut, and why. The first reason stays.
    pub fn cut(&mut self, reason: &str) {
        self.cut.get_or_insert_with(|| reason.into());
    }

    /// Notes that there is a link again, on which the source was asked for all pages that vCPUs wait for.
    pub fn resume(&mut self) {
        self.cut = None;
    }

    /// Whether the guest can go on.
    pub fn state(&self) -> TargetState {
        match (self.left, &self.cut) {
            (0, _) => TargetState::Complete,
            (absent, None) => TargetState::Fetching { absent },
            (absent, Some(reason)) => {
                TargetState::Stopped { reason: reason.clone(), absent, waits: self.waits.count() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_page_is_asked_for_once_and_stored_once() {
        let slots = [Slot { number: 3, read_only: false, first: 0, pages: 10 }];
        let mut target = Target::new(&slots, PageSet::all(&slots));
        assert_eq!([target.need(0, 4), target.need(0, 4), target.need(0, 5)], [Need::Ask, Need::Wait, Need::Ask]);
        assert!(target.wants(0, 4) && target.stored(0, 4) && !target.wants(0, 4));
        assert_eq!((target.need(0, 4), target.need(0, 10), target.need(1, 0)), (Need::Here, Need::Here, Need::Here));
        assert!(!target.stored(0, 6), "no vCPU waits for it");
        target.cut("reset");
        target.cut("a later reason");
        assert_eq!(target.need(0, 7), Need::Cut);
        assert_eq!(
            target.state().to_string(),
            "the link to the source is cut (reset): 8 pages are absent, and vCPUs wait for 2 of them"
        );
        target.resume();
        assert_eq!((target.need(0, 7), target.state()), (Need::Wait, TargetState::Fetching { absent: 8 }));
        for page in 0..10 {
            target.stored(0, page);
        }
        assert_eq!(target.state(), TargetState::Complete);
        target.cut("nothing is needed");
        assert_eq!(target.state(), TargetState::Complete);
    }
}
