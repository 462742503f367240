// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The places of a page store: which are free, a bit for each.
//!
//! Each page has a home: the place whose number is the page's number modulo the number of places. A page goes there if the place
//! is free. So neighbours in RAM are neighbours in the store, and what reads ahead knows where a page is.
//!
//! Invariant: a place has one owner from [`take`](Places::take) to [`give`](Places::give).

use alloc::vec;
use alloc::vec::Vec;

use twofold_memory::swap::Place;
use twofold_stage2::Ipa;

/// The places of a store.
#[derive(Debug)]
pub struct Places {
    /// A bit for each, set while it has an owner.
    used: Vec<u64>,
    count: u64,
    /// No word before this one has a free place.
    first: usize,
    /// How many have owners.
    taken: u64,
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Places in a word.
const WORD: u64 = u64::BITS as u64;

impl Places {
    /// This many places, all free.
    #[must_use]
    pub fn new(count: u64) -> Self {
        let mut used = vec![0; count.div_ceil(WORD) as usize];
        // The bits behind the last place have no place.
        if let Some(last) = used.last_mut().filter(|_| !count.is_multiple_of(WORD)) {
            *last = u64::MAX << (count % WORD);
        }
        Self { used, count, first: 0, taken: 0 }
    }

    /// The place where this page is, unless that had another owner when the page left.
    #[must_use]
    pub fn home(&self, page: Ipa) -> Place {
        Place::new(page.raw() / PAGE % self.count.max(1))
    }

    /// The page's home, or else the free place with the lowest number; `None` if all have owners.
    pub fn take(&mut self, page: Ipa) -> Option<Place> {
        let home = self.home(page);
        if self.has_owner(home)? { self.take_lowest() } else { self.set(home) }
    }

    /// How many have owners.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The place has no owner any more.
    pub fn give(&mut self, place: Place) {
        let (index, bit) = at(place);
        let Some(word) = self.used.get_mut(index) else { return };
        debug_assert!(*word >> bit & 1 == 1, "{place:?} is discarded twice");
        *word &= !(1 << bit);
        self.taken -= 1;
        self.first = self.first.min(index);
    }

    #[cold]
    fn take_lowest(&mut self) -> Option<Place> {
        self.first += self.used.get(self.first..)?.iter().position(|word| *word != u64::MAX)?;
        let bit = self.used.get(self.first)?.trailing_ones();
        self.set(Place::new(self.first as u64 * WORD + u64::from(bit)))
    }

    /// `None`: there is no such place.
    fn has_owner(&self, place: Place) -> Option<bool> {
        let (index, bit) = at(place);
        Some(self.used.get(index)? >> bit & 1 == 1)
    }

    fn set(&mut self, place: Place) -> Option<Place> {
        let (index, bit) = at(place);
        *self.used.get_mut(index)? |= 1 << bit;
        self.taken += 1;
        Some(place)
    }
}

/// The word of a place, and its bit there.
fn at(place: Place) -> (usize, u64) {
    ((place.raw() / WORD) as usize, place.raw() % WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn page(number: u64) -> Ipa {
        Ipa::new(number * PAGE)
    }

    #[test]
    fn a_page_is_at_home_if_nothing_else_is() {
        let mut places = Places::new(70);
        assert_eq!(places.take(page(140 + 69)), Some(Place::new(69)));
        assert_eq!(places.home(page(140 + 69)), Place::new(69));
        assert_eq!(places.take(page(69)), Some(Place::new(0)), "its home has an owner: the lowest");
        assert_eq!(places.take(page(0)), Some(Place::new(1)));
        places.give(Place::new(69));
        assert_eq!(places.take(page(69)), Some(Place::new(69)));
        assert_eq!(places.taken(), 3);
    }

    #[test]
    fn each_place_has_one_owner() {
        let mut places = Places::new(70);
        let all: Vec<_> = core::iter::from_fn(|| places.take(page(0))).map(Place::raw).collect();
        assert_eq!(all, (0..70).collect::<Vec<_>>());
        assert_eq!(places.taken(), 70);
        for place in [69, 3, 64] {
            places.give(Place::new(place));
        }
        assert_eq!(places.taken(), 67);
        let again: Vec<_> = core::iter::from_fn(|| places.take(page(5))).map(Place::raw).collect();
        assert_eq!(again, [3, 64, 69]);
        assert_eq!(Places::new(0).take(page(0)), None);
        assert_eq!(Places::new(1).home(page(1)), Place::new(0));
        let mut places = Places::new(64);
        assert_eq!(core::iter::from_fn(|| places.take(page(0))).count(), 64);
    }
}
