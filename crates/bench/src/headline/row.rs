// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of the headline table: from runs to a published number with ours next to it.
//!
//! Invariant: the gain, the interval and the verdict of a row come from its own runs only. A row with fewer than
//! [`ENOUGH`] timed runs has no gain and no interval, and is inconclusive.

use super::published::Published;
use super::verdict::{Owed, judge, judge_limit};
use crate::report::words::Noun;
use crate::results::{HeadlineRow, Kind, Platform, TARGET, Verdict};
use crate::statistics::{ENOUGH, Quartiles, Ratio};

/// Runs of two variants, in turns: equal indices were run one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// The baseline, with the technique off.
    pub before: Vec<f64>,
    /// The runs with the technique on.
    pub after: Vec<f64>,
}

impl Pair {
    /// Adds a run of one variant.
    pub fn add(&mut self, is_after: bool, value: f64) {
        (if is_after { &mut self.after } else { &mut self.before }).push(value);
    }

    /// The same runs in another unit.
    pub fn times(&self, factor: f64) -> Self {
        let times = |runs: &[f64]| runs.iter().map(|run| run * factor).collect();
        Self { before: times(&self.before), after: times(&self.after) }
    }

    /// The sum of two pairs, run by run.
    pub fn plus(&self, other: &Self) -> Self {
        let plus = |one: &[f64], other: &[f64]| one.iter().zip(other).map(|(one, other)| one + other).collect();
        Self { before: plus(&self.before, &other.before), after: plus(&self.after, &other.after) }
    }

    /// The part of the baseline's time that is saved. `None` if there are too few runs.
    pub fn gain(&self, kind: Kind) -> Option<Ratio> {
        let left = if kind == Kind::Counted { Ratio::counted } else { Ratio::of };
        left(&self.after, &self.before).map(Ratio::complement)
    }

    /// The number of complete pairs.
    fn count(&self) -> usize {
        self.before.len().min(self.after.len())
    }
}

/// Our measurement, for a row.
#[derive(Clone, Debug)]
pub struct Ours {
    /// The runs, in `unit`.
    pub pair: Pair,
    /// The unit: `ms`.
    pub unit: &'static str,
    /// The platform.
    pub platform: Platform,
    /// How the figures were obtained.
    pub kind: Kind,
    /// The note for readers; it begins with our command.
    pub note: String,
}

impl Published {
    /// The row with our measurement.
    pub fn row(&self, ours: &Ours) -> HeadlineRow {
        let row = HeadlineRow { published_gain: Some(self.figure.gain()), ..self.bare() };
        beside(row, ours, self.owed())
    }

    /// The row without a measurement, and the reason.
    pub fn missing(&self, why: &str) -> HeadlineRow {
        HeadlineRow { published_gain: Some(self.figure.gain()), note: why.to_owned(), ..self.bare() }
    }

    fn bare(&self) -> HeadlineRow {
        bare(self.source, self.what, self.command, &self.figure.shown())
    }
}

/// A target that Twofold sets itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnTarget {
    /// What is measured.
    pub what: &'static str,
    /// What the target is of.
    pub of: Noun,
    /// The target.
    pub owed: Owed,
}

impl OwnTarget {
    /// The row with our measurement.
    pub fn row(&self, ours: &Ours) -> HeadlineRow {
        let published_gain = if let Owed::AtLeast(least) = self.owed { Some(least) } else { None };
        beside(HeadlineRow { published_gain, ..self.bare() }, ours, self.owed)
    }

    /// The row without a measurement, and the reason.
    pub fn missing(&self, why: &str) -> HeadlineRow {
        HeadlineRow { note: why.to_owned(), ..self.bare() }
    }

    fn bare(&self) -> HeadlineRow {
        bare(TARGET, self.what, "", &self.owed.shown(self.of))
    }
}

/// An upper limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// What is measured.
    pub what: &'static str,
    /// The limit, in the unit of the runs.
    pub most: f64,
    /// The limit as shown.
    pub shown: &'static str,
}

impl Limit {
    /// The row with our measurement. The runs of `after` are compared with the limit.
    pub fn row(&self, ours: &Ours) -> HeadlineRow {
        let (runs, ones) = (&ours.pair.after, vec![1.0; ours.pair.after.len()]);
        if runs.is_empty() {
            return self.missing(NO_RUN);
        }
        let figure = if ours.kind == Kind::Counted { Ratio::counted(runs, &ones) } else { Ratio::of(runs, &ones) };
        HeadlineRow {
            after: Some(spread(runs, ours.kind)),
            verdict: figure.map_or(Verdict::Inconclusive, |figure| judge_limit(self.most, &figure)),
            ..with_ours(bare(TARGET, self.what, "", self.shown), ours, runs.len())
        }
    }

    /// The row without a measurement, and the reason.
    pub fn missing(&self, why: &str) -> HeadlineRow {
        HeadlineRow { note: why.to_owned(), ..bare(TARGET, self.what, "", self.shown) }
    }
}

fn beside(row: HeadlineRow, ours: &Ours, owed: Owed) -> HeadlineRow {
    let (pair, kind) = (&ours.pair, ours.kind);
    if pair.count() == 0 {
        return HeadlineRow { note: NO_RUN.to_owned(), ..row };
    }
    let gain = pair.gain(kind);
    HeadlineRow {
        before: Some(spread(&pair.before, kind)),
        after: Some(spread(&pair.after, kind)),
        gain,
        verdict: gain.map_or(Verdict::Inconclusive, |gain| judge(owed, &gain)),
        ..with_ours(row, ours, pair.count())
    }
}

/// Adds our measurement of `runs` runs to a row. A row with too few runs says so.
fn with_ours(row: HeadlineRow, ours: &Ours, runs: usize) -> HeadlineRow {
    let Ours { unit, platform, kind, note, .. } = ours;
    let note = if *kind == Kind::Counted || runs >= ENOUGH {
        note.clone()
    } else {
        let few = format!("too few runs: {runs}, and at least {ENOUGH} are needed");
        [note.as_str(), &few].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    };
    HeadlineRow { unit: (*unit).to_owned(), platform: *platform, kind: *kind, note, ..row }
}

/// The median, with quartiles if there are enough runs.
fn spread(runs: &[f64], kind: Kind) -> Quartiles {
    let of = Quartiles::of(runs.iter().copied());
    if kind == Kind::Counted || runs.len() < ENOUGH { Quartiles::point(of.median) } else { of }
}

fn bare(source: &str, what: &str, command: &str, published: &str) -> HeadlineRow {
    HeadlineRow {
        source: source.to_owned(),
        what: what.to_owned(),
        command: command.to_owned(),
        published: published.to_owned(),
        published_gain: None,
        unit: String::new(),
        before: None,
        after: None,
        gain: None,
        platform: Platform::Machine,
        kind: Kind::Native,
        verdict: Verdict::NotMeasured,
        note: String::new(),
    }
}

/// The note of a row without a run.
const NO_RUN: &str = "no run of it was completed";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headline::published::PUBLISHED;

    fn ours(before: &[f64], after: &[f64], kind: Kind) -> Ours {
        let pair = Pair { before: before.to_vec(), after: after.to_vec() };
        Ours { pair, unit: "ms", platform: Platform::Machine, kind, note: "twofold bench ...".to_owned() }
    }

    #[test]
    fn a_row_has_all_that_its_source_has() {
        let published = &PUBLISHED[0];
        let row = published.row(&ours(&[10.0; 7], &[5.0; 7], Kind::Native));
        assert_eq!((row.source.as_str(), row.command.as_str()), ("Bras 2026", "./dirty_log_perf_test -g -b 64G"));
        assert_eq!(row.published, "44.01 % less time (sd 2.80)");
        assert_eq!(row.published_gain, Some(0.4401));
        assert_eq!(row.gain.map(|gain| gain.median), Some(0.5));
        assert_eq!(row.verdict, Verdict::AsExpected);
        assert_eq!(published.missing("no memory").verdict, Verdict::NotMeasured);
    }

    #[test]
    fn few_runs_say_nothing_where_they_may_differ() {
        let published = &PUBLISHED[0];
        for few in 1..4 {
            let row = published.row(&ours(&vec![10.0; few], &vec![5.0; few], Kind::Native));
            assert_eq!((row.verdict, row.gain), (Verdict::Inconclusive, None), "{few} runs");
            assert!(row.note.ends_with(&format!("; too few runs: {few}, and at least 4 are needed")), "{}", row.note);
        }
        let three = published.row(&ours(&[10.0, 20.0, 30.0], &[5.0; 3], Kind::Native));
        assert_eq!(three.before, Some(Quartiles::point(20.0)), "no interval of three runs");
        assert_eq!(published.row(&ours(&[10.0; 4], &[5.0; 4], Kind::Native)).verdict, Verdict::AsExpected);
        assert_eq!(published.row(&ours(&[10.0], &[5.0], Kind::Counted)).verdict, Verdict::AsExpected);
        assert_eq!(published.row(&ours(&[10.0], &[], Kind::Native)).verdict, Verdict::NotMeasured);
    }

    #[test]
    fn targets_and_limits() {
        let target = OwnTarget { what: "x", of: Noun::TIME, owed: Owed::AtLeast(0.25) };
        assert_eq!(target.missing("no memory").published, "at least 25 % less time");
        assert_eq!(target.row(&ours(&[10.0; 7], &[5.0; 7], Kind::Native)).verdict, Verdict::AsExpected);
        assert_eq!(target.row(&ours(&[10.0; 7], &[9.0; 7], Kind::Native)).verdict, Verdict::Differs);
        let limit = Limit { what: "x", most: 10.0, shown: "10 ns at most" };
        assert_eq!(limit.row(&ours(&[], &[9.0; 7], Kind::Native)).verdict, Verdict::AsExpected);
        assert_eq!(limit.row(&ours(&[], &[11.0; 7], Kind::Native)).verdict, Verdict::Differs);
        assert_eq!(limit.row(&ours(&[], &[], Kind::Native)).verdict, Verdict::NotMeasured);
    }
}
