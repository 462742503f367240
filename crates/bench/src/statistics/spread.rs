// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Median, minimum and maximum of several runs.

use serde::Serialize;

/// Several runs of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median. For an even number of runs, the mean of the two in the middle.
    pub median: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of some runs; `None` if there are none.
    pub fn of(runs: &[f64]) -> Option<Self> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let below = if sorted.len().is_multiple_of(2) { middle - 1 } else { middle };
        Some(Self { median: (sorted[below] + sorted[middle]) / 2.0, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[5.0]), Some(Spread { median: 5.0, min: 5.0, max: 5.0 }));
        assert_eq!(Spread::of(&[]), None);
    }
}
