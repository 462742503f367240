// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several runs in three numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The middle of several runs, and what half of them lie between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quartiles {
    /// A quarter of the runs is below.
    pub lower: f64,
    /// Half of them are.
    pub median: f64,
    /// Three quarters are.
    pub upper: f64,
}

impl Quartiles {
    /// Of no runs: all 0.
    pub fn of(runs: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = runs.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part| between(&sorted, part);
        Self { lower: at(0.25), median: at(0.5), upper: at(0.75) }
    }

    /// Of one value, or of runs that are all the same: there is nothing between which they lie.
    pub fn point(median: f64) -> Self {
        Self { lower: median, median, upper: median }
    }

    /// Whether there is nothing between which the runs lie.
    pub fn is_point(self) -> bool {
        self.lower == self.upper
    }

    /// The same in other units.
    pub fn times(self, factor: f64) -> Self {
        Self { lower: self.lower * factor, median: self.median * factor, upper: self.upper * factor }
    }
}

/// What `part` of some sorted numbers is below, between two of them by their distance.
pub(super) fn between(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// `2.31 [2.25, 2.40]`
impl fmt::Display for Quartiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}, {}]", short(self.median), short(self.lower), short(self.upper))
    }
}

/// With three digits that mean something.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size < 0.995 => format!("{value:.3}"),
        size if size < 9.95 => format!("{value:.2}"),
        size if size < 99.5 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_a_quarter_from_the_ends() {
        let of = |runs: &[f64]| Quartiles::of(runs.iter().copied());
        assert_eq!(of(&[5.0, 1.0, 3.0, 2.0, 4.0]), Quartiles { lower: 2.0, median: 3.0, upper: 4.0 });
        assert_eq!(of(&[1.0, 2.0]), Quartiles { lower: 1.25, median: 1.5, upper: 1.75 });
        assert_eq!(of(&[7.0]), Quartiles { lower: 7.0, median: 7.0, upper: 7.0 });
        assert_eq!(of(&[]), Quartiles { lower: 0.0, median: 0.0, upper: 0.0 });
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(Quartiles { lower: 0.1234, median: 9.94, upper: 1234.5 }.to_string(), "9.94 [0.123, 1234]");
        assert_eq!([0.999, 9.99, 99.9].map(short), ["1.00", "10.0", "100"]);
    }
}
