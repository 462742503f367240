// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan: its variants take turns, mode by mode, run by run.

use anyhow::Context;

use super::plan::{Plan, Turns, Work};
use super::run::{Check, Run};
use super::{continuous, counted};
use crate::experiment::hypervisor::Hypervisor;
use crate::experiment::progress::Progress;
use crate::experiment::runner::Runner;
use crate::experiment::setup::Setup;
use crate::experiment::target::Targets;
use crate::results::Results;
use crate::stop::Stop;

/// Measures the plan. If a signal ends it, the results have the complete runs.
///
/// # Errors
///
/// The platform fails, memory does not fit, or a log differs from the guest's writes.
pub fn results(plan: &Plan, runner: &mut Runner, progress: Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results::begin();
    results.notes = plan.notes();
    runner.describe(&mut results);
    match (runner, plan.work) {
        (Runner::Counted(hypervisor), _) => count(plan, hypervisor, &mut results, &progress, stop)?,
        (Runner::Timed(targets), Work::Continuous(timing)) => {
            continuous::measure(&mut **targets, plan, timing, &mut results, &progress, stop)?;
        }
        (Runner::Timed(targets), Work::Turns(turns)) => {
            take_turns(plan, turns, &mut **targets, &mut results, &progress, stop)?;
        }
    }
    Ok(results)
}

/// A checked variant.
pub struct Checked {
    /// The variant's settings.
    pub variant: String,
    /// The run, if it can be looked into; or why the check failed.
    pub outcome: anyhow::Result<Option<Run>>,
}

/// Runs only the checks. If a signal ends them, those that are done.
pub fn checks(plan: &Plan, runner: &mut Runner, progress: Progress, stop: &Stop) -> Vec<Checked> {
    let mut checks = Vec::new();
    for setup in plan.setups() {
        let variant = setup.shown();
        progress.doing(&variant);
        let outcome = match runner {
            Runner::Timed(targets) => once(plan, &mut **targets, setup, Check::Exactly, stop),
            Runner::Counted(hypervisor) => {
                counted::measure(plan, hypervisor, setup, &mut Results::begin()).map(|()| None)
            }
        };
        if stop.is_requested() {
            break;
        }
        checks.push(Checked { variant, outcome });
        progress.done();
    }
    checks
}

/// Runs each variant once in each run. The first run is checked, and not counted.
fn take_turns(
    plan: &Plan,
    turns: Turns,
    targets: &mut dyn Targets,
    results: &mut Results,
    progress: &Progress,
    stop: &Stop,
) -> anyhow::Result<()> {
    for run in 0..=turns.runs {
        for setup in plan.setups() {
            progress.doing(format!("{}{}", if run == 0 { "checked: " } else { "" }, setup.shown()));
            let check = if run == 0 { Check::Exactly } else { Check::No };
            let Some(measured) = once(plan, targets, setup, check, stop)? else {
                results.interrupted = true;
                return Ok(());
            };
            if run > 0 {
                measured.record(&plan.variant(setup), results, turns.each);
            }
            progress.done();
        }
    }
    Ok(())
}

/// Counts each variant once under the hypervisor.
fn count(
    plan: &Plan,
    hypervisor: &Hypervisor,
    results: &mut Results,
    progress: &Progress,
    stop: &Stop,
) -> anyhow::Result<()> {
    for setup in plan.setups() {
        progress.doing(setup.shown());
        let counted = counted::measure(plan, hypervisor, setup, results);
        if stop.is_requested() {
            results.interrupted = true;
            return Ok(());
        }
        counted?;
        progress.done();
    }
    Ok(())
}

/// Runs one variant once. `None` if a signal asks the program to end.
fn once(
    plan: &Plan,
    targets: &mut dyn Targets,
    setup: &Setup,
    check: Check,
    stop: &Stop,
) -> anyhow::Result<Option<Run>> {
    if stop.is_requested() {
        return Ok(None);
    }
    let mut target = targets.make(setup)?;
    Run::measure(&mut *target, setup, &plan.load, check, stop).with_context(|| setup.shown())
}
