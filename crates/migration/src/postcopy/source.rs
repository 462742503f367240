// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which absent page is sent next.
//!
//! Invariant: each page that the target lacks is sent once on each link. What it needs first comes first.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::pages::PageSet;
use crate::ram::{AHEAD, Ahead};
use crate::stream::Slot;

/// The source's state: the pages that were not sent.
#[derive(Debug)]
pub struct Source {
    slots: Vec<Slot>,
    unsent: PageSet,
    /// Pages that vCPUs wait for, and those that are in this list.
    wanted: VecDeque<(usize, u64)>,
    listed: PageSet,
    /// Where the pages that are not waited for go on.
    next: (usize, u64),
    /// Links so far.
    links: u64,
}

/// A request for pages that the guest does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target asks for {count} pages from {page:#x} on of memslot {slot}, which has no such pages")]
pub struct NoSuchPages {
    /// The memslot's number.
    pub slot: u16,
    /// The first page.
    pub page: u64,
    /// How many.
    pub count: u64,
}

impl Source {
    /// A source that has yet to send these pages.
    pub fn new(slots: &[Slot], absent: PageSet) -> Self {
        let (wanted, listed) = (VecDeque::new(), PageSet::none(slots));
        Self { slots: slots.to_vec(), unsent: absent, wanted, listed, next: (0, 0), links: 0 }
    }

    /// The memslots.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The pages that were not sent on this link.
    pub fn left(&self) -> u64 {
        self.unsent.count()
    }

    /// Notes that the target wants pages: a vCPU waits for them, or will soon.
    ///
    /// # Errors
    ///
    /// The guest has no such pages. Nothing is noted then.
    pub fn request(&mut self, waits: bool, slot: u16, page: u64, count: u32) -> Result<(), NoSuchPages> {
        let wrong = NoSuchPages { slot, page, count: count.into() };
        let index = self.slots.iter().position(|known| known.number == slot).ok_or(wrong)?;
        let end = page.checked_add(count.into()).filter(|&end| end <= self.slots[index].pages).ok_or(wrong)?;
        if !waits {
            self.next = (index, page);
            return Ok(());
        }
        for page in page..end {
            if self.unsent.contains(index, page) && self.listed.insert(index, page) {
                self.wanted.push_back((index, page));
            }
        }
        // What a vCPU needs next is often behind what it needs now.
        self.next = (index, end);
        Ok(())
    }

    /// Returns the page to send now, while the pages in `ahead` are on their way from the source's own store; `None` if
    /// all were sent, or enough are on their way. A page that a vCPU waits for is never held up by others.
    pub fn choose<A>(&mut self, ahead: &mut Ahead<A>) -> Option<(usize, u64)> {
        if ahead.link != self.links {
            // What was asked for on an earlier link is among what the target lacks, or has come.
            ahead.clear();
            ahead.link = self.links;
        }
        if ahead.len() < AHEAD || !self.wanted.is_empty() { self.next() } else { None }
    }

    /// Returns the page to send now: the memslot's index, and the page. `None` if all were sent.
    #[expect(clippy::should_implement_trait, reason = "requests come between two pages")]
    pub fn next(&mut self) -> Option<(usize, u64)> {
        while let Some((slot, page)) = self.wanted.pop_front() {
            self.listed.remove(slot, page);
            if self.unsent.remove(slot, page) {
                return Some((slot, page));
            }
        }
        let (slot, page) = self.unsent.next(self.next).or_else(|| self.unsent.next((0, 0)))?;
        self.unsent.remove(slot, page);
        self.next = (slot, page + 1);
        Some((slot, page))
    }

    /// Notes that there is a new link, and which pages the target lacks (L3).
    pub fn resume(&mut self, lacks: PageSet) {
        self.unsent = lacks;
        self.wanted.clear();
        self.listed.clear();
        self.links += 1;
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn slots() -> [Slot; 2] {
        [(7, 4), (9, 200)].map(|(number, pages)| Slot { number, read_only: false, first: 0, pages })
    }

    fn all(source: &mut Source) -> Vec<(usize, u64)> {
        core::iter::from_fn(|| source.next()).collect()
    }

    #[test]
    fn each_page_is_sent_once_and_what_is_waited_for_first() {
        let mut source = Source::new(&slots(), PageSet::all(&slots()));
        assert_eq!((source.next(), source.next()), (Some((0, 0)), Some((0, 1))));
        source.request(true, 9, 100, 2).unwrap();
        source.request(true, 9, 100, 1).unwrap();
        source.request(true, 7, 1, 1).unwrap();
        assert_eq!((source.next(), source.next()), (Some((1, 100)), Some((1, 101))));
        assert_eq!(source.next(), Some((0, 2)), "behind the last request");
        source.request(false, 9, 150, 1).unwrap();
        assert_eq!((source.next(), source.left()), (Some((1, 150)), 204 - 6));
        let mut rest = all(&mut source);
        assert_eq!(rest[..50], (151..200).map(|page| (1, page)).chain([(0, 3)]).collect::<Vec<_>>());
        rest.sort_unstable();
        rest.dedup();
        assert_eq!((rest.len(), source.left()), (198, 0));
    }

    /// A vCPU that waits comes before a guess, and no page is left out behind one.
    #[test]
    fn a_guess_changes_only_the_order() {
        let mut source = Source::new(&slots(), PageSet::all(&slots()));
        source.request(false, 7, 3, 1).unwrap();
        source.request(true, 9, 199, 1).unwrap();
        assert_eq!(source.next(), Some((1, 199)));
        let mut rest = all(&mut source);
        assert_eq!((rest.len(), rest[0]), (203, (0, 0)));
        rest.dedup();
        assert_eq!(rest.len(), 203);
        // A page that is asked for again and again is listed once, and not at all if it was sent.
        let mut source = Source::new(&slots(), PageSet::all(&slots()));
        (0..5).for_each(|_| source.request(true, 9, 100, 2).unwrap());
        assert_eq!((source.wanted.len(), source.next(), source.next()), (2, Some((1, 100)), Some((1, 101))));
        (0..5).for_each(|_| source.request(true, 9, 100, 2).unwrap());
        assert_eq!(source.wanted.len(), 0);
    }

    /// Pages on their way from the source's own store hold up others, but not those that vCPUs wait for; and not on the
    /// next link.
    #[test]
    fn few_pages_are_on_their_way_at_a_time() {
        let mut source = Source::new(&slots(), PageSet::all(&slots()));
        let mut ahead = Ahead::new();
        for _ in 0..AHEAD {
            let page = source.choose(&mut ahead).unwrap();
            ahead.push(page, (), Duration::ZERO);
        }
        assert_eq!((source.choose(&mut ahead), ahead.len()), (None, AHEAD));
        source.request(true, 9, 100, 1).unwrap();
        assert_eq!((source.choose(&mut ahead), source.choose(&mut ahead)), (Some((1, 100)), None));
        for link in 1..3 {
            let mut lacks = PageSet::none(&slots());
            lacks.insert(1, 64);
            source.resume(lacks);
            assert_eq!((source.choose(&mut ahead), ahead.len()), (Some((1, 64)), 0), "link {link}");
            ahead.push((1, 64), (), Duration::ZERO);
        }
    }

    #[test]
    fn what_the_target_lacks_comes_again() {
        let mut source = Source::new(&slots(), PageSet::all(&slots()));
        all(&mut source);
        let mut lacks = PageSet::none(&slots());
        lacks.insert(1, 64);
        source.resume(lacks);
        assert_eq!(all(&mut source), [(1, 64)]);
        for (slot, page, count) in [(8, 0, 1), (7, 4, 1), (7, 3, 2), (9, u64::MAX, 2)] {
            let wrong = NoSuchPages { slot, page, count: count.into() };
            assert_eq!(source.request(true, slot, page, count), Err(wrong));
        }
        assert_eq!(
            (source.request(true, 7, 3, 1), source.request(true, 9, 0, 200)),
            (Ok(()), Ok(())),
            "up to the last"
        );
    }
}
