// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeded random numbers: splitmix64, which is fast, and whose streams from different seeds are independent.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes the stream of this number of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next_word();
        random
    }

    /// Returns a random number.
    #[inline]
    pub fn next_word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`, which must not be 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_word()) * u128::from(end)) >> 64) as u64
    }

    /// Returns true once in `times` calls, on average.
    #[inline]
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns a number from 1 to below `2^bits`; each length in bits is equally likely.
    pub fn of_any_size(&mut self, bits: u64) -> u64 {
        let top = 1 << self.below(bits);
        top + self.below(top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_streams_differ() {
        let stream =
            |seed, number| (0..4).map(|_| 0).scan(Random::new(seed, number), |random, _: u64| Some(random.next_word()));
        assert!(stream(1, 0).eq(stream(1, 0)));
        assert!(stream(1, 0).ne(stream(1, 1)) && stream(1, 0).ne(stream(2, 0)));
    }

    #[test]
    fn numbers_stay_inside_and_reach_the_ends() {
        let mut random = Random::new(7, 0);
        let below: alloc::collections::BTreeSet<_> = (0..1000).map(|_| random.below(5)).collect();
        assert_eq!(below, (0..5).collect());
        let sizes: alloc::vec::Vec<_> = (0..10_000).map(|_| random.of_any_size(6)).collect();
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&1), Some(&63)));
        let small = sizes.iter().filter(|size| **size < 8).count();
        assert!((4000..8000).contains(&small), "{small}");
    }
}
