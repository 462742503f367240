// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges the figures: beside the published ones, and beside our targets.
//!
//! A published score is work in a fixed time, and more is better. As everywhere in the reports, a gain is the part of the
//! baseline's time that is saved, here for the same work: a score of 1.909 times is 47.6 % less time.

use twofold_machine::tasks::Nanos;

use super::measure::{PAGES, WORK, phase};
use super::plan::{Bm, NAME, Plan};
use crate::headline::published::{NATAPOV, PUBLISHED, Published};
use crate::headline::row::{Ours, OwnTarget, Pair};
use crate::headline::subject::Subject;
use crate::headline::verdict::Owed;
use crate::options::FaultMode;
use crate::report::words::Noun;
use crate::results::{HeadlineRow, Kind, Measurement, Platform, Results};
use crate::statistics::Ratio;

/// The latency of a disk, for which figures were published.
pub const DISK: Nanos = Nanos::millis(10);

/// Runs of `off` and of another mode, for rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// Microseconds of the guest's time for a unit of work.
    pub time: Pair,
    /// Units of work for a page that the store brought.
    pub work_per_page: Pair,
}

impl Pairs {
    /// Adds a run of `off` and one of the other mode, each with its work and its pages. A run in which nothing was done
    /// has no time for a unit of work, nor work for a page.
    pub fn add(&mut self, runs: [(f64, f64); 2], time: Nanos) {
        let micros = time.get() as f64 / 1e3;
        for (is_after, (work, pages)) in [false, true].into_iter().zip(runs) {
            if runs.iter().all(|(work, _)| *work > 0.0) {
                self.time.add(is_after, micros / work);
            }
            if runs.iter().all(|(_, pages)| *pages > 0.0) {
                self.work_per_page.add(is_after, work / pages);
            }
        }
    }
}

/// The rows of a plan whose guest is as the published one; else none.
pub fn rows(plan: &Plan, results: &Results) -> Vec<HeadlineRow> {
    if !plan.bm.is_as_published() || !plan.latencies.contains(&DISK) || !plan.modes.contains(&FaultMode::Off) {
        return Vec::new();
    }
    let modes = plan.modes.iter().copied().filter(|mode| *mode != FaultMode::Off);
    let mut rows: Vec<_> =
        modes.flat_map(|mode| mode_rows(mode, &plan.bm, &pairs(results, plan.bm.time, mode))).collect();
    rows.sort_by_key(|row| row.source != NATAPOV);
    rows
}

/// The work of each mode as a multiple of the work of `off`, a line for each latency.
pub fn ratios(plan: &Plan, results: &Results) -> Vec<String> {
    let of = |latency: &Nanos| {
        let off = runs(results, FaultMode::Off, WORK, *latency);
        let modes = plan.modes.iter().filter(|mode| **mode != FaultMode::Off).filter_map(|mode| {
            let ratio = Ratio::counted(runs(results, *mode, WORK, *latency), off)?;
            let ratio = Some(ratio).filter(|ratio| ratio.median.is_finite())?;
            let beside = published(*mode).filter(|_| plan.bm.is_as_published() && *latency == DISK);
            let beside = beside.map(|published| format!(" (published {:.3})", 1.0 / (1.0 - published.figure.gain())));
            Some(format!("{} {:.3} times{}", mode.name(), ratio.median, beside.unwrap_or_default()))
        });
        let modes = modes.collect::<Vec<_>>().join(", ");
        (!modes.is_empty()).then(|| format!("work beside off at {latency}, medians: {modes}"))
    };
    plan.latencies.iter().filter_map(of).collect()
}

/// The rows of one mode.
pub fn mode_rows(mode: FaultMode, bm: &Bm, pairs: &Pairs) -> Vec<HeadlineRow> {
    let note = format!(
        "`twofold bench async-fault -f {} -w {} -m {} -t {} --vcpus {} --latency 10ms`",
        bm.faulting,
        bm.workers,
        typed(bm.bytes),
        bm.time.to_string().replace(' ', ""),
        bm.vcpus
    );
    let ours = |pair: &Pair, unit, note: String| Ours {
        pair: pair.clone(),
        unit,
        platform: Platform::Machine,
        kind: Kind::Modelled,
        note,
    };
    let time = ours(&pairs.time, "us", format!("{note}; virtual time for each unit of work"));
    let pages = ours(&pairs.work_per_page, "work", format!("{note}; the workers' work for each page"));
    let published = published(mode).map(|published| published.row(&time));
    let target = match mode {
        FaultMode::Off => None,
        FaultMode::Halt => Some(PAGES_AT_THE_SAME_WORK.row(&pages)),
        FaultMode::Pv => Some(TIME_FOR_THE_SAME_WORK.row(&time)),
    };
    published.into_iter().chain(target).collect()
}

/// Bytes as they are typed: `64M`.
fn typed(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}M", bytes >> 20) } else { bytes.to_string() }
}

/// The rows of one mode without a measurement, and the reason.
pub fn missing_rows(mode: FaultMode, why: &str) -> Vec<HeadlineRow> {
    let target = match mode {
        FaultMode::Off => None,
        FaultMode::Halt => Some(PAGES_AT_THE_SAME_WORK),
        FaultMode::Pv => Some(TIME_FOR_THE_SAME_WORK),
    };
    published(mode)
        .map(|published| published.missing(why))
        .into_iter()
        .chain(target.map(|one| one.missing(why)))
        .collect()
}

/// 1.8 times the work.
const TIME_FOR_THE_SAME_WORK: OwnTarget =
    OwnTarget { what: "async faults, 10 ms: pv", of: Noun::TIME, owed: Owed::AtLeast(1.0 - 1.0 / 1.8) };
/// 1.5 times the pages.
const PAGES_AT_THE_SAME_WORK: OwnTarget =
    OwnTarget { what: "async faults, 10 ms: halt, for a page", of: Noun::WORK, owed: Owed::AtLeast(1.0 - 1.0 / 1.5) };

fn published(mode: FaultMode) -> Option<&'static Published> {
    PUBLISHED.iter().find(|published| published.subject == Subject::AsyncFault { mode })
}

/// The runs of a mode at a latency.
fn runs<'r>(results: &'r Results, mode: FaultMode, name: &str, latency: Nanos) -> &'r [f64] {
    let phase = phase(name, latency);
    let is = |one: &&Measurement| {
        let is_mode = one.configuration.get("async").is_some_and(|name| name == mode.name());
        one.experiment == NAME && one.phase == phase && is_mode
    };
    results.measurements.iter().find(is).map_or(&[], |one| &one.runs)
}

/// The runs of `off` and of this mode, at the disk's latency.
fn pairs(results: &Results, time: Nanos, mode: FaultMode) -> Pairs {
    let of =
        |mode| runs(results, mode, WORK, DISK).iter().copied().zip(runs(results, mode, PAGES, DISK).iter().copied());
    let mut pairs = Pairs::default();
    of(FaultMode::Off).zip(of(mode)).for_each(|(off, other)| pairs.add([off, other], time));
    pairs
}
