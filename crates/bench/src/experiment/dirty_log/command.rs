// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-log`: variants in turns, mode by mode, run by run.

use std::process::ExitCode;

use anyhow::Context;

use super::plan::Plan;
use super::{Check, Run, counted, digest};
use crate::arguments::DirtyLogOptions;
use crate::experiment::hypervisor::Hypervisor;
use crate::experiment::progress::Progress;
use crate::experiment::record::leave_out_zeroes;
use crate::experiment::setup::Setup;
use crate::experiment::target::Targets;
use crate::experiment::{self, continuous, outcome, threads};
use crate::output;
use crate::report;
use crate::results::{Platform, Results};
use crate::stop::Stop;

/// `twofold bench dirty-log`.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, memory does not fit, or the platform
/// is not available. A check failed: a log differs from the guest's writes.
pub fn command(options: &DirtyLogOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    outcome::check(&options.output)?;
    if options.on == Platform::Hypervisor {
        return count(&plan, options);
    }
    plan.collector.map_or(Ok(()), threads::pin)?;
    let mut targets = match experiment::on(options.on) {
        Ok(targets) => targets,
        Err(error) if options.tap => return skip(&error),
        Err(error) => return Err(error),
    };
    let stop = Stop::on_signal()?;
    if options.tap {
        return tap(&plan, &mut *targets, &stop);
    }
    let mut results = Results::begin();
    results.notes = plan.notes();
    targets.describe(&mut results);
    if options.continuous {
        continuous::measure(&mut *targets, &plan.continuous(options), &mut results, &stop)?;
    } else {
        measure(&plan, &mut *targets, &mut results, &stop)?;
    }
    leave_out_zeroes(&mut results);
    outcome::show(&results, &options.output)
}

/// Counts under the hypervisor.
fn count(plan: &Plan, options: &DirtyLogOptions) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signal()?;
    let progress = Progress::new(plan.setups.iter().map(Vec::len).sum::<usize>() as u64)?;
    let hypervisor = Hypervisor::find(options.images.as_deref(), &stop, |what| progress.doing(what.to_owned()));
    let hypervisor = match hypervisor {
        Err(error) if options.tap => return skip(&error),
        hypervisor => hypervisor?,
    };
    let mut results = Results::begin();
    results.notes = plan.notes();
    hypervisor.describe(&mut results);
    let mut checks = Vec::new();
    for setup in plan.setups.iter().flatten() {
        progress.doing(shown(setup));
        let counted = counted::measure(plan, &hypervisor, setup, &mut results).with_context(|| shown(setup));
        if stop.is_requested() {
            results.interrupted = true;
            break;
        }
        match counted {
            counted if options.tap => {
                let outcome = counted.map(|()| Vec::new()).map_err(|error| format!("{error:#}"));
                checks.push((checked(setup), outcome));
            }
            counted => counted?,
        }
        progress.done();
    }
    drop(progress);
    if options.tap {
        return judged(&checks, &stop);
    }
    leave_out_zeroes(&mut results);
    outcome::show(&results, &options.output)
}

/// Measures. Variants take turns: run by run, and within a run mode by mode.
fn measure(plan: &Plan, targets: &mut dyn Targets, results: &mut Results, stop: &Stop) -> anyhow::Result<()> {
    let progress = Progress::new((u64::from(plan.runs) + 1) * plan.setups.iter().map(Vec::len).sum::<usize>() as u64)?;
    for run in 0..=plan.runs {
        for setup in plan.setups.iter().flatten() {
            progress.doing(format!("{}{}", if run == 0 { "checked: " } else { "" }, shown(setup)));
            let check = if run == 0 { Check::Exactly } else { Check::No };
            let Some(measured) = once(plan, targets, setup, check, stop)? else {
                results.interrupted = true;
                return Ok(());
            };
            if run > 0 {
                let variant = plan.variant(targets.platform(), setup);
                measured.record(&variant, results, plan.each);
            }
            progress.done();
        }
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
    Run::measure(&mut *target, setup, &plan.load, check, stop).with_context(|| shown(setup))
}

/// Runs only the checks, and prints the counts with them.
fn tap(plan: &Plan, targets: &mut dyn Targets, stop: &Stop) -> anyhow::Result<ExitCode> {
    let mut checks = Vec::new();
    for setup in plan.setups.iter().flatten() {
        let outcome = match once(plan, targets, setup, Check::Exactly, stop) {
            Ok(Some(run)) => Ok(digest::lines(&run)),
            Ok(None) => break,
            Err(error) => Err(format!("{error:#}")),
        };
        checks.push((checked(setup), outcome));
    }
    judged(&checks, stop)
}

fn checked(setup: &Setup) -> String {
    format!("dirty-log: the log reports exactly what the guest wrote: {}", shown(setup))
}

fn judged(checks: &[(String, Result<Vec<String>, String>)], stop: &Stop) -> anyhow::Result<ExitCode> {
    output::line(report::tap(checks).trim_end())?;
    let passed = checks.iter().all(|(_, outcome)| outcome.is_ok());
    if stop.is_requested() {
        return Ok(ExitCode::from(outcome::INTERRUPTED));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reports that nothing was checked, in the way of the kernel's selftests.
fn skip(error: &anyhow::Error) -> anyhow::Result<ExitCode> {
    const SKIPPED: u8 = 4;
    output::line(report::tap_skipped(&format!("{error:#}")).trim_end())?;
    Ok(ExitCode::from(SKIPPED))
}

/// The settings that are not the default, and the tracker.
fn shown(setup: &Setup) -> String {
    let usual = Setup::new(setup.mode).configuration();
    let own = setup.configuration();
    let set = own.iter().filter(|(key, value)| *key == "tracker" || usual.get(*key) != Some(value));
    let words = set.map(|(key, value)| if key == "tracker" { value.clone() } else { format!("{key} {value}") });
    [setup.mode.name.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(", ")
}
