// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The median, fastest and slowest of several runs.

use serde::Serialize;

/// A spread, in the unit of its runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median; for an even number of runs the mean of the two in the middle.
    pub median: f64,
    /// The fastest run.
    pub min: f64,
    /// The slowest run.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of `runs`, or `None` if there are none.
    pub fn of(runs: &[f64]) -> Option<Self> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
        Some(Self { median: (sorted[low] + sorted[high]) / 2.0, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(&[]), None);
    }
}
