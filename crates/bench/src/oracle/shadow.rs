// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The copy of the guest's memory that the log is judged by, and what is known of each page.
//!
//! Invariant: a page that is [`Known::Copied`] was copied after the log last cleared it, and not told of since: so, with
//! nobody writing, and the log asked for the last time, the guest's page and its copy are the same.

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
    /// It was written, and cleared, in an earlier round.
    was_dirty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nothing: no log ran, or its start has put all pages into it.
    Nothing,
    /// The log says that it is dirty: it was written since it was copied.
    Told,
    /// It is as it was copied.
    Copied,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages that the log calls clean, that had been dirty, and that were compared, each time.
    pub compared: u64,
    /// Pages that the log told of after it had been told to clear them.
    pub redirtied: u64,
    /// Pages of which the log does not tell that they were written.
    pub lost: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.compared += other.compared;
        self.redirtied += other.redirtied;
        self.lost += other.lost;
    }
}

/// A page that was written, and is in no log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its number.
    pub page: u64,
    /// How many of its words differ.
    pub words: u64,
    /// The first of them.
    pub first: u64,
    /// What that was when it was copied.
    pub copied: u64,
    /// What it is.
    pub found: u64,
}

impl Shadow {
    /// Nothing is copied yet.
    pub fn new() -> Self {
        let page = Page { known: Known::Nothing, was_dirty: false };
        Self { words: vec![0; (PAGES * WORDS) as usize].into(), pages: vec![page; PAGES as usize].into() }
    }

    /// No log runs, or one was started with all pages in it: nothing is known of any.
    pub fn forget(&mut self) {
        self.pages.iter_mut().for_each(|page| page.known = Known::Nothing);
    }

    /// The log tells of a page. Whether that is news of a page that it had cleared.
    pub fn told(&mut self, page: u64) -> bool {
        let page = &mut self.pages[page as usize];
        let is_news = page.known == Known::Copied;
        if page.known != Known::Nothing {
            page.known = Known::Told;
        }
        is_news
    }

    /// Copies a page. The log has cleared it, and is done with that.
    pub fn copy(&mut self, guest: &Guest, page: u64) {
        let at = &mut self.pages[page as usize];
        at.was_dirty |= at.known == Known::Told;
        at.known = Known::Copied;
        for (copy, word) in self.words[words(page)].iter_mut().zip(guest.page(page)) {
            *copy = word.load(Ordering::Relaxed);
        }
    }

    /// Compares all pages of which the log has not told, and that were dirty in an earlier round. Nobody writes.
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
                // Each loss is told of once.
                self.copy(guest, page);
            }
        }
        tally
    }

    fn difference(&self, guest: &Guest, page: u64) -> Option<Lost> {
        let (copy, found) = (&self.words[words(page)], guest.page(page));
        let pairs = || copy.iter().zip(found).map(|(copy, word)| (*copy, word.load(Ordering::Relaxed)));
        // Most pages are the same, which takes no branch for each word.
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
        assert_eq!(compare(&mut shadow), (0, vec![]), "none was dirty before");

        for page in [0, 3, PAGES - 1] {
            assert!(shadow.told(page) && !shadow.told(page));
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
        shadow.told(0);
        assert_eq!(compare(&mut shadow), (2, vec![]), "it was told of");
        shadow.forget();
        assert_eq!(compare(&mut shadow), (0, vec![]));
    }
}
