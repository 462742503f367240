// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The places of a page store: which are free, a bit for each.
//!
//! Invariant: a place has one owner from [`take`](Places::take) to [`give`](Places::give).

use alloc::vec;
use alloc::vec::Vec;

use twofold_memory::swap::Place;

/// The places of a store.
#[derive(Debug)]
pub struct Places {
    /// A bit for each, set while it has an owner.
    used: Vec<u64>,
    /// No word before this one has a free place.
    first: usize,
    /// How many have owners.
    taken: u64,
}

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
        Self { used, first: 0, taken: 0 }
    }

    /// The free place with the lowest number; `None` if all have owners.
    pub fn take(&mut self) -> Option<Place> {
        self.first += self.used.get(self.first..)?.iter().position(|word| *word != u64::MAX)?;
        let word = self.used.get_mut(self.first)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        self.taken += 1;
        Some(Place::new(self.first as u64 * WORD + u64::from(bit)))
    }

    /// How many have owners.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The place has no owner any more.
    pub fn give(&mut self, place: Place) {
        let (index, bit) = ((place.raw() / WORD) as usize, place.raw() % WORD);
        let Some(word) = self.used.get_mut(index) else { return };
        debug_assert!(*word >> bit & 1 == 1, "{place:?} is discarded twice");
        *word &= !(1 << bit);
        self.taken -= 1;
        self.first = self.first.min(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_one_owner() {
        let mut places = Places::new(70);
        let all: Vec<_> = core::iter::from_fn(|| places.take()).map(Place::raw).collect();
        assert_eq!(all, (0..70).collect::<Vec<_>>());
        assert_eq!(places.taken(), 70);
        for place in [69, 3, 64] {
            places.give(Place::new(place));
        }
        assert_eq!(places.taken(), 67);
        let again: Vec<_> = core::iter::from_fn(|| places.take()).map(Place::raw).collect();
        assert_eq!(again, [3, 64, 69]);
        assert_eq!(Places::new(0).take(), None);
        assert_eq!(
            core::iter::from_fn({
                let mut places = Places::new(64);
                move || places.take()
            })
            .count(),
            64
        );
    }
}
