// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a log reports: dirty pages, in words of 64.

use alloc::vec::Vec;

use super::bits::WORD;
use super::options::LogError;

/// Dirty pages of a slot, ascending, as [`DirtyLog::get`](super::DirtyLog::get) reports them. Pages are numbered in
/// their slot, from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyPages {
    words: Vec<DirtyWord>,
}

/// The dirty pages among 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyWord {
    /// The first of the 64: a multiple of 64.
    pub first_page: u64,
    /// Bit `n` stands for page `first_page + n`. Not 0.
    pub mask: u64,
}

impl DirtyPages {
    /// An empty list, which takes no memory yet. Use one list for many gets: each overwrites it.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The words that have dirty pages.
    pub fn words(&self) -> &[DirtyWord] {
        &self.words
    }

    /// The number of pages.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.mask.count_ones())).sum()
    }

    /// Whether the list has no pages.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether the list has this page.
    pub fn contains(&self, page: u64) -> bool {
        let found = self.words.binary_search_by_key(&(page / WORD * WORD), |word| word.first_page);
        found.is_ok_and(|at| self.words[at].mask >> (page % WORD) & 1 == 1)
    }

    /// The pages, ascending.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().flat_map(|word| word.pages())
    }

    pub(super) fn clear(&mut self) {
        self.words.clear();
    }

    /// Makes room for `words` more words.
    pub(super) fn reserve(&mut self, words: u64) -> Result<(), LogError> {
        self.words.try_reserve(words as usize).map_err(|_| LogError::NoMemory)
    }

    /// Whether there is room for another word.
    pub(super) fn has_room(&self) -> bool {
        self.words.len() < self.words.capacity()
    }

    /// Adds a word. The caller has made room for it.
    pub(super) fn push(&mut self, word: u64, mask: u64) {
        if mask != 0 {
            self.words.push(DirtyWord { first_page: word * WORD, mask });
        }
    }
}

impl DirtyWord {
    /// The pages, ascending.
    pub fn pages(self) -> impl Iterator<Item = u64> {
        let mut left = self.mask;
        core::iter::from_fn(move || {
            let bit = left.checked_ilog2().map(|_| left.trailing_zeros())?;
            left &= left - 1;
            Some(self.first_page + u64::from(bit))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_through_the_slot() {
        let mut pages = DirtyPages::new();
        assert!(pages.is_empty() && !pages.contains(0));
        pages.reserve(3).unwrap();
        pages.push(0, 0b101);
        pages.push(1, 0);
        pages.push(2, 1 << 63);
        assert_eq!(pages.pages().collect::<Vec<_>>(), [0, 2, 191]);
        assert_eq!((pages.count(), pages.words().len()), (3, 2));
        assert!(pages.contains(191) && !pages.contains(190) && !pages.contains(1) && !pages.contains(64));
    }
}
