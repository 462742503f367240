// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bits that many CPUs set and one CPU takes: a bit for each page, and above them a summary bit for each word of 64.
//!
//! A search reads the summary first, so its cost follows the bits that are set, not the bits that exist.
//!
//! **Invariant.** A search finds every bit whose setter had returned when the search began.
//!
//! **Setting:**
//!
//! * B1: set the bit by a read-modify-write with acquire, even if it was set: a plain load may see a bit that another
//!   CPU is just taking.
//! * B2: read the summary bit, and set it if it is clear, even if B1 found other bits in the word: the CPU that set
//!   those may not have come to its own B2.
//!
//! **Taking:**
//!
//! * B3: clear bits by a read-modify-write with acquire. If others are left in the word, that is all.
//! * B4: clear the summary bit.
//! * B5: read the word again, by a read-modify-write with release. If a bit is set, set the summary bit again.
//!
//! **Why no bit is lost.** B1 and B5 are read-modify-writes of one word, so one comes first. If B1 does, B5 sees the
//! bit and sets the summary bit. If B5 does, B1 acquires what B5 released, so B2 sees B4 and sets the summary bit
//! again. All other loads are hints: a bit that they miss stays set, and a later search finds it.
//!
//! **Ordering of what a bit stands for.** A setter executes a fence before B1: a full fence (D3 in [`super`]), or the
//! fence of the pass by which it changed the descriptors (D5, D15). B3 acquires, so it sees these descriptors. That is
//! why B1 need not be a release.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::primitive::{Ordering, Word};

/// A fixed number of bits, with their summary.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[Word]>,
    above: Box<[Word]>,
    count: u64,
}

/// Bits in a word.
pub(crate) const WORD: u64 = 64;

impl Bits {
    /// `count` bits, all clear, or `None` if the heap is full.
    pub(crate) fn new(count: u64) -> Option<Self> {
        let words = words_of(count);
        Some(Self { words: zeroed(words)?, above: zeroed(words_of(words))?, count })
    }

    /// The number of bits, set or not.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Sets a bit.
    #[inline]
    pub(crate) fn set(&self, bit: u64) {
        self.set_in(bit / WORD, 1 << (bit % WORD));
    }

    /// Sets the bits of a word that are in `mask`.
    #[inline]
    pub(crate) fn set_in(&self, word: u64, mask: u64) {
        self.words[word as usize].fetch_or(mask, Ordering::Acquire);
        self.set_above(word);
    }

    /// Sets the bits in `mask` of the 64 from `first` on; `first` need not begin a word. Bits beyond the last one are
    /// ignored.
    pub(crate) fn set_from(&self, first: u64, mask: u64) {
        let (word, shift) = (first / WORD, first % WORD);
        let set = |word: u64, mask: u64| {
            let mask = mask & self.inside(word);
            if mask != 0 {
                self.set_in(word, mask);
            }
        };
        set(word, mask << shift);
        if shift != 0 {
            set(word + 1, mask >> (WORD - shift));
        }
    }

    /// Sets the bits from `start` up to but not including `end`.
    pub(crate) fn set_run(&self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let next = (at / WORD + 1) * WORD;
            let length = next.min(end) - at;
            self.set_in(at / WORD, (u64::MAX >> (WORD - length)) << (at % WORD));
            at = next;
        }
    }

    /// Whether a bit is set: a hint.
    #[inline]
    pub(crate) fn is_set(&self, bit: u64) -> bool {
        self.word(bit / WORD) >> (bit % WORD) & 1 == 1
    }

    /// The bits of a word: a hint.
    #[inline]
    pub(crate) fn word(&self, word: u64) -> u64 {
        self.words[word as usize].load(Ordering::Relaxed)
    }

    /// Clears the bits of a word that are in `mask`, and returns those that were set.
    #[inline]
    pub(crate) fn take(&self, word: u64, mask: u64) -> u64 {
        let cell = &self.words[word as usize];
        // Without a bit to take, this CPU does not write, and so does not take the line from others.
        if cell.load(Ordering::Relaxed) & mask == 0 {
            return 0;
        }
        let old = cell.fetch_and(!mask, Ordering::Acquire);
        if old & !mask == 0 {
            self.tidy(word);
        }
        old & mask
    }

    /// The words from `start` up to but not including `end` that have bits set, ascending.
    pub(crate) fn words_set(&self, start: u64, end: u64) -> impl Iterator<Item = u64> {
        let mut above = start / WORD;
        let first_and_later = u64::MAX << (start % WORD);
        let mut left = if start < end { self.above(above) & first_and_later } else { 0 };
        core::iter::from_fn(move || {
            while left == 0 {
                above += 1;
                if above * WORD >= end {
                    return None;
                }
                left = self.above(above);
            }
            let word = above * WORD + u64::from(left.trailing_zeros());
            left &= left - 1;
            (word < end).then_some(word)
        })
    }

    /// The number of words whose summary bit is set: they have bits set, or had a moment ago.
    pub(crate) fn words_set_count(&self) -> u64 {
        (0..self.above.len() as u64).map(|above| u64::from(self.above(above).count_ones())).sum()
    }

    /// The number of words.
    pub(crate) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    /// The bits of a word that exist, as a mask.
    pub(crate) fn inside(&self, word: u64) -> u64 {
        inside(self.count, word)
    }

    /// Sets all bits. The caller ensures that no CPU takes any meanwhile.
    pub(crate) fn fill(&self) {
        let all = |cells: &[Word], count: u64| {
            let (last, others) = cells.split_last().unzip();
            others.into_iter().flatten().for_each(|cell| cell.store(u64::MAX, Ordering::Relaxed));
            last.into_iter().for_each(|cell| cell.store(u64::MAX >> ((WORD - count % WORD) % WORD), Ordering::Relaxed));
        };
        all(&self.words, self.count);
        all(&self.above, self.words());
    }

    /// Clears all bits. A bit that is set meanwhile may be lost, so the caller must not need it. A bit that is set
    /// later in the same word is found.
    pub(crate) fn clear(&self) {
        for (number, above) in self.above.iter().enumerate() {
            let mut left = above.fetch_and(0, Ordering::Relaxed);
            while left != 0 {
                let word = number * WORD as usize + left.trailing_zeros() as usize;
                // Release, as B5.
                self.words[word].store(0, Ordering::Release);
                left &= left - 1;
            }
        }
    }

    fn above(&self, above: u64) -> u64 {
        self.above[above as usize].load(Ordering::Relaxed)
    }

    /// Sets the summary bit of a word in which bits were set (B2).
    #[inline]
    fn set_above(&self, word: u64) {
        let (above, bit) = (&self.above[(word / WORD) as usize], 1 << (word % WORD));
        if above.load(Ordering::Relaxed) & bit == 0 {
            above.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the summary bit of a word that is empty, unless a bit of the word was set meanwhile (B4, B5).
    fn tidy(&self, word: u64) {
        let (above, bit) = (&self.above[(word / WORD) as usize], 1 << (word % WORD));
        above.fetch_and(!bit, Ordering::Relaxed);
        if self.words[word as usize].fetch_or(0, Ordering::Release) != 0 {
            self.set_above(word);
        }
    }
}

/// The bits of a word that exist among `count` bits, as a mask.
pub(crate) fn inside(count: u64, word: u64) -> u64 {
    match count.saturating_sub(word * WORD) {
        0 => 0,
        left if left < WORD => u64::MAX >> (WORD - left),
        _ => u64::MAX,
    }
}

fn words_of(bits: u64) -> u64 {
    bits.div_ceil(WORD)
}

/// `count` words of zeroes, or `None` if the heap is full.
pub(super) fn zeroed(count: u64) -> Option<Box<[Word]>> {
    let mut words = Vec::new();
    words.try_reserve_exact(count as usize).ok()?;
    words.resize_with(count as usize, Word::default);
    Some(words.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn all(bits: &Bits) -> BTreeSet<u64> {
        let of =
            |word: u64| (0..WORD).filter(move |bit| bits.word(word) >> bit & 1 == 1).map(move |bit| word * WORD + bit);
        bits.words_set(0, bits.words()).flat_map(of).collect()
    }

    proptest! {
        #[test]
        fn what_is_set_is_found_until_it_is_taken(
            count in 1u64..10_000,
            steps in proptest::collection::vec((0u8..4, any::<u64>(), any::<u64>()), 1..60),
        ) {
            let bits = Bits::new(count).unwrap();
            let mut model = BTreeSet::new();
            for (kind, at, mask) in steps {
                let first = at % count;
                let masked = (0..WORD).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit).filter(|bit| *bit < count);
                match kind {
                    0 => {
                        bits.set(first);
                        model.insert(first);
                    }
                    1 => {
                        bits.set_from(first, mask);
                        model.extend(masked);
                    }
                    2 => {
                        let end = (first + mask % 300).min(count);
                        bits.set_run(first, end);
                        model.extend(first..end);
                    }
                    _ => {
                        let word = first / WORD;
                        let taken = bits.take(word, mask);
                        let had = (0..WORD).filter(|bit| mask >> bit & 1 == 1 && model.remove(&(word * WORD + bit)));
                        prop_assert_eq!(taken, had.fold(0, |all, bit| all | 1 << bit));
                    }
                }
                prop_assert_eq!(&all(&bits), &model);
                // With one CPU, no summary bit is set for an empty word.
                let words: BTreeSet<_> = model.iter().map(|bit| bit / WORD).collect();
                prop_assert_eq!(bits.words_set_count(), words.len() as u64);
            }
            bits.clear();
            prop_assert!((0..bits.words()).all(|word| bits.word(word) == 0));
            prop_assert_eq!(all(&bits), BTreeSet::new());
            prop_assert_eq!(bits.words_set_count(), 0);
            bits.fill();
            prop_assert_eq!(all(&bits), (0..count).collect::<BTreeSet<_>>());
        }

        #[test]
        fn a_search_stays_between_its_ends(set in proptest::collection::btree_set(0u64..300, 0..20), start in 0u64..300, end in 0u64..300) {
            let bits = Bits::new(300 * WORD).unwrap();
            set.iter().for_each(|word| bits.set_in(*word, 1));
            let found: BTreeSet<_> = bits.words_set(start, end).collect();
            prop_assert_eq!(found, set.into_iter().filter(|word| (start..end).contains(word)).collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn a_search_ends_before_its_end() {
        let bits = Bits::new(WORD * WORD).unwrap();
        bits.fill();
        assert!(bits.words_set(0, 5).eq(0..5));
        assert!(bits.words_set(63, WORD).eq([63]));
        assert_eq!(bits.words_set(WORD, WORD).next(), None, "the range is empty");
        assert_eq!(bits.words_set(5, 5).next(), None);
    }

    /// CPU A takes the only bit of a word. Before A clears the summary bit, CPU B sets another bit, and finds the
    /// summary bit set. So A must set the summary bit again.
    #[test]
    fn a_bit_that_is_set_before_the_word_is_tidied_is_found() {
        let bits = Bits::new(2 * WORD).unwrap();
        bits.set(64);
        let taken = bits.words[1].fetch_and(0, Ordering::Acquire);
        bits.set(67);
        bits.tidy(1);
        assert_eq!((taken, all(&bits)), (1, [67].into()));
    }

    /// A log is started again while late faults mark their pages. A word that has bits and no summary bit would never
    /// be found and never change, so the state at the end shows whether there ever was one.
    #[test]
    fn what_is_set_beside_a_clear_is_found_or_gone() {
        const ROUNDS: u64 = if cfg!(miri) { 40 } else { 200_000 };
        let bits = Bits::new(WORD).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..ROUNDS).for_each(|round| bits.set(round % WORD));
                over.store(true, Ordering::Release);
            });
            while !over.load(Ordering::Acquire) {
                bits.clear();
            }
        });
        // The last clear may have left a summary bit above an empty word, which is harmless.
        assert!(bits.word(0) == 0 || bits.words_set(0, 1).count() == 1);
    }

    #[test]
    fn bits_that_several_threads_set_are_each_taken() {
        const COUNT: u64 = 64 * 64 * 3;
        const ROUNDS: u64 = if cfg!(miri) { 40 } else { 20_000 };
        let bits = Bits::new(COUNT).unwrap();
        let taken = std::sync::atomic::AtomicU64::new(0);
        let over = std::sync::atomic::AtomicU64::new(0);
        let take_all = || {
            for word in bits.words_set(0, bits.words()) {
                let found = bits.take(word, u64::MAX);
                taken.fetch_add(u64::from(found.count_ones()), Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (bits, over) = (&bits, &over);
                scope.spawn(move || {
                    // Each bit belongs to one thread, which sets it again only after it was taken.
                    for round in 0..ROUNDS {
                        let bit = (round * 7 % (COUNT / 3)) * 3 + thread;
                        while bits.is_set(bit) {
                            std::thread::yield_now();
                        }
                        bits.set(bit);
                    }
                    over.fetch_add(1, Ordering::Release);
                });
            }
            while over.load(Ordering::Acquire) < 3 {
                take_all();
                std::thread::yield_now();
            }
        });
        take_all();
        assert_eq!(taken.into_inner(), 3 * ROUNDS);
        assert_eq!(all(&bits), BTreeSet::new());
    }
}
