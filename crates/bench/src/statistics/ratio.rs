// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How sure the ratio of two things is that were measured in turns.
//!
//! The runs are drawn again, with repetition, some thousand times, as though the measurement had been done so often; between
//! what 95 % of the medians lie is the interval (Efron's percentile bootstrap). A run of the one stays with its neighbour of
//! the other: what disturbed the machine then disturbed both.

use serde::Serialize;

use super::quartiles::between;

/// A ratio, and the interval that holds it 95 times in 100.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median of the runs' ratios.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Ratio {
    /// Of pairs of runs, `of` by `to`. No pairs: all 0.
    pub fn of(of: &[f64], to: &[f64]) -> Self {
        let ratios: Vec<f64> = of.iter().zip(to).map(|(of, to)| of / to).collect();
        let mut random = Random::new(SEED);
        let mut medians: Vec<f64> = (0..SAMPLES)
            .map(|_| median((0..ratios.len()).map(|_| ratios[random.below(ratios.len() as u64) as usize]).collect()))
            .collect();
        medians.sort_by(f64::total_cmp);
        Self { median: median(ratios), low: between(&medians, 0.025), high: between(&medians, 0.975) }
    }
}

/// How often the runs are drawn.
const SAMPLES: usize = 2000;
/// The same runs have the same interval.
const SEED: u64 = 0x5eed;

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    between(&numbers, 0.5)
}

/// Numbers that look random and are the same each time (Marsaglia's xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed, however close to others'.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// One below `end`.
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
        let ratio = Ratio::of(&wide, &to);
        assert_eq!(ratio.median, 2.5);
        assert!(ratio.low < 2.5 && ratio.high > 2.5 && ratio.low >= 0.0 && ratio.high <= 5.0, "{ratio:?}");
        assert_eq!(Ratio::of(&to, &to), Ratio { median: 1.0, low: 1.0, high: 1.0 });
    }

    #[test]
    fn disturbances_of_both_are_none() {
        let disturbed = [1.0, 9.0, 1.5, 30.0];
        let half = disturbed.map(|run| run / 2.0);
        assert_eq!(Ratio::of(&half, &disturbed), Ratio { median: 0.5, low: 0.5, high: 0.5 });
    }

    #[test]
    fn random_numbers_go_everywhere() {
        let mut random = Random::new(0);
        let mut seen = [0; 10];
        (0..1000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (60..140).contains(count)), "{seen:?}");
    }
}
