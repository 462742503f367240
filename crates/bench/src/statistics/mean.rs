// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mean of several runs and its standard error, for what was published so.

/// A mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// The standard error of the mean: the deviation of the runs over the root of their number.
    pub error: f64,
}

impl Mean {
    /// The mean of some runs; `None` if there are fewer than two.
    pub fn of(runs: &[f64]) -> Option<Self> {
        if runs.len() < 2 {
            return None;
        }
        let count = runs.len() as f64;
        let value = runs.iter().sum::<f64>() / count;
        let variance = runs.iter().map(|run| (run - value).powi(2)).sum::<f64>() / (count - 1.0);
        Some(Self { value, error: (variance / count).sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_the_mean() {
        // The deviation is 2, and its part for a mean of four is half of it.
        assert_eq!(Mean::of(&[3.0, 3.0, 3.0, 7.0]), Some(Mean { value: 4.0, error: 1.0 }));
        assert_eq!(Mean::of(&[5.0, 5.0]), Some(Mean { value: 5.0, error: 0.0 }));
        assert_eq!(Mean::of(&[5.0]), None);
    }
}
