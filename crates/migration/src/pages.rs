// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set of a guest's pages: a bit for each page of each memslot.
//!
//! Invariant: no bit is set for a page that its memslot does not have.

use alloc::vec;
use alloc::vec::Vec;

use crate::stream::Slot;

/// Pages of a guest. Memslots have their index in the list with which the set was made, and pages their number in the
/// memslot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSet {
    slots: Vec<Bits>,
}

/// The pages of one memslot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bits {
    pages: u64,
    words: Vec<u64>,
}

impl PageSet {
    /// No page of these memslots.
    pub fn none(slots: &[Slot]) -> Self {
        let bits = |slot: &Slot| Bits { pages: slot.pages, words: vec![0; slot.pages.div_ceil(WORD) as usize] };
        Self { slots: slots.iter().map(bits).collect() }
    }

    /// All pages of these memslots.
    pub fn all(slots: &[Slot]) -> Self {
        let mut set = Self::none(slots);
        for slot in &mut set.slots {
            slot.words.fill(!0);
            slot.trim();
        }
        set
    }

    /// Returns the number of pages in the set.
    pub fn count(&self) -> u64 {
        self.slots.iter().flat_map(|slot| &slot.words).map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether no page is in the set.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().flat_map(|slot| &slot.words).all(|&word| word == 0)
    }

    /// Whether a page is in the set.
    pub fn contains(&self, slot: usize, page: u64) -> bool {
        let word = self.slots.get(slot).and_then(|slot| slot.words.get((page / WORD) as usize));
        word.is_some_and(|word| word >> (page % WORD) & 1 == 1)
    }

    /// Adds a page. Returns whether it was not in the set, and the memslot has it.
    pub fn insert(&mut self, slot: usize, page: u64) -> bool {
        let Some(bits) = self.slots.get_mut(slot).filter(|slot| page < slot.pages) else { return false };
        let (word, mask) = (&mut bits.words[(page / WORD) as usize], 1 << (page % WORD));
        let fresh = *word & mask == 0;
        *word |= mask;
        fresh
    }

    /// Removes a page. Returns whether it was in the set.
    pub fn remove(&mut self, slot: usize, page: u64) -> bool {
        let word = self.slots.get_mut(slot).and_then(|slot| slot.words.get_mut((page / WORD) as usize));
        let Some(word) = word else { return false };
        let mask = 1 << (page % WORD);
        let was = *word & mask != 0;
        *word &= !mask;
        was
    }

    /// Removes all pages.
    pub fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.words.fill(0));
    }

    /// Returns the first page from `(slot, page)` on that is in the set.
    pub fn next(&self, (slot, page): (usize, u64)) -> Option<(usize, u64)> {
        for (index, bits) in self.slots.iter().enumerate().skip(slot) {
            let from = if index == slot { page } else { 0 };
            let first = (from / WORD) as usize;
            for (at, &word) in bits.words.iter().enumerate().skip(first) {
                let word = if at == first { word & (!0 << (from % WORD)) } else { word };
                if word != 0 {
                    return Some((index, at as u64 * WORD + u64::from(word.trailing_zeros())));
                }
            }
        }
        None
    }

    /// The words of a memslot: bit `n` of word `m` is page `64 * m + n`. No words, if there is no such memslot.
    pub fn words(&self, slot: usize) -> &[u64] {
        self.slots.get(slot).map_or(&[], |slot| &slot.words)
    }

    /// Lets `change` change the words of a memslot. Bits beyond its pages are dropped.
    pub fn change<R>(&mut self, slot: usize, change: impl FnOnce(&mut [u64]) -> R) -> Option<R> {
        let slot = self.slots.get_mut(slot)?;
        let result = change(&mut slot.words);
        slot.trim();
        Some(result)
    }
}

impl Bits {
    fn trim(&mut self) {
        if let Some(last) = self.words.last_mut()
            && !self.pages.is_multiple_of(WORD)
        {
            *last &= (1 << (self.pages % WORD)) - 1;
        }
    }
}

/// Returns the numbers of the bits that are set, ascending.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit.into())
    })
}

/// Pages in a word.
pub(crate) const WORD: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> [Slot; 2] {
        [70, 3].map(|pages| Slot { number: 0, read_only: false, first: 0, pages })
    }

    #[test]
    fn a_set_has_no_page_that_its_memslots_lack() {
        let mut set = PageSet::all(&slots());
        assert_eq!((set.count(), set.words(0), set.words(1)), (73, &[!0, 0x3f][..], &[7][..]));
        let whole = [Slot { pages: 64, ..slots()[0] }];
        assert_eq!(PageSet::all(&whole).words(0), [!0]);
        assert!(set.contains(0, 69) && !set.contains(0, 70) && !set.contains(2, 0));
        set.clear();
        set.change(1, |words| words[0] = !0);
        assert_eq!(set.count(), 3);
        assert!(!set.insert(1, 3) && !set.insert(2, 0) && set.insert(0, 64) && !set.insert(0, 64));
        assert!(set.remove(1, 1) && !set.remove(1, 1) && !set.remove(0, 1000));
        assert_eq!(set.count(), 3);
    }

    #[test]
    fn pages_are_found_in_order() {
        let mut set = PageSet::none(&slots());
        assert!(set.is_empty());
        for (slot, page) in [(0, 0), (0, 63), (0, 69), (1, 2)] {
            set.insert(slot, page);
        }
        let mut found = Vec::new();
        let mut at = (0, 0);
        while let Some((slot, page)) = set.next(at) {
            found.push((slot, page));
            at = (slot, page + 1);
        }
        assert_eq!(found, [(0, 0), (0, 63), (0, 69), (1, 2)]);
        set.insert(0, 65);
        assert_eq!((set.next((0, 5)), set.next((0, 64))), (Some((0, 63)), Some((0, 65))));
        set.remove(0, 63);
        assert_eq!(set.next((0, 5)), Some((0, 65)), "its bit in the word is below 5");
        assert_eq!(bits(0b1001).collect::<Vec<_>>(), [0, 3]);
    }
}
