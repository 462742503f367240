// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cells of Bras 2026: the time of a call that splits. The baseline visits every entry, as Linux 6.12 does. Figures
//! are the mean over four guest modes, as in the source.
//!
//! Invariant: a run's gain is the gain over its modes, each measured before and after in turns.

use twofold_memory::dirty::Tracker;
use twofold_workload::mode::{Mode, S0_MODES};
use twofold_workload::pass::Pass;

use super::part::{Bench, Part, Round};
use super::published::{BRAS, PUBLISHED, Published};
use super::row::{Ours, OwnTarget, Pair};
use super::subject::{Scenario, Subject};
use super::verdict::Owed;
use crate::experiment::dirty_log::{Check, Load, Run};
use crate::experiment::record::{Party, Variant, mean};
use crate::experiment::setup::{Backing, Setup};
use crate::experiment::target::{REGION, Taken, Target, Targets};
use crate::report::section::TOO_FEW;
use crate::report::words::{self, Noun};
use crate::results::{HeadlineRow, Kind, Platform, Quantity};
use twofold_workload::policies::{Policies, Split};

/// One cell of the published table.
pub struct SplitPart {
    scenario: Scenario,
    backing: Backing,
    setups: Vec<Setup>,
    /// Runs by mode, then by policy.
    runs: Vec<[Vec<f64>; 3]>,
}

impl SplitPart {
    /// All cells.
    pub fn all() -> impl Iterator<Item = Self> {
        PUBLISHED.iter().filter_map(|published| match published.subject {
            Subject::Split { scenario, backing } => {
                Some(Self { scenario, backing, setups: Vec::new(), runs: Vec::new() })
            }
            _ => None,
        })
    }

    /// The published number of this cell.
    fn published(&self) -> &'static Published {
        let subject = Subject::Split { scenario: self.scenario, backing: self.backing };
        let found = PUBLISHED.iter().find(|published| published.subject == subject);
        found.expect("a cell is made of a published number")
    }

    fn own_target(&self) -> Option<OwnTarget> {
        let is = self.scenario == Scenario::Clear && self.backing == Backing::Anonymous;
        is.then_some(OwnTarget { what: "clear, already split", of: Noun::TIME, owed: Owed::AtLeast(0.25) })
    }

    /// Milliseconds of each run with this policy: the mean over the modes.
    fn means(&self, policy: usize) -> Vec<f64> {
        let runs = self.runs.iter().map(|mode| mode[policy].len()).min().unwrap_or(0);
        let mean = |run| self.runs.iter().map(|mode| mode[policy][run]).sum::<f64>() / self.runs.len() as f64;
        (0..runs).map(|run| mean(run) / 1e6).collect()
    }

    /// A policy, with every level visited as its baseline.
    fn pair(&self, policy: usize) -> Pair {
        Pair { before: self.means(EVERY_LEVEL), after: self.means(policy) }
    }

    fn ours(&self) -> Ours {
        let skip = self.pair(SKIP_LEAVES).gain(Kind::Native);
        let skip = skip.map_or(TOO_FEW.to_owned(), |gain| words::change(1.0 - gain.median, Noun::TIME));
        let options = match self.setups.first() {
            Some(setup) => command(setup, self.scenario),
            None => String::new(),
        };
        let note = format!(
            "`twofold bench dirty-log {options} --policy split=every-level,records`; four modes, {} between them; with \
             only level 3 skipped: {skip}",
            self.deviation(),
        );
        Ours { pair: self.pair(RECORDS), unit: "ms", platform: Platform::Machine, kind: Kind::Native, note }
    }

    /// The standard deviation of the modes' gains, as the source computes it.
    fn deviation(&self) -> String {
        let gains: Vec<f64> = self
            .runs
            .iter()
            .filter_map(|[before, _, after]| Pair { before: before.clone(), after: after.clone() }.gain(Kind::Native))
            .map(|gain| gain.median)
            .collect();
        if gains.is_empty() {
            return TOO_FEW.to_owned();
        }
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        let variance =
            gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (gains.len() as f64 - 1.0).max(1.0);
        format!("sd {:.2} %", variance.sqrt() * 100.0)
    }

    fn setup(&self, mode: Mode, bench: &Bench<'_>) -> Setup {
        let tracker = if self.scenario == Scenario::Enable { Tracker::WriteProtect } else { Tracker::Manual };
        let (region, sparse) = (bench.plan.slot, bench.plan.sparse);
        Setup { region, sparse, tracker, backing: self.backing, ..Setup::new(mode) }
    }

    /// The cost of the call; for clears, the mean.
    fn once(&self, setup: &Setup, round: Round, bench: &mut Bench<'_>) -> anyhow::Result<Option<Taken>> {
        let mut target = bench.machines.make(setup)?;
        let is_checked = round == Round::Checked;
        if self.scenario == Scenario::Enable && !is_checked {
            return started(&mut *target, setup).map(Some);
        }
        let check = if is_checked && !setup.sparse { Check::Exactly } else { Check::No };
        let run = Run::measure(&mut *target, setup, &Load::DEFAULT, check, bench.stop)?;
        Ok(run.map(|run| {
            let clears: Vec<_> = run.iterations.iter().filter_map(|iteration| iteration.clear.as_ref()).collect();
            mean(clears)
        }))
    }
}

impl Part for SplitPart {
    fn name(&self) -> String {
        format!("{BRAS}: {}", self.published().what)
    }

    fn begin(&mut self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        self.setups = S0_MODES.into_iter().filter_map(Mode::find).map(|mode| self.setup(mode, bench)).collect();
        self.runs = self.setups.iter().map(|_| Default::default()).collect();
        for setup in &self.setups {
            bench.machines.make(setup)?;
        }
        Ok(())
    }

    fn round(&mut self, bench: &mut Bench<'_>, round: Round) -> anyhow::Result<()> {
        let phase = if self.scenario == Scenario::Enable { "enable" } else { "clear" };
        for (mode, setup) in self.setups.iter().enumerate() {
            let mut taken = Vec::new();
            for split in POLICIES {
                let setup = Setup { policies: Policies { split, ..Policies::default() }, ..setup.clone() };
                let Some(once) = self.once(&setup, round, bench)? else { return Ok(()) };
                taken.push((setup, once));
            }
            if round == Round::Checked {
                continue;
            }
            for (policy, (setup, taken)) in taken.iter().enumerate() {
                self.runs[mode][policy].push(taken[&Quantity::CpuTime]);
                Variant::new("dirty-log", Platform::Machine, setup).add(bench.results, phase, Party::Collector, taken);
            }
        }
        Ok(())
    }

    fn rows(&self, why: Option<&str>) -> Vec<HeadlineRow> {
        let (published, own) = (self.published(), self.own_target());
        if let Some(why) = why {
            return [published.missing(why)].into_iter().chain(own.map(|own| own.missing(why))).collect();
        }
        let ours = self.ours();
        [published.row(&ours)].into_iter().chain(own.map(|own| own.row(&ours))).collect()
    }
}

/// Enables the log after the guest has touched all memory.
fn started(target: &mut dyn Target, setup: &Setup) -> anyhow::Result<Taken> {
    let page = setup.mode.granule.size();
    target.run(&mut [vec![Pass::writes(REGION, setup.region / page, page)]])?;
    target.enable_log()
}

/// The options that set up the same guest.
fn command(setup: &Setup, scenario: Scenario) -> String {
    let g = if scenario == Scenario::Enable { "-g " } else { "" };
    format!("{g}-b {}M -s {}", setup.region >> 20, setup.configuration()["backing"])
}

/// The policies that take turns.
const POLICIES: [Split; 3] = [Split::EveryLevel, Split::SkipLeaves, Split::Records];
const EVERY_LEVEL: usize = 0;
const SKIP_LEAVES: usize = 1;
const RECORDS: usize = 2;
