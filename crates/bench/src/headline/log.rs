// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of Kolothum 2023: the dirty log in software only, and in software and hardware combined.
//!
//! A cost that moves is not saved, so one row has the sum of dirty, get and clear. A guest exit is a function call
//! here. So the guest's saving is shown twice: with free exits, and with a stated price for each exit. All figures are
//! CPU time.

use anyhow::{Context, ensure};
use twofold_memory::dirty::Tracker;
use twofold_workload::mode::Mode;
use twofold_workload::pass::Pass;

use super::part::{Bench, Part, Round};
use super::published::{KOLOTHUM, PUBLISHED, Published};
use super::row::{Limit, Ours, Pair};
use super::subject::{Part as Phase, Subject};
use crate::experiment::dirty_log::{Check, Load, Run};
use crate::experiment::machine::MachineTarget;
use crate::experiment::record::Variant;
use crate::experiment::setup::{Backing, Setup};
use crate::experiment::target::{REGION, Target};
use crate::results::{HeadlineRow, Kind, Platform, Quantity};

/// The measurement of Kolothum 2023.
#[derive(Default)]
pub struct LogPart {
    setup: Option<Setup>,
    exit_cost: u64,
    dirty: Pair,
    faults: Pair,
    get: Pair,
    clear: Pair,
    /// Nanoseconds of a get for each dirty page, of combined only.
    per_dirty: Vec<f64>,
    /// Nanoseconds of a get for each clean hardware-tracked page, if no page was written.
    per_clean: Vec<f64>,
}

impl LogPart {
    fn published() -> impl Iterator<Item = (&'static Published, Phase)> {
        PUBLISHED.iter().filter_map(|published| match published.subject {
            Subject::Log { part } => Some((published, part)),
            _ => None,
        })
    }

    /// Milliseconds of a phase. `modelled` adds a price for each exit.
    fn phase(&self, phase: Phase, modelled: bool) -> Pair {
        let dirty =
            if modelled { self.dirty.plus(&self.faults.times(self.exit_cost as f64)) } else { self.dirty.clone() };
        let ns = match phase {
            Phase::Dirty => dirty,
            Phase::Get => self.get.clone(),
            Phase::Clear => self.clear.clone(),
            Phase::Sum => dirty.plus(&self.get).plus(&self.clear),
        };
        ns.times(1e-6)
    }

    fn ours(&self, phase: Phase, modelled: bool) -> Ours {
        let setup = self.setup.as_ref().map(command).unwrap_or_default();
        let mut note = format!("`twofold bench dirty-log {setup}`; CPU time, mean of {ROUNDS} rounds");
        if modelled {
            note.push_str(&format!("; {} ns for each exit", self.exit_cost));
        }
        let kind = if modelled { Kind::Modelled } else { Kind::Native };
        Ours { pair: self.phase(phase, modelled), unit: "ms", platform: Platform::Machine, kind, note }
    }

    fn limit(&self, runs: &[f64], note: &str) -> Ours {
        let pair = Pair { before: Vec::new(), after: runs.to_vec() };
        Ours { pair, unit: "ns", platform: Platform::Machine, kind: Kind::Native, note: note.to_owned() }
    }
}

impl Part for LogPart {
    fn name(&self) -> String {
        format!("{KOLOTHUM}: dirty and get and clear")
    }

    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let mode = Mode::find(MODE).context("there is no such guest mode")?;
        let setup = Setup {
            vcpus: bench.plan.vcpus,
            region: bench.plan.region,
            backing: Backing::AnonymousThp,
            chunk: 2 << 20,
            sparse: bench.plan.sparse,
            ..Setup::new(mode)
        };
        bench.machines.guest(&setup)?;
        (self.setup, self.exit_cost) = (Some(setup), bench.exit_cost);
        Ok(())
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let Some(setup) = self.setup.clone() else { return Ok(()) };
        let is_checked = round == Round::Checked;
        let check = if is_checked && !setup.sparse { Check::Exactly } else { Check::No };
        for tracker in TRACKERS {
            let setup = Setup { tracker, ..setup.clone() };
            let mut target = bench.machines.guest(&setup)?;
            let load = Load { iterations: ROUNDS, ..Load::DEFAULT };
            let Some(run) = Run::measure(&mut target, &setup, &load, check, bench.stop)? else { return Ok(()) };
            drop(target);
            if is_checked {
                continue;
            }
            run.record(&Variant::new("dirty-log", Platform::Machine, &setup), bench.results, false);
            self.add(tracker, &run);
        }
        let clean =
            per_clean_page(&Setup { tracker: Tracker::Hardware, vcpus: 1, region: setup.memory(), ..setup }, bench)?;
        if !is_checked {
            self.per_clean.push(clean);
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        if let Some(why) = why {
            let published = Self::published().map(|(published, _)| published.missing(why));
            let published = published.chain([SUM.missing(why)]);
            return published.chain(LIMITS.iter().map(|limit| limit.missing(why))).collect();
        }
        let mut rows = Vec::new();
        for (published, phase) in Self::published() {
            rows.push(published.row(&self.ours(phase, false)));
            if phase == Phase::Dirty {
                rows.push(published.row(&self.ours(phase, true)));
            }
        }
        rows.push(SUM.row(&self.ours(Phase::Sum, false)));
        rows.push(SUM.row(&self.ours(Phase::Sum, true)));
        rows.push(
            LIMITS[0].row(
                &self.limit(&self.per_dirty, "combined; CPU time of a get, divided by the pages that it reported"),
            ),
        );
        rows.push(
            LIMITS[1].row(
                &self.limit(&self.per_clean, "hardware; CPU time of a get if nothing was written since the clear"),
            ),
        );
        rows
    }
}

impl LogPart {
    fn add(&mut self, tracker: Tracker, run: &Run) {
        let is_after = tracker == Tracker::Combined;
        let mean = |of: fn(&crate::experiment::dirty_log::Iteration) -> f64| {
            run.iterations.iter().map(of).sum::<f64>() / run.iterations.len() as f64
        };
        self.dirty.add(is_after, mean(|round| round.dirty[&Quantity::CpuTime]));
        self.faults.add(is_after, mean(|round| round.dirty[&Quantity::Faults]));
        self.get.add(is_after, mean(|round| round.get[&Quantity::CpuTime]));
        self.clear.add(is_after, mean(|round| round.clear.as_ref().map_or(0.0, |clear| clear[&Quantity::CpuTime])));
        if is_after {
            let pages = mean(|round| round.get[&Quantity::Pages]);
            self.per_dirty.push(mean(|round| round.get[&Quantity::CpuTime]) / pages.max(1.0));
        }
    }
}

/// Nanoseconds of a get for each page that is hardware-tracked and clean.
fn per_clean_page(setup: &Setup, bench: &mut Bench<'_>) -> anyhow::Result<f64> {
    let mut target = bench.machines.guest(setup)?;
    let write = || vec![Pass::writes(REGION, setup.region / PAGE, PAGE)];
    target.run(&mut [write()])?;
    target.enable_log()?;
    // At first the log reports all pages. After two rounds they are hardware-tracked, and were written.
    for _ in 0..2 {
        target.get_log()?;
        target.clear_log()?;
        target.run(&mut [write()])?;
    }
    target.get_log()?;
    target.clear_log()?;
    let tracked = tracked(&target, setup.region);
    ensure!(tracked > 0, "no page is hardware-tracked after all were written");
    let taken = target.get_log()?;
    ensure!(taken[&Quantity::Pages] == 0.0, "a log reports pages that were not written");
    Ok(taken[&Quantity::CpuTime] / tracked as f64)
}

fn tracked(target: &MachineTarget, bytes: u64) -> u64 {
    let stage2 = target.memory().stage2();
    let is_hardware_tracked = |page: &u64| {
        let leaf = stage2.look_up(target.start() + page * PAGE);
        leaf.is_some_and(|leaf| leaf.descriptor.is_hardware_tracked())
    };
    (0..bytes / PAGE).filter(is_hardware_tracked).count() as u64
}

/// The options that set up the same guest.
fn command(setup: &Setup) -> String {
    format!(
        "-b {}M -v {} -i {ROUNDS} -m {MODE} -s anonymous_thp --chunk 2M --tracker manual,combined",
        setup.region >> 20,
        setup.vcpus
    )
}

/// The source prints no sum. Its own figures add up to 4.70 and 4.64 s.
const SUM: Published = Published {
    source: KOLOTHUM,
    what: "all three, added up",
    command: "./dirty_log_perf_test -b 512MB -v 96 -i 5 -m 2 -s anonymous_thp",
    figure: super::published::Figure::Pair(4.70, 4.64, "s", None),
    subject: Subject::Log { part: Phase::Sum },
};
const LIMITS: [Limit; 2] = [
    Limit { what: "get, a dirty page", most: 10.0, shown: "at most 10 ns a page (Kolothum 2023: 258 ns)" },
    Limit { what: "get, a clean hardware-tracked page", most: 0.6, shown: "at most 0.6 ns a page" },
];
/// The trackers that take turns.
const TRACKERS: [Tracker; 2] = [Tracker::Manual, Tracker::Combined];
/// `-m 2` in the numbering of 2023.
const MODE: &str = "p48v48-4k";
/// `-i 5`.
const ROUNDS: u32 = 5;
const PAGE: u64 = 4 << 10;
