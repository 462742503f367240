// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copy of the guest's memory that judges the log, and the state of each page.
//!
//! Invariant: a page that is `Known::Copied` was copied after the log last cleared it, and the log has not reported
//! it since. So while all writers are held, and after a last get, the guest's page equals its copy.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::tally::Tally;

/// The guest's memory, as the judge reads it.
pub trait GuestPages {
    /// The number of pages.
    fn count(&self) -> u64;

    /// Reads a page. The guest may be writing to it, except in [`Judge::compare`].
    fn read(&self, page: u64, into: &mut Page);
}

/// The bytes of a page.
pub type Page = [u8; PAGE];
/// Bytes in a page.
pub const PAGE: usize = 4 << 10;

/// The judge of one tracker's logs.
pub struct Judge {
    pages: Vec<State>,
    /// The page that was read last.
    read: Box<Page>,
    tally: Tally,
}

struct State {
    known: Known,
    /// It was written, reported and cleared earlier.
    was_dirty: bool,
    /// `None` for a page of zeros.
    copy: Option<Box<Page>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nothing: no log runs, or its start made all pages dirty.
    Nothing,
    /// The log reports that it is dirty: it was written since the copy.
    Dirty,
    /// It equals its copy.
    Copied,
}

/// A page that was written but is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its number.
    pub page: u64,
    /// The round in which it was found, from 1 on.
    pub round: u64,
    /// How many of its words differ.
    pub words: u64,
    /// The first of them.
    pub first: u64,
    /// That word in the copy.
    pub copied: u64,
    /// That word in the guest.
    pub found: u64,
}

impl Judge {
    /// A judge that knows no page.
    pub fn new() -> Self {
        Self { pages: Vec::new(), read: empty(), tally: Tally::default() }
    }

    /// The counts so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// A log has started: with all pages dirty, so no page is known; or empty, so every page is copied now.
    pub fn start(&mut self, memory: &impl GuestPages, all_dirty: bool) {
        self.tally.starts += 1;
        let count = memory.count();
        self.pages.resize_with(count as usize, || State { known: Known::Nothing, was_dirty: false, copy: None });
        self.pages.iter_mut().for_each(|page| page.known = Known::Nothing);
        if !all_dirty {
            (0..count).for_each(|page| self.copy(memory, page));
        }
    }

    /// O1: the log reports this page.
    pub fn report(&mut self, page: u64) {
        self.tally.redirtied += u64::from(self.counts(page));
        let known = &mut self.pages[page as usize].known;
        if *known == Known::Copied {
            *known = Known::Dirty;
        }
    }

    /// O2: compares each page that the log does not report with its copy. Calls `lost` for each that differs. The
    /// caller holds all writers, and has reported the pages of a last get.
    pub fn compare(&mut self, memory: &impl GuestPages, mut lost: impl FnMut(&Lost)) {
        self.tally.rounds += 1;
        for page in 0..self.pages.len() as u64 {
            if self.pages[page as usize].known != Known::Copied {
                continue;
            }
            self.tally.compared += u64::from(self.counts(page));
            if self.differs(memory, page) {
                let copy = self.pages[page as usize].copy.as_deref();
                lost(&difference(copy.unwrap_or(&[0; PAGE]), &self.read, page, self.tally.rounds));
                self.tally.lost += 1;
                // Each loss is counted once.
                self.copy(memory, page);
            }
        }
    }

    /// O4: copies a page. The log has cleared it before.
    pub fn copy(&mut self, memory: &impl GuestPages, page: u64) {
        memory.read(page, &mut self.read);
        let state = &mut self.pages[page as usize];
        state.was_dirty |= state.known == Known::Dirty;
        state.known = Known::Copied;
        if is_zero(&self.read) {
            state.copy = None;
        } else {
            core::mem::swap(state.copy.get_or_insert_with(empty), &mut self.read);
        }
    }

    /// While no log runs, blocks were coalesced.
    pub fn coalesced(&mut self, blocks: u64) {
        self.tally.blocks += blocks;
    }

    /// Whether a comparison of this page would count, and would find that it differs from its copy. A control that
    /// withholds such a page from [`report`](Self::report) has to find it lost.
    pub fn would_be_lost(&mut self, memory: &impl GuestPages, page: u64) -> bool {
        self.counts(page) && self.differs(memory, page)
    }

    /// Reads a page, and compares it with its copy.
    fn differs(&mut self, memory: &impl GuestPages, page: u64) -> bool {
        memory.read(page, &mut self.read);
        let copy = self.pages[page as usize].copy.as_deref();
        !copy.map_or_else(|| is_zero(&self.read), |copy| is_same(copy, &self.read))
    }

    /// Whether a comparison of this page would count.
    fn counts(&self, page: u64) -> bool {
        let State { known, was_dirty, .. } = self.pages[page as usize];
        known == Known::Copied && was_dirty
    }
}

impl Default for Judge {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, round, words, first, copied, found } = self;
        write!(
            f,
            "page {page} is lost in round {round}: {words} words differ, the first is word {first}, {copied:#x} in the \
             copy and {found:#x} in the guest"
        )
    }
}

/// Allocated on the heap, because EL2's stack is small.
fn empty() -> Box<Page> {
    alloc::vec![0; PAGE].into_boxed_slice().try_into().expect("it has the length of a page")
}

#[cold]
#[inline(never)]
fn difference(copy: &Page, found: &Page, page: u64, round: u64) -> Lost {
    let words = |page| lines(page).flat_map(words);
    let mut differ = (0..).zip(words(copy).zip(words(found))).filter(|(_, (copy, found))| copy != found);
    let (first, (copied, found)) = differ.next().expect("the pages differ");
    Lost { page, round, words: 1 + differ.count() as u64, first, copied, found }
}

// Most pages are equal. Comparing those takes one branch a line.

fn is_zero(page: &Page) -> bool {
    lines(page).all(|line| words(line).fold(0, |all, word| all | word) == 0)
}

fn is_same(one: &Page, other: &Page) -> bool {
    let differs = |(one, other)| words(one).zip(words(other)).fold(0, |all, (one, other)| all | (one ^ other));
    lines(one).zip(lines(other)).all(|both| differs(both) == 0)
}

fn lines(page: &Page) -> impl Iterator<Item = &[u8; 64]> {
    page.as_chunks().0.iter()
}

fn words(line: &[u8; 64]) -> impl Iterator<Item = u64> {
    line.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use core::cell::RefCell;

    use super::*;

    const PAGES: u64 = 130;

    struct Memory(RefCell<Vec<Page>>);

    impl Memory {
        fn new() -> Self {
            Self(RefCell::new(vec![[0; PAGE]; PAGES as usize]))
        }

        fn write(&self, page: u64, word: usize) {
            self.0.borrow_mut()[page as usize][8 * word..][..8].fill(0xff);
        }
    }

    impl GuestPages for Memory {
        fn count(&self) -> u64 {
            PAGES
        }

        fn read(&self, page: u64, into: &mut Page) {
            *into = self.0.borrow()[page as usize];
        }
    }

    /// Compares; returns the pages that newly count as compared, and those that are lost.
    fn compare(judge: &mut Judge, memory: &Memory) -> (u64, Vec<(u64, u64, u64)>) {
        let (before, mut lost) = (judge.tally(), Vec::new());
        judge.compare(memory, |found| lost.push((found.page, found.words, found.first)));
        let now = judge.tally();
        assert_eq!(now.lost - before.lost, lost.len() as u64);
        assert_eq!(now.rounds, before.rounds + 1);
        (now.compared - before.compared, lost)
    }

    #[test]
    fn what_differs_in_any_word_is_lost_once() {
        let (mut judge, memory) = (Judge::new(), Memory::new());
        judge.start(&memory, false);
        memory.write(3, 0);
        assert_eq!(compare(&mut judge, &memory), (0, vec![(3, 1, 0)]), "no page was dirty before");
        assert_eq!(compare(&mut judge, &memory), (0, vec![]));

        for page in [0, 3, PAGES - 1] {
            memory.write(page, 511);
            judge.report(page);
            judge.copy(&memory, page);
        }
        assert_eq!(compare(&mut judge, &memory), (3, vec![]));
        memory.write(3, 7);
        memory.write(3, 9);
        memory.write(PAGES - 1, 0);
        memory.write(1, 5);
        assert_eq!(compare(&mut judge, &memory), (3, vec![(1, 1, 5), (3, 2, 7), (PAGES - 1, 1, 0)]));
        assert_eq!(compare(&mut judge, &memory), (3, vec![]));
    }

    #[test]
    fn a_reported_page_is_not_compared_until_it_is_copied() {
        let (mut judge, memory) = (Judge::new(), Memory::new());
        judge.start(&memory, false);
        judge.report(0);
        judge.copy(&memory, 0);
        assert_eq!(judge.tally().redirtied, 0, "its first report");
        memory.write(0, 1);
        judge.report(0);
        judge.report(0);
        assert_eq!(judge.tally().redirtied, 1);
        assert_eq!(compare(&mut judge, &memory), (0, vec![]));
        judge.copy(&memory, 0);
        assert_eq!(compare(&mut judge, &memory), (1, vec![]));
    }

    #[test]
    fn a_log_of_all_pages_makes_the_copies_worthless() {
        let (mut judge, memory) = (Judge::new(), Memory::new());
        judge.start(&memory, false);
        judge.report(0);
        judge.copy(&memory, 0);
        judge.start(&memory, true);
        (0..PAGES).for_each(|page| memory.write(page, 2));
        assert_eq!(compare(&mut judge, &memory), (0, vec![]));
        (0..PAGES).for_each(|page| judge.report(page));
        (0..PAGES).for_each(|page| judge.copy(&memory, page));
        assert_eq!(compare(&mut judge, &memory), (1, vec![]), "only page 0 was ever written");
        assert_eq!((judge.tally().starts, judge.tally().redirtied), (2, 0));
    }

    #[test]
    fn pages_of_zeros_are_compared_too() {
        let (mut judge, memory) = (Judge::new(), Memory::new());
        memory.write(5, 3);
        judge.start(&memory, false);
        memory.0.borrow_mut()[5] = [0; PAGE];
        assert_eq!(compare(&mut judge, &memory), (0, vec![(5, 1, 3)]));
        memory.write(6, 511);
        assert_eq!(compare(&mut judge, &memory), (0, vec![(6, 1, 511)]));
    }
}
