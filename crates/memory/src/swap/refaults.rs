// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest's accesses say about the memory that it needs.

/// How much memory a guest uses. All figures are in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Pages that were accessed in the last rounds, in memory or not. A block counts with all its pages, since it has
    /// one access flag.
    pub accessed: u64,
    /// Those of them that are in memory.
    pub in_memory: u64,
}

/// Pages that were accessed again after they had left, by their *refault distance*: how many pages have left since the
/// page itself did. With that many more frames, it would still have been in memory.
///
/// Counted since the start. A page is noticed at the round after it came back, so a distance is too large by the pages
/// that have left in between: at most those of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refaults {
    /// `by_distance[n]`: those whose distance was below 2 to the power `n`, and not below half of that.
    pub by_distance: [u64; 33],
}

impl Refaults {
    pub(super) const NONE: Self = Self { by_distance: [0; 33] };

    pub(super) fn add(&mut self, distance: u32) {
        self.by_distance[(u32::BITS - distance.leading_zeros()) as usize] += 1;
    }

    /// All refaults.
    pub fn count(&self) -> u64 {
        self.by_distance.iter().sum()
    }

    /// How many of them the guest would not have had with this many more frames. A lower bound: distances are known up
    /// to a power of two.
    pub fn avoided_by(&self, frames: u64) -> u64 {
        let at_most = |power: usize| (1_u64 << power) - 1;
        self.by_distance.iter().enumerate().filter(|(power, _)| at_most(*power) <= frames).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refaults_are_counted_by_powers_of_two() {
        let mut refaults = Refaults::NONE;
        for distance in [1, 2, 3, 4, 1000, u32::MAX] {
            refaults.add(distance);
        }
        assert_eq!(refaults.by_distance[..4], [0, 1, 2, 1]);
        let avoided = |frames| refaults.avoided_by(frames);
        assert_eq!([0, 1, 2, 3, 7, 1022, 1023].map(avoided), [0, 1, 1, 3, 4, 4, 5]);
        assert_eq!((avoided(u64::from(u32::MAX)), refaults.count()), (6, 6));
    }
}
