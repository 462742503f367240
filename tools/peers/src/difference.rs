// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far one figure is from another, in words.

use std::fmt;

/// A relative difference, in percent. It prints as `3.2 % more`, `3.2 % less` or `equal`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Difference(f64);

impl Difference {
    /// Returns by how much `figure` exceeds `other`.
    pub fn of(figure: f64, other: f64) -> Self {
        Self((figure / other - 1.0) * 100.0)
    }

    /// The difference in percent, above 0 if the figure is the larger one.
    pub fn percent(self) -> f64 {
        self.0
    }

    /// Returns whether the difference is at most `percent` in either direction.
    pub fn is_within(self, percent: f64) -> bool {
        self.0.abs() <= percent
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        // Near 100 % less, what is left has to be visible.
        let decimals = match 100.0 + self.0 {
            left if left < 0.1 => 3,
            left if left < 1.0 => 2,
            _ => 1,
        };
        match self.0 {
            0.0 => f.write_str("equal"),
            _ if size < 0.05 => f.write_str("within 0.1 %"),
            more if more > 0.0 => write!(f, "{size:.decimals$} % more"),
            _ => write!(f, "{size:.decimals$} % less"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_is_a_word() {
        for (figure, words) in [
            (110.0, "10.0 % more"),
            (96.8, "3.2 % less"),
            (100.0, "equal"),
            (100.01, "within 0.1 %"),
            (0.25, "99.75 % less"),
            (0.019, "99.981 % less"),
        ] {
            assert_eq!(Difference::of(figure, 100.0).to_string(), words);
        }
    }
}
