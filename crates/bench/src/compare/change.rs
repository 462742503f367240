// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One figure in two files, and what is to be said of it.
//!
//! Invariant: a difference is called one where chance alone would show it less than once in twenty, or where the figure is
//! counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::readable;
use crate::results::{Kind, Measurement, Platform, Quantity};
use crate::statistics::{ENOUGH, Quartiles, Ratio};

/// A figure before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Of which experiment.
    pub experiment: String,
    /// Where.
    pub platform: Platform,
    /// What was set.
    pub configuration: BTreeMap<String, String>,
    /// When.
    pub phase: String,
    /// Of what.
    pub quantity: Quantity,
    /// How.
    pub kind: Kind,
    /// The runs before.
    pub before: Quartiles,
    /// The runs after.
    pub after: Quartiles,
    /// How many there are of each.
    pub runs: [usize; 2],
    /// After by before. `None` where there are too few runs, or it was 0 before.
    pub ratio: Option<Ratio>,
    /// What comes of it.
    pub verdict: Verdict,
}

/// What a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It takes less, or does more in its time.
    Faster,
    /// It takes more.
    Slower,
    /// It may be one as well as the other, or is smaller than what is asked for.
    NoDifference,
    /// Chance would show it too often.
    TooFewRuns,
    /// It was 0 and is not.
    FromZero,
    /// Counted, and equal.
    Same,
    /// Counted, and more.
    More,
    /// Counted, and fewer.
    Fewer,
}

impl Change {
    /// Of two measurements of the same thing.
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

    /// Whether it costs more, by `threshold` at least. A count of pages is none: more of them is not worse.
    pub fn is_slower(&self, threshold: f64) -> bool {
        let is_cost = !self.quantity.more_is_better() && self.quantity != Quantity::Pages;
        match self.verdict {
            Verdict::Slower => self.quantity != Quantity::Pages,
            Verdict::More => is_cost && self.ratio.is_none_or(|ratio| ratio.median - 1.0 >= threshold),
            _ => false,
        }
    }

    /// How far the two are apart, whichever is more.
    pub fn size(&self) -> f64 {
        match self.ratio {
            Some(ratio) => ratio.median.ln().abs(),
            None if self.before.median == self.after.median || self.verdict == Verdict::TooFewRuns => 0.0,
            None => f64::INFINITY,
        }
    }
}

impl Verdict {
    /// Whether the two are told apart.
    pub const fn is_difference(self) -> bool {
        matches!(self, Self::Faster | Self::Slower | Self::FromZero | Self::More | Self::Fewer)
    }

    /// Words for it.
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

/// All that names a measurement, in a line.
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
