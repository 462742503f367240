// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One figure in two files, and the verdict on its change.
//!
//! Invariant: a timed change is called a difference only if chance alone would show it less than once in twenty. A
//! counted change is always one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::readable;
use crate::results::{Kind, Measurement, Platform, Quantity};
use crate::statistics::{ENOUGH, Quartiles, Ratio};

/// A figure before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The experiment.
    pub experiment: String,
    /// The platform.
    pub platform: Platform,
    /// The settings.
    pub configuration: BTreeMap<String, String>,
    /// The phase.
    pub phase: String,
    /// The quantity.
    pub quantity: Quantity,
    /// How the figures were obtained.
    pub kind: Kind,
    /// The runs before.
    pub before: Quartiles,
    /// The runs after.
    pub after: Quartiles,
    /// Number of runs before and after.
    pub runs: [usize; 2],
    /// After divided by before. `None` if there are too few runs, or a run before was 0.
    pub ratio: Option<Ratio>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Less time, or more work in the same time.
    Faster,
    /// More time, or less work in the same time.
    Slower,
    /// The interval contains 1, or the change is smaller than the threshold.
    NoDifference,
    /// Too few runs for an interval.
    TooFewRuns,
    /// The figure was 0 and is not 0 now.
    FromZero,
    /// Counted, and equal.
    Same,
    /// Counted, and more.
    More,
    /// Counted, and fewer.
    Fewer,
}

impl Change {
    /// The change between two measurements of the same thing.
    pub fn of(before: &Measurement, after: &Measurement, threshold: f64) -> Self {
        let ratio = match before.kind {
            _ if before.runs.contains(&0.0) => None,
            Kind::Counted => Ratio::counted(&after.runs, &before.runs),
            _ => Ratio::apart(&after.runs, &before.runs),
        };
        let quartiles = |of: &Measurement| Quartiles::of(of.runs.iter().copied());
        let change = Self {
            experiment: before.experiment.clone(),
            platform: before.platform,
            configuration: before.configuration.clone(),
            phase: before.phase.clone(),
            quantity: before.quantity,
            kind: before.kind,
            before: quartiles(before),
            after: quartiles(after),
            runs: [before.runs.len(), after.runs.len()],
            ratio,
            verdict: Verdict::NoDifference,
        };
        Self { verdict: change.verdict(threshold), ..change }
    }

    fn verdict(&self, threshold: f64) -> Verdict {
        let (before, after) = (self.before.median, self.after.median);
        if self.kind == Kind::Counted {
            return match after.total_cmp(&before) {
                std::cmp::Ordering::Less => Verdict::Fewer,
                std::cmp::Ordering::Equal => Verdict::Same,
                std::cmp::Ordering::Greater => Verdict::More,
            };
        }
        match self.ratio {
            _ if self.runs.into_iter().any(|runs| runs < ENOUGH) => Verdict::TooFewRuns,
            None if before == after => Verdict::NoDifference,
            None => Verdict::FromZero,
            Some(ratio) if ratio.holds_one() || (ratio.median - 1.0).abs() < threshold => Verdict::NoDifference,
            Some(ratio) if (ratio.median > 1.0) == self.quantity.more_is_better() => Verdict::Faster,
            Some(_) => Verdict::Slower,
        }
    }

    /// Whether the cost rose by at least `threshold`. More dirty pages are not slower.
    pub fn is_slower(&self, threshold: f64) -> bool {
        let is_cost = !self.quantity.more_is_better() && self.quantity != Quantity::Pages;
        match self.verdict {
            Verdict::Slower => self.quantity != Quantity::Pages,
            Verdict::More => is_cost && self.ratio.is_none_or(|ratio| ratio.median - 1.0 >= threshold),
            _ => false,
        }
    }

    /// The distance between the two figures, in either direction.
    pub fn size(&self) -> f64 {
        match self.ratio {
            Some(ratio) => ratio.median.ln().abs(),
            None if self.before.median == self.after.median || self.verdict == Verdict::TooFewRuns => 0.0,
            None => f64::INFINITY,
        }
    }
}

impl Verdict {
    /// Whether the two figures differ.
    pub const fn is_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower | Self::FromZero | Self::More | Self::Fewer)
    }

    /// The verdict in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no difference shown",
            Self::TooFewRuns => "too few runs",
            Self::FromZero => "was 0",
            Self::Same => "same",
            Self::More => "more",
            Self::Fewer => "fewer",
        }
    }
}

/// The full name of a measurement, in one line.
pub fn full_name(of: &Measurement) -> String {
    let settings = of.configuration.iter().map(|(key, value)| readable::setting(key, value));
    let settings = settings.collect::<Vec<_>>().join(", ");
    let (phase, quantity, kind) = (&of.phase, of.quantity.name(), of.kind.name());
    format!("{} on {}: {phase} {quantity}, {kind} ({settings})", of.experiment, of.platform)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(quantity: Quantity, kind: Kind, runs: &[f64]) -> Measurement {
        Measurement {
            experiment: "dirty-log".to_owned(),
            platform: Platform::Kvm,
            configuration: BTreeMap::new(),
            phase: "clear".to_owned(),
            quantity,
            kind,
            runs: runs.to_vec(),
        }
    }

    fn verdict(quantity: Quantity, kind: Kind, before: &[f64], after: &[f64]) -> Verdict {
        Change::of(&measurement(quantity, kind, before), &measurement(quantity, kind, after), 0.05).verdict
    }

    const LOW: [f64; 5] = [9.8, 9.9, 10.0, 10.1, 10.2];
    const HIGH: [f64; 5] = [19.0, 20.0, 20.0, 21.0, 22.0];

    #[test]
    fn more_time_is_slower_and_more_accesses_are_faster() {
        assert_eq!(verdict(Quantity::Time, Kind::Native, &LOW, &HIGH), Verdict::Slower);
        assert_eq!(verdict(Quantity::Time, Kind::Modelled, &HIGH, &LOW), Verdict::Faster);
        assert_eq!(verdict(Quantity::Rate, Kind::Native, &LOW, &HIGH), Verdict::Faster);
        assert_eq!(verdict(Quantity::Rate, Kind::Native, &HIGH, &LOW), Verdict::Slower);
    }

    #[test]
    fn what_overlaps_or_has_few_runs_shows_nothing() {
        let wide = [5.0, 10.0, 12.0, 18.0, 30.0];
        assert_eq!(verdict(Quantity::Time, Kind::Native, &LOW, &wide), Verdict::NoDifference);
        assert_eq!(verdict(Quantity::Time, Kind::Native, &LOW[..3], &HIGH), Verdict::TooFewRuns);
        assert_eq!(verdict(Quantity::Time, Kind::Native, &[], &[]), Verdict::TooFewRuns);
        let of = |runs: &[f64]| measurement(Quantity::Time, Kind::Native, runs);
        assert_eq!(Change::of(&of(&LOW[..3]), &of(&HIGH), 0.05).ratio, None, "three runs have no interval");
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        assert_eq!(verdict(Quantity::Faults, Kind::Native, &[0.0; 5], &[0.0; 5]), Verdict::NoDifference);
        assert_eq!(verdict(Quantity::Faults, Kind::Native, &[0.0; 5], &[3.0; 5]), Verdict::FromZero);
        assert_eq!(verdict(Quantity::Faults, Kind::Counted, &[0.0], &[3.0]), Verdict::More);
    }

    #[test]
    fn more_pages_are_not_slower() {
        let change = |quantity| {
            let of = |runs: &[f64]| measurement(quantity, Kind::Counted, runs);
            Change::of(&of(&[100.0]), &of(&[200.0]), 0.05)
        };
        assert!(!change(Quantity::Pages).is_slower(0.05));
        assert!(change(Quantity::Instructions).is_slower(0.05) && !change(Quantity::Instructions).is_slower(1.5));
    }
}
