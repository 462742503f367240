// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges what was measured: each tracker beside the best.

use serde::Serialize;
use twofold_memory::dirty::Tracker;

use super::measure::Measured;
use super::plan::Plan;
use crate::dirty::span::Span;
use crate::machine::Machine;
use crate::statistics::{Quartiles, Ratio};

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One row for each workload, exit cost and tracker.
    pub rows: Vec<Row>,
    /// The slot's size.
    pub bytes: u64,
    /// Rounds of a workload that is not recorded.
    pub rounds: u32,
    /// Writes of a round.
    pub writes: u64,
    /// Runs.
    pub runs: u32,
    /// How the program was compiled.
    pub build: &'static str,
    /// Where it ran.
    pub machine: Machine,
}

/// The figures of a tracker and a workload: CPU time, the sum over all rounds.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: &'static str,
    /// The modelled cost of an exit and the return, in nanoseconds.
    pub exit_cost_ns: u32,
    /// The tracker.
    pub tracker: &'static str,
    /// The guest, with its faults.
    pub dirty_ns: Quartiles,
    /// The collector's gets.
    pub get_ns: Quartiles,
    /// The collector's clears.
    pub clear_ns: Quartiles,
    /// The last get.
    pub last_get_ns: Quartiles,
    /// The sum, with start and stop.
    pub cpu_ns: Quartiles,
    /// Faults.
    pub faults: Quartiles,
    /// Writes per second of CPU.
    pub work: Quartiles,
    /// This row's writes per second divided by those of the best tracker; `None` after too few runs.
    pub of_best: Option<Ratio>,
}

impl Report {
    /// The report of what was measured.
    pub fn of(plan: &Plan, measured: &[Measured<'_>]) -> Self {
        let rows = measured.iter().flat_map(|measured| {
            plan.exit_costs.iter().flat_map(|exit_cost| rows(measured, &plan.trackers, *exit_cost))
        });
        Self {
            rows: rows.collect(),
            bytes: plan.size,
            rounds: plan.rounds,
            writes: plan.writes.unwrap_or(plan.pages()),
            runs: plan.runs,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            machine: Machine::this(),
        }
    }
}

impl Row {
    /// Returns whether this is the adaptive tracker, and it misses its target.
    pub fn is_missed(&self) -> bool {
        self.tracker == Tracker::Adaptive.name() && self.of_best.is_some_and(|of_best| of_best.high < ENOUGH)
    }
}

/// The adaptive tracker's target, as a share of the best tracker's work.
const ENOUGH: f64 = 0.95;

fn rows(measured: &Measured<'_>, trackers: &[Tracker], exit_cost: u32) -> Vec<Row> {
    let exit = f64::from(exit_cost);
    let work = |spans: &[Span]| -> Vec<f64> { spans.iter().map(|span| span.work(exit)).collect() };
    let works: Vec<_> = measured.spans.iter().map(|spans| work(spans)).collect();
    let median = |work: &Vec<f64>| Quartiles::of(work.iter().copied()).median;
    let Some(best) = works.iter().max_by(|one, other| median(one).total_cmp(&median(other))) else { return Vec::new() };
    let row = |((tracker, spans), work): ((&Tracker, &Vec<Span>), &Vec<f64>)| {
        let of = |part: fn(&Span) -> f64| Quartiles::of(spans.iter().map(part));
        Row {
            workload: measured.workload.name(),
            exit_cost_ns: exit_cost,
            tracker: tracker.name(),
            dirty_ns: Quartiles::of(spans.iter().map(|span| span.dirty + span.faults as f64 * exit)),
            get_ns: of(|span| span.get),
            clear_ns: of(|span| span.clear),
            last_get_ns: of(|span| span.last_get),
            cpu_ns: Quartiles::of(spans.iter().map(|span| span.cpu(exit))),
            faults: of(|span| span.faults as f64),
            work: Quartiles::of(work.iter().copied()),
            of_best: Ratio::of(work, best),
        }
    };
    trackers.iter().zip(&measured.spans).zip(&works).map(row).collect()
}
