// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges each row by its target.

use serde::Serialize;

use super::measure::{Costs, Measured};
use super::rows::{Row, Target};
use crate::machine::Machine;
use crate::report::section::TOO_FEW;
use crate::statistics::{ENOUGH, Quartiles};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One for each row.
    pub rows: Vec<Judged>,
    /// How long this machine takes to read the entries alone.
    pub read_ns: Option<Quartiles>,
    /// The slot's size.
    pub bytes: u64,
    /// Runs.
    pub runs: u32,
    /// How the program was compiled.
    pub build: &'static str,
    /// Where it ran.
    pub machine: Machine,
}

impl Report {
    /// The report of what was measured.
    pub fn of(costs: &Costs<'_>, size: u64, runs: u32) -> Self {
        let of = |measured: &Measured<'_>| Judged::of(measured.row, &measured.times, &costs.reads, size);
        Self {
            rows: costs.rows.iter().map(of).collect(),
            read_ns: (!costs.reads.is_empty()).then(|| Quartiles::of(costs.reads.iter().copied())),
            bytes: size,
            runs,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            machine: Machine::this(),
        }
    }
}

/// A row's figures.
#[derive(Debug, Serialize)]
pub struct Judged {
    /// The operation.
    pub name: &'static str,
    /// Nanoseconds.
    pub ns: Quartiles,
    /// The most time the operation may take; `None` for a row without a target, or one that is not judged.
    pub target_ns: Option<f64>,
    /// The median divided by the target.
    pub of_target: Option<f64>,
    /// Why a row that has a target is not judged.
    pub not_judged: Option<&'static str>,
}

impl Judged {
    /// `reads` are the reading times of this row's runs, if its target is a multiple of them.
    fn of(row: &Row, times: &[f64], reads: &[f64], size: u64) -> Self {
        let ns = Quartiles::of(times.iter().copied());
        let not_judged = match row.target {
            Some(Target::FromFullSize(_)) if size < TARGET_SIZE => Some("not judged: the target is for 16 GiB"),
            Some(_) if times.len() < ENOUGH => Some(TOO_FEW),
            _ => None,
        };
        let (target_ns, of_target) = match row.target.filter(|_| not_judged.is_none()) {
            None => (None, None),
            Some(Target::PerSize(target) | Target::FromFullSize(target)) => {
                let target = target * size as f64 / TARGET_SIZE as f64;
                (Some(target), Some(ns.median / target))
            }
            Some(Target::Reads(count)) => {
                let ratios = times.iter().zip(reads).map(|(time, read)| time / (read * count));
                (Some(Quartiles::of(reads.iter().copied()).median * count), Some(Quartiles::of(ratios).median))
            }
        };
        Self { name: row.name, ns, target_ns, of_target, not_judged }
    }

    /// Whether it takes longer than its target.
    pub fn is_missed(&self) -> bool {
        self.of_target.is_some_and(|of_target| of_target > 1.0)
    }
}

/// The slot size that the targets are for.
const TARGET_SIZE: u64 = 16 << 30;

#[cfg(test)]
mod tests {
    use super::super::report::shown;
    use super::super::rows::ROWS;
    use super::*;

    const RUNS: [f64; 5] = [3.0, 1.0, 2.0, 2.0, 2.0];

    fn row(target: Option<Target>) -> Row {
        Row { name: "x", target, run: |_| Ok(0.0) }
    }

    #[test]
    fn targets_are_in_proportion_to_the_size() {
        let of = |target, runs: &[f64], gib: u64| Judged::of(&row(target), runs, &[], gib << 30);
        let measured = of(Some(Target::PerSize(16.0)), &RUNS, 1);
        assert_eq!((measured.target_ns, measured.of_target, measured.is_missed()), (Some(1.0), Some(2.0), true));
        assert!(!of(Some(Target::PerSize(16.0)), &RUNS, 16).is_missed());
        assert!(!of(None, &RUNS, 1).is_missed());
    }

    #[test]
    fn a_target_that_a_smaller_slot_cannot_reach_is_not_judged_there() {
        let of = |runs: &[f64], gib: u64| Judged::of(&row(Some(Target::FromFullSize(16.0))), runs, &[], gib << 30);
        let small = of(&[100.0; 4], 1);
        assert_eq!((small.target_ns, small.of_target, small.is_missed()), (None, None, false));
        assert_eq!(small.not_judged, Some("not judged: the target is for 16 GiB"));
        assert!(of(&[100.0; 4], 16).is_missed() && !of(&[10.0; 4], 16).is_missed());
        assert_eq!(of(&[100.0; 4], 64).target_ns, Some(64.0));
        let report = Report {
            rows: vec![small],
            read_ns: None,
            bytes: 1 << 30,
            runs: 4,
            build: "test",
            machine: Machine::this(),
        };
        assert!(shown(&report).contains("not judged: the target is for 16 GiB"), "{}", shown(&report));
        let names = ROWS.iter().filter(|row| matches!(row.target, Some(Target::FromFullSize(_)))).map(|row| row.name);
        assert_eq!(names.collect::<Vec<_>>(), ["get 1,000 dirty: manual"]);
    }

    #[test]
    fn few_runs_are_not_judged() {
        let measured = Judged::of(&row(Some(Target::PerSize(1.0))), &[100.0; 3], &[], 16 << 30);
        assert_eq!((measured.not_judged, measured.is_missed()), (Some("too few runs"), false));
    }

    #[test]
    fn what_is_measured_by_reads_is_compared_run_by_run() {
        let measured = Judged::of(
            &row(Some(Target::Reads(2.0))),
            &[10.0, 100.0, 1000.0, 10.0],
            &[10.0, 100.0, 100.0, 100.0],
            1 << 30,
        );
        assert_eq!((measured.target_ns, measured.of_target), (Some(200.0), Some(0.5)));
    }
}
