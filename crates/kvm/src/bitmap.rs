// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bitmap of a slot's pages, in KVM's layout.

/// A bit for each page of a slot. A page has the host's size, whatever the guest's granule is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    pages: u64,
}

impl Bitmap {
    /// Makes a bitmap of `pages` bits, all clear.
    pub fn new(pages: u64) -> Self {
        Self { words: vec![0; pages.div_ceil(64) as usize], pages }
    }

    /// Makes a bitmap of `pages` bits, all set.
    pub fn full(pages: u64) -> Self {
        let mut full = Self::new(pages);
        (0..pages).for_each(|page| full.set(page));
        full
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns how many bits are set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns whether a page's bit is set; `false` if there is no such page.
    pub fn has(&self, page: u64) -> bool {
        self.words.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    /// Sets a page's bit, if there is such a page.
    pub fn set(&mut self, page: u64) {
        if page < self.pages {
            self.words[(page / 64) as usize] |= 1 << (page % 64);
        }
    }

    /// Returns the pages whose bits are set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| index as u64 * 64 + bit)
        })
    }

    /// Returns the bits as words; the first page is the lowest bit.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Sets every bit that is set in `other`.
    pub fn merge(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_pages() {
        let mut bitmap = Bitmap::new(130);
        [0, 64, 129, 130, 191].into_iter().for_each(|page| bitmap.set(page));
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 64, 129]);
        assert_eq!((bitmap.count(), bitmap.words().len(), bitmap.pages()), (3, 3, 130));
        assert!(bitmap.has(129) && !bitmap.has(1) && !bitmap.has(4000));
        assert_eq!(Bitmap::full(130).count(), 130);
        let mut both = Bitmap::new(130);
        both.set(1);
        both.merge(&bitmap);
        assert_eq!(both.count(), 4);
    }
}
