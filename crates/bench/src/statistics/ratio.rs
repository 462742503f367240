// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ratio of two figures, and its uncertainty.
//!
//! The interval is Efron's percentile bootstrap: the runs are drawn again, with repetition, some thousand times, and
//! the interval holds 95 % of the medians. If the two figures were measured in interleaved runs, each run is drawn
//! together with its neighbour of the other figure, because a disturbance of the machine then affects both. If not, the
//! runs of each figure are drawn separately.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ENOUGH;
use super::quartiles::between;

/// A ratio and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median of the runs' ratios.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Ratio {
    /// Returns the ratio of pairs of runs, `of` divided by `to`; `None` if there are fewer than [`ENOUGH`] pairs.
    pub fn of(of: &[f64], to: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = of.iter().zip(to).map(|(of, to)| of / to).collect();
        (ratios.len() >= ENOUGH).then(|| Self::drawn(median(ratios.clone()), |random| random.median_of(&ratios)))
    }

    /// Returns the ratio of runs that were not interleaved: the median of `of` divided by that of `to`. `None` if one
    /// of the two has fewer than [`ENOUGH`] runs.
    pub fn apart(of: &[f64], to: &[f64]) -> Option<Self> {
        if of.len().min(to.len()) < ENOUGH {
            return None;
        }
        let ratio = median(of.to_vec()) / median(to.to_vec());
        Some(Self::drawn(ratio, |random| random.median_of(of) / random.median_of(to)))
    }

    /// Returns the ratio of counted figures, which are the same in each run, so one run is enough. `None` if one of the
    /// two has no run.
    pub fn counted(of: &[f64], to: &[f64]) -> Option<Self> {
        if of.is_empty() || to.is_empty() {
            return None;
        }
        let ratio = median(of.to_vec()) / median(to.to_vec());
        Some(Self { median: ratio, low: ratio, high: ratio })
    }

    /// Returns whether the interval includes 1, so that either may be larger.
    pub fn holds_one(&self) -> bool {
        self.low <= 1.0 && 1.0 <= self.high
    }

    /// Returns the part that is saved if this ratio is what is left, or what is left if it is the part that is saved.
    pub fn complement(self) -> Self {
        Self { median: 1.0 - self.median, low: 1.0 - self.high, high: 1.0 - self.low }
    }

    fn drawn(median: f64, draw: impl Fn(&mut Random) -> f64) -> Self {
        let mut random = Random::new(SEED);
        let mut drawn: Vec<f64> = (0..SAMPLES).map(|_| draw(&mut random)).collect();
        drawn.sort_by(f64::total_cmp);
        Self { median, low: between(&drawn, 0.025), high: between(&drawn, 0.975) }
    }
}

/// For example, `0.561 [0.548, 0.580]`.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} [{:.3}, {:.3}]", self.median, self.low, self.high)
    }
}

/// How often the runs are drawn again.
const SAMPLES: usize = 2000;
/// A fixed seed, so that the same runs have the same interval.
const SEED: u64 = 0x5eed;

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    between(&numbers, 0.5)
}

/// Pseudo-random numbers, the same each time (Marsaglia's xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes the numbers of a seed. Neighbouring seeds give different numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the median of a sample of the runs, drawn with repetition and as large as the runs are.
    fn median_of(&mut self, runs: &[f64]) -> f64 {
        median((0..runs.len()).map(|_| runs[self.below(runs.len() as u64) as usize]).collect())
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_around_the_median_and_narrow_where_runs_agree() {
        let to = vec![2.0; 11];
        let wide: Vec<f64> = (0..11).map(f64::from).collect();
        let ratio = Ratio::of(&wide, &to).unwrap();
        assert_eq!(ratio.median, 2.5);
        assert!(ratio.low < 2.5 && ratio.high > 2.5 && ratio.low >= 0.0 && ratio.high <= 5.0, "{ratio:?}");
        assert_eq!(Ratio::of(&to, &to), Some(Ratio { median: 1.0, low: 1.0, high: 1.0 }));
    }

    #[test]
    fn few_runs_have_no_interval_unless_they_are_counted() {
        let runs = [1.0, 2.0, 3.0, 4.0];
        for count in 0..4 {
            assert_eq!(Ratio::of(&runs[..count], &runs), None);
            assert_eq!(Ratio::apart(&runs, &runs[..count]), None);
        }
        assert!(Ratio::of(&runs, &runs).is_some() && Ratio::apart(&runs, &runs).is_some());
        assert_eq!(Ratio::counted(&[6.0], &[4.0]), Some(Ratio { median: 1.5, low: 1.5, high: 1.5 }));
        assert_eq!(Ratio::counted(&[], &[4.0]), None);
    }

    #[test]
    fn disturbances_of_both_are_none() {
        let disturbed = [1.0, 9.0, 1.5, 30.0];
        let half = disturbed.map(|run| run / 2.0);
        assert_eq!(Ratio::of(&half, &disturbed), Some(Ratio { median: 0.5, low: 0.5, high: 0.5 }));
    }

    #[test]
    fn runs_apart_are_as_sure_as_each_of_them() {
        let (one, other) = ([9.0, 10.0, 11.0, 10.0, 10.5], [19.0, 20.0, 21.0, 20.0, 20.5]);
        let ratio = Ratio::apart(&one, &other).unwrap();
        assert_eq!(ratio.median, 0.5);
        assert!(ratio.low < 0.5 && 0.5 < ratio.high && ratio.high < 0.6 && !ratio.holds_one(), "{ratio}");
        // The order of the runs does not matter.
        let turned: Vec<f64> = other.iter().rev().copied().collect();
        assert_eq!(Ratio::apart(&one, &turned).unwrap().median, 0.5);
        assert!(Ratio::apart(&[1.0, 4.0, 5.0, 9.0], &[2.0, 4.0, 5.0, 9.0]).unwrap().holds_one());
    }

    #[test]
    fn what_is_saved_and_what_is_left_are_the_whole() {
        let left = Ratio { median: 0.25, low: 0.125, high: 0.5 };
        assert_eq!(left.complement(), Ratio { median: 0.75, low: 0.5, high: 0.875 });
        assert_eq!(left.complement().complement(), left);
    }

    #[test]
    fn random_numbers_go_everywhere() {
        let mut random = Random::new(0);
        let mut seen = [0; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (60..140).contains(count)), "{seen:?}");
    }
}
