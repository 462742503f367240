// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which absent pages a guest's task reads before the guest asks for them.
//!
//! A vCPU that waits for a page [says so](ReadAhead::wanted), which costs it a look at a few streams. If the guest goes through its
//! memory page by page, the pages behind are noted, and the task takes [one after the other](ReadAhead::take). So a fault reads
//! one page, and the task the others.

use alloc::collections::VecDeque;

use twofold_memory::swap::Streams;
use twofold_stage2::{Ipa, IpaRange};

/// The pages of one guest that are to be read ahead.
#[derive(Debug)]
pub struct ReadAhead {
    streams: Streams,
    /// None is empty. There is room for [`RANGES`], and for no more.
    ranges: VecDeque<IpaRange>,
}

/// The most pages that are read for one that is wanted, itself among them: 64 KiB, as a store in a file does.
pub const MOST: u64 = 16;
/// Ranges that wait for the task: one for each stream.
pub const RANGES: usize = 8;

impl ReadAhead {
    /// Nothing is to be read.
    #[must_use]
    pub fn new() -> Self {
        Self { streams: Streams::new(), ranges: VecDeque::with_capacity(RANGES) }
    }

    /// A vCPU waits for this page. Returns whether others are to be read now.
    pub fn wanted(&mut self, page: Ipa) -> bool {
        let window = self.streams.window(page, MOST);
        let (Some(first), Some(end)) = (page.checked_add(PAGE), page.checked_add(window * PAGE)) else { return false };
        if first == end {
            return false;
        }
        if self.ranges.len() == RANGES {
            // The oldest range gives way: the guest has probably passed it.
            self.ranges.pop_front();
        }
        self.ranges.push_back(first..end);
        true
    }

    /// The next page to read, which is not noted any more.
    pub fn take(&mut self) -> Option<Ipa> {
        let range = self.ranges.front_mut()?;
        let page = range.start;
        range.start = page + PAGE;
        if range.start == range.end {
            self.ranges.pop_front();
        }
        Some(page)
    }

    /// No frame is free for what is noted.
    pub fn forget(&mut self) {
        self.ranges.clear();
    }
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self::new()
    }
}

/// Bytes of a page.
const PAGE: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const fn page(number: u64) -> Ipa {
        Ipa::new(number * PAGE)
    }

    fn noted(ahead: &mut ReadAhead) -> Vec<u64> {
        core::iter::from_fn(|| ahead.take()).map(|page| page.raw() / PAGE).collect()
    }

    #[test]
    fn a_page_alone_brings_no_other() {
        let mut ahead = ReadAhead::new();
        assert!(!ahead.wanted(page(7)) && !ahead.wanted(page(9)) && !ahead.wanted(page(3)));
        assert_eq!(ahead.take(), None);
        assert!(!ahead.wanted(Ipa::new(0u64.wrapping_sub(PAGE))), "nothing is behind the last page");
    }

    #[test]
    fn what_is_behind_a_sequential_access_is_read_in_order() {
        let mut ahead = ReadAhead::new();
        assert!(!ahead.wanted(page(100)));
        let mut at = 101;
        for pages in [2, 4, 8, 16, 16] {
            assert!(ahead.wanted(page(at)));
            assert_eq!(noted(&mut ahead), (at + 1..at + pages).collect::<Vec<_>>());
            at += pages;
        }
    }

    #[test]
    fn the_oldest_range_gives_way_and_all_are_forgotten_for_want_of_frames() {
        let mut ahead = ReadAhead::new();
        let stream = |stream: u64| stream * 1000;
        (0..8).for_each(|number| assert!(!ahead.wanted(page(stream(number)))));
        (0..8).for_each(|number| assert!(ahead.wanted(page(stream(number) + 1))));
        assert!(ahead.wanted(page(stream(7) + 3)));
        let first = (1..8).map(|number| stream(number) + 2);
        assert_eq!(noted(&mut ahead), first.chain(stream(7) + 4..stream(7) + 7).collect::<Vec<_>>());
        assert!(ahead.wanted(page(stream(7) + 7)));
        ahead.forget();
        assert_eq!(ahead.take(), None);
    }
}
