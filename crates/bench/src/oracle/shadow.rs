// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copy of the guest's memory that judges the log, and the state of each page.
//!
//! Invariant: a page that is [`Known::Copied`] was copied after the log last cleared it, and the log has not reported
//! it since. So while no thread writes, and after a last get, the guest's page equals its copy.

use std::ops::AddAssign;
use std::sync::atomic::Ordering;

use super::guest::{Guest, PAGE, PAGES};

/// The copy.
pub struct Shadow {
    words: Box<[u64]>,
    pages: Box<[Page]>,
}

#[derive(Clone, Copy)]
struct Page {
    known: Known,
    /// It was written and cleared in an earlier round.
    was_dirty: bool,
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

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Comparisons of pages that are not in the log but were dirty before.
    pub compared: u64,
    /// Pages that the log reported again after it had cleared them.
    pub redirtied: u64,
    /// Pages that were written but are not in the log.
    pub lost: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.compared += other.compared;
        self.redirtied += other.redirtied;
        self.lost += other.lost;
    }
}

/// A page that was written but is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its number.
    pub page: u64,
    /// How many of its words differ.
    pub words: u64,
    /// The first of them.
    pub first: u64,
    /// That word in the copy.
    pub copied: u64,
    /// That word in the guest.
    pub found: u64,
}

impl Shadow {
    /// Makes a copy of which no page is known.
    pub fn new() -> Self {
        let page = Page { known: Known::Nothing, was_dirty: false };
        Self { words: vec![0; (PAGES * WORDS) as usize].into(), pages: vec![page; PAGES as usize].into() }
    }

    /// Forgets all pages: no log runs, or its start made all pages dirty.
    pub fn forget(&mut self) {
        self.pages.iter_mut().for_each(|page| page.known = Known::Nothing);
    }

    /// Marks a page that the log reports. Returns whether the log reports it again after a clear.
    pub fn mark_dirty(&mut self, page: u64) -> bool {
        let page = &mut self.pages[page as usize];
        let is_news = page.known == Known::Copied;
        if page.known != Known::Nothing {
            page.known = Known::Dirty;
        }
        is_news
    }

    /// Copies a page. Call it after the log has cleared the page.
    pub fn copy(&mut self, guest: &Guest, page: u64) {
        let at = &mut self.pages[page as usize];
        at.was_dirty |= at.known == Known::Dirty;
        at.known = Known::Copied;
        for (copy, word) in self.words[words(page)].iter_mut().zip(guest.page(page)) {
            *copy = word.load(Ordering::Relaxed);
        }
    }

    /// Compares all pages that the log does not report and that were dirty in an earlier round. The caller must hold
    /// all writers.
    pub fn compare(&mut self, guest: &Guest, mut lost: impl FnMut(&Lost)) -> Tally {
        let mut tally = Tally::default();
        for page in 0..PAGES {
            let Page { known, was_dirty } = self.pages[page as usize];
            if known != Known::Copied || !was_dirty {
                continue;
            }
            tally.compared += 1;
            if let Some(difference) = self.difference(guest, page) {
                lost(&difference);
                tally.lost += 1;
                // Each loss is reported once.
                self.copy(guest, page);
            }
        }
        tally
    }

    fn difference(&self, guest: &Guest, page: u64) -> Option<Lost> {
        let (copy, found) = (&self.words[words(page)], guest.page(page));
        let pairs = || copy.iter().zip(found).map(|(copy, word)| (*copy, word.load(Ordering::Relaxed)));
        // Most pages are equal. Comparing those takes no branch per word.
        if pairs().fold(0, |all, (copy, word)| all | (copy ^ word)) == 0 {
            return None;
        }
        let mut differ = (0..).zip(pairs()).filter(|(_, (copy, word))| copy != word);
        let (first, (copied, found)) = differ.next()?;
        Some(Lost { page, words: 1 + differ.count() as u64, first, copied, found })
    }
}

/// Words of a page.
const WORDS: u64 = PAGE / 8;

fn words(page: u64) -> std::ops::Range<usize> {
    (page * WORDS) as usize..((page + 1) * WORDS) as usize
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    fn write(guest: &Guest, page: u64, word: u64) {
        guest.page(page)[word as usize].store(!0, Ordering::Relaxed);
    }

    #[test]
    fn what_differs_in_any_word_is_lost_once() {
        let guest = Guest::new(&mut Random::new(1, 0)).unwrap();
        let mut shadow = Shadow::new();
        let compare = |shadow: &mut Shadow| {
            let mut lost = Vec::new();
            let tally = shadow.compare(&guest, |found| lost.push((found.page, found.words, found.first)));
            (tally.compared, lost)
        };
        (0..PAGES).for_each(|page| shadow.copy(&guest, page));
        write(&guest, 3, 0);
        assert_eq!(compare(&mut shadow), (0, vec![]), "no page was dirty before");

        for page in [0, 3, PAGES - 1] {
            assert!(shadow.mark_dirty(page) && !shadow.mark_dirty(page));
            shadow.copy(&guest, page);
        }
        assert_eq!(compare(&mut shadow), (3, vec![]));
        write(&guest, 3, 7);
        write(&guest, 3, 9);
        write(&guest, PAGES - 1, 511);
        write(&guest, 1, 5);
        assert_eq!(compare(&mut shadow), (3, vec![(3, 2, 7), (PAGES - 1, 1, 511)]));
        assert_eq!(compare(&mut shadow), (3, vec![]));

        write(&guest, 0, 1);
        shadow.mark_dirty(0);
        assert_eq!(compare(&mut shadow), (2, vec![]), "the log has reported it");
        shadow.forget();
        assert_eq!(compare(&mut shadow), (0, vec![]));
    }
}
