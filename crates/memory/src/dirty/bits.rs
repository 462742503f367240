// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bits that many CPUs set and one takes: a bit for each page, and one above for each word of them.
//!
//! Whoever looks for bits reads the words above, so that costs what is set, not what there is.
//!
//! Invariant: a bit that is set is found by the next search that begins after whoever set it is done. A bit is set by a
//! read-modify-write, always: a look that finds it set already may see what somebody is taking at this moment. Who has set
//! one looks whether the bit above is set, whoever set the others: who set the first one may not have come to that. Who
//! takes the last one clears the bit above, then looks at the word again.
//!
//! Ordering: taking is acquire. What is to be seen by who takes a bit is behind a fence that its setter has executed: a full
//! one ([`super`]), or that of the pass by which it armed, or took, what it tells of. So setting need not be a release. That
//! second look is a read-modify-write too, so it and a setter's have an order: it sees the bit; or the setter, by acquire
//! from that look's release, sees that the bit above went. All other looks are hints: what they miss stays set, and is found
//! by the next search that comes after.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::primitive::{Ordering, Word};

/// So many bits.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[Word]>,
    above: Box<[Word]>,
    count: u64,
}

/// Bits of a word.
pub(crate) const WORD: u64 = 64;

impl Bits {
    /// `count` bits, none of which is set. `None` where there is no memory for them.
    pub(crate) fn new(count: u64) -> Option<Self> {
        let words = words_of(count);
        Some(Self { words: zeroed(words)?, above: zeroed(words_of(words))?, count })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Sets one.
    #[inline]
    pub(crate) fn set(&self, bit: u64) {
        self.set_in(bit / WORD, 1 << (bit % WORD));
    }

    /// Sets those of a word that are in `mask`.
    #[inline]
    pub(crate) fn set_in(&self, word: u64, mask: u64) {
        self.words[word as usize].fetch_or(mask, Ordering::Acquire);
        self.set_above(word);
    }

    /// Sets those of the 64 from `first` on, wherever that is in a word, that are in `mask`. What would be behind the last
    /// bit is none.
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

    /// Sets those from `start` to `end`.
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

    /// Clears those of a word that are in `mask`, and tells which of them were set.
    #[inline]
    pub(crate) fn take(&self, word: u64, mask: u64) -> u64 {
        let cell = &self.words[word as usize];
        // Nothing is written where there is nothing to take.
        if cell.load(Ordering::Relaxed) & mask == 0 {
            return 0;
        }
        let old = cell.fetch_and(!mask, Ordering::Acquire);
        if old & !mask == 0 {
            self.tidy(word);
        }
        old & mask
    }

    /// The words from `start` on and before `end` that have bits set, ascending.
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

    /// How many words have bits set, or had.
    pub(crate) fn words_set_count(&self) -> u64 {
        (0..self.above.len() as u64).map(|above| u64::from(self.above(above).count_ones())).sum()
    }

    /// All words there are.
    pub(crate) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    /// Which bits of a word there are.
    pub(crate) fn inside(&self, word: u64) -> u64 {
        inside(self.count, word)
    }

    /// Sets all. Nobody takes any meanwhile.
    pub(crate) fn fill(&self) {
        let all = |cells: &[Word], count: u64| {
            let (last, others) = cells.split_last().unzip();
            others.into_iter().flatten().for_each(|cell| cell.store(u64::MAX, Ordering::Relaxed));
            last.into_iter().for_each(|cell| cell.store(u64::MAX >> ((WORD - count % WORD) % WORD), Ordering::Relaxed));
        };
        all(&self.words, self.count);
        all(&self.above, self.words());
    }

    /// Clears all. Nobody sets any meanwhile whose loss matters; who sets others of the same word later is found.
    pub(crate) fn clear(&self) {
        for (number, above) in self.above.iter().enumerate() {
            let mut left = above.fetch_and(0, Ordering::Relaxed);
            while left != 0 {
                let word = number * WORD as usize + left.trailing_zeros() as usize;
                // Release, as the look in `tidy`.
                self.words[word].store(0, Ordering::Release);
                left &= left - 1;
            }
        }
    }

    fn above(&self, above: u64) -> u64 {
        self.above[above as usize].load(Ordering::Relaxed)
    }

    /// Sets the bit above a word, in which bits were set.
    #[inline]
    fn set_above(&self, word: u64) {
        let (above, bit) = (&self.above[(word / WORD) as usize], 1 << (word % WORD));
        if above.load(Ordering::Relaxed) & bit == 0 {
            above.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Clears the bit above a word that was found empty, unless a bit of the word was set meanwhile.
    fn tidy(&self, word: u64) {
        let (above, bit) = (&self.above[(word / WORD) as usize], 1 << (word % WORD));
        above.fetch_and(!bit, Ordering::Relaxed);
        if self.words[word as usize].fetch_or(0, Ordering::Release) != 0 {
            self.set_above(word);
        }
    }
}

/// Which bits of a word there are, of so many.
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

/// So many words. `None` where there is no memory for them.
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
                // One at a time, nothing is said to be set that is not.
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
        assert_eq!(bits.words_set(WORD, WORD).next(), None, "nothing is there to look at");
        assert_eq!(bits.words_set(5, 5).next(), None);
    }

    /// CPU A takes the only bit of a word. Before A clears the bit above, CPU B sets another one, and finds the bit above set.
    /// So it is A that sets the bit above again.
    #[test]
    fn a_bit_that_is_set_before_the_word_is_tidied_is_found() {
        let bits = Bits::new(2 * WORD).unwrap();
        bits.set(64);
        let taken = bits.words[1].fetch_and(0, Ordering::Acquire);
        bits.set(67);
        bits.tidy(1);
        assert_eq!((taken, all(&bits)), (1, [67].into()));
    }

    /// A log is started anew while faults that come too late mark their pages. A word that is left with bits, and without the
    /// one above, would be found by nobody, and stay so: the end shows whether there ever was one.
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
        assert_eq!(bits.words_set(0, 1).count() == 1, bits.word(0) != 0);
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
                    // Each bit is one thread's, and is set again only once it was taken.
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
