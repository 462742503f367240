// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three numbers that summarize several runs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The median of several runs, and the ends of the middle half.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quartiles {
    /// A quarter of the runs is below this.
    pub lower: f64,
    /// Half of the runs is below this.
    pub median: f64,
    /// Three quarters of the runs are below this.
    pub upper: f64,
}

impl Quartiles {
    /// Returns the quartiles of some runs; all 0 if there are none.
    pub fn of(runs: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = runs.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part| between(&sorted, part);
        Self { lower: at(0.25), median: at(0.5), upper: at(0.75) }
    }

    /// Returns the quartiles of one value, or of runs that are all the same.
    pub fn point(median: f64) -> Self {
        Self { lower: median, median, upper: median }
    }

    /// Returns whether the quartiles are one point.
    pub fn is_point(self) -> bool {
        self.lower == self.upper
    }

    /// Returns the quartiles times `factor`, for another unit.
    pub fn times(self, factor: f64) -> Self {
        Self { lower: self.lower * factor, median: self.median * factor, upper: self.upper * factor }
    }
}

/// Returns the value that `part` of some sorted numbers are below, interpolated between its neighbours.
pub(super) fn between(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// For example, `2.31 [2.25, 2.40]`.
impl fmt::Display for Quartiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}, {}]", short(self.median), short(self.lower), short(self.upper))
    }
}

/// Formats a number with three significant digits, or all digits before the point if there are more.
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
