// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of one guest, in the phases of KVM's `dirty_log_perf_test`: populate; enable; dirty, get and clear repeatedly;
//! disable.
//!
//! Invariant: a checked run fails if a log reports another set of pages than the guest has written. Checked runs are not
//! timed.

use anyhow::Context;
use twofold_workload::pass::Pass;

use super::digest::Digest;
use super::judge::{self, Expected};
use super::load::Load;
use crate::experiment::record::{Party, Variant, mean, sum};
use crate::experiment::setup::Setup;
use crate::experiment::target::{Taken, Target};
use crate::results::{Quantity, Results};
use crate::stop::Stop;

/// The costs of one run, by phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The first pass over all memory.
    pub populate: Taken,
    /// Enabling the logs.
    pub enable: Taken,
    /// The rounds.
    pub iterations: Vec<Iteration>,
    /// Disabling the logs.
    pub disable: Taken,
}

/// The costs of one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iteration {
    /// The guest's passes, with its faults.
    pub dirty: Taken,
    /// Getting the logs, and the number of dirty pages.
    pub get: Taken,
    /// Clearing the logs. `None` if getting them has cleared them.
    pub clear: Option<Taken>,
    /// A digest of the reported pages, if the run is checked.
    pub reported: Option<Digest>,
}

/// Whether a run is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The run is timed and not checked.
    No,
    /// The reported pages are compared with the guest's writes, page by page.
    Exactly,
}

impl Run {
    /// Measures one run of a guest that has touched no memory yet. `None` if a signal asks the program to end.
    ///
    /// # Errors
    ///
    /// The platform fails, or a log is wrong.
    pub fn measure(
        target: &mut dyn Target,
        setup: &Setup,
        load: &Load,
        check: Check,
        stop: &Stop,
    ) -> anyhow::Result<Option<Self>> {
        let mut passes = load.passes(setup)?;
        let mut run = Self { populate: run_checked(target, &mut passes, check)?, ..Self::default() };
        load.rounds(&mut passes);
        if stop.is_requested() {
            return Ok(None);
        }
        run.enable = target.enable_log()?;
        let (mut all_dirty, page) = (target.starts_dirty(), target.page());
        for number in 1..=load.iterations {
            let expected = (check == Check::Exactly).then(|| Expected::of(setup, &passes, all_dirty, page));
            let dirty = run_checked(target, &mut passes, check)?;
            let get = target.get_log()?;
            let reported = expected.map(|expected| {
                let pages = target.dirty();
                expected.check(&pages).with_context(|| format!("iteration {number}"))?;
                anyhow::Ok(Digest::of(setup.memory() / page, &pages))
            });
            let reported = reported.transpose()?;
            let clear = target.clear_log()?;
            run.iterations.push(Iteration { dirty, get, clear, reported });
            all_dirty = false;
            if stop.is_requested() {
                return Ok(None);
            }
        }
        if load.run_while_disabling {
            target.start(&passes)?;
        }
        let disable = target.disable_log();
        if load.run_while_disabling {
            target.stop()?;
        }
        run.disable = disable?;
        Ok(Some(run))
    }

    /// Adds the run to the results: dirty, get and clear as means over the rounds, as in `dirty_log_perf_test`, and
    /// their sum. With `each`, adds each round too.
    pub fn record(&self, variant: &Variant, results: &mut Results, each: bool) {
        let rounds = &self.iterations;
        variant.add(results, "populate", Party::Guest, &self.populate);
        variant.add(results, "enable", Party::Collector, &self.enable);
        variant.add(results, "dirty", Party::Guest, &mean(rounds.iter().map(|round| &round.dirty).collect::<Vec<_>>()));
        variant.add(results, "get", Party::Collector, &mean(rounds.iter().map(|round| &round.get).collect::<Vec<_>>()));
        let clears: Vec<_> = rounds.iter().filter_map(|round| round.clear.as_ref()).collect();
        if !clears.is_empty() {
            variant.add(results, "clear", Party::Collector, &mean(clears));
        }
        variant.add(
            results,
            "iteration",
            Party::Guest,
            &mean(&rounds.iter().map(Iteration::whole).collect::<Vec<_>>()),
        );
        variant.add(results, "disable", Party::Collector, &self.disable);
        for (number, round) in rounds.iter().enumerate().filter(|_| each) {
            let number = number + 1;
            variant.add(results, &format!("dirty {number}"), Party::Guest, &round.dirty);
            variant.add(results, &format!("get {number}"), Party::Collector, &round.get);
            if let Some(clear) = &round.clear {
                variant.add(results, &format!("clear {number}"), Party::Collector, clear);
            }
        }
    }
}

impl Iteration {
    /// The sum of guest and collector: a cost that moves between them stays in it.
    fn whole(&self) -> Taken {
        let mut whole = sum([Some(&self.dirty), Some(&self.get), self.clear.as_ref()].into_iter().flatten());
        whole.retain(|quantity, _| matches!(quantity, Quantity::Time | Quantity::CpuTime | Quantity::Instructions));
        whole
    }
}

/// Runs the guest's passes. If checked, the generators must end where the passes lead.
fn run_checked(target: &mut dyn Target, passes: &mut [Vec<Pass>], check: Check) -> anyhow::Result<Taken> {
    let before = (check == Check::Exactly).then(|| passes.to_vec());
    let taken = target.run(passes)?;
    before.map_or(Ok(()), |before| judge::check_completed(before, passes))?;
    Ok(taken)
}
