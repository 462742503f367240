// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan: its variants take turns, run by run.

use anyhow::Context;

use super::plan::Plan;
use super::stages::Stages;
use crate::experiment::hypervisor::{self, Hypervisor};
use crate::experiment::progress::Progress;
use crate::experiment::record::{Party, Variant};
use crate::experiment::runner::Runner;
use crate::experiment::setup::Setup;
use crate::experiment::target::Targets;
use crate::readable;
use crate::results::{Platform, Results};
use crate::stop::Stop;

/// Measures the plan. If a signal ends it, the results have the complete runs.
///
/// # Errors
///
/// The platform fails, memory does not fit, or a stage left wrong leaves or contents.
pub fn results(plan: &Plan, runner: &mut Runner, progress: Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results::begin();
    match runner {
        Runner::Timed(targets) => {
            results.notes = plan.notes();
            targets.describe(&mut results);
            take_turns(plan, &mut **targets, &mut results, &progress, stop)?;
        }
        Runner::Counted(hypervisor) => {
            hypervisor.describe(&mut results);
            count(plan, hypervisor, &mut results, &progress, stop)?;
        }
    }
    Ok(results)
}

/// Runs each variant once in each run. The first run is checked, and not counted.
fn take_turns(
    plan: &Plan,
    targets: &mut dyn Targets,
    results: &mut Results,
    progress: &Progress,
    stop: &Stop,
) -> anyhow::Result<()> {
    let runs = plan.runs;
    for run in 0..=runs {
        for setup in &plan.setups {
            if stop.is_requested() {
                results.interrupted = true;
                return Ok(());
            }
            progress.doing(if run == 0 { "checked run".to_owned() } else { format!("run {run} of {runs}") });
            let mut target = targets.make(setup).with_context(|| shown(setup))?;
            let taken = Stages::new(setup)?.run(&mut *target, run == 0).with_context(|| shown(setup))?;
            let variant = Variant::new("page-table", targets.platform(), setup);
            for (stage, taken) in taken.iter().filter(|_| run > 0) {
                variant.add(results, stage.name(), Party::Guest, taken);
            }
            progress.done();
        }
    }
    Ok(())
}

/// Counts each variant once on the hypervisor, because all runs are identical.
fn count(
    plan: &Plan,
    hypervisor: &Hypervisor,
    results: &mut Results,
    progress: &Progress,
    stop: &Stop,
) -> anyhow::Result<()> {
    for setup in &plan.setups {
        progress.doing(shown(setup));
        // The hypervisor coalesces blocks ahead of the guest's accesses.
        let counted = hypervisor.page_table(setup, true);
        if stop.is_requested() {
            results.interrupted = true;
            return Ok(());
        }
        let variant = Variant::new("page-table", Platform::Hypervisor, setup);
        hypervisor::record(&counted.with_context(|| shown(setup))?, &variant, results);
        progress.done();
    }
    Ok(())
}

/// The variant's settings for an error message, in the words of the command line.
fn shown(setup: &Setup) -> String {
    let configuration = setup.configuration();
    let words = ["vcpus", "bytes", "cmo", "coalesce", "split", "tables"];
    let words = words.into_iter().filter_map(|key| Some(readable::setting(key, configuration.get(key)?)));
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::stages::Stage;
    use super::*;
    use crate::experiment::machine::Machines;
    use crate::results::{Measurement, Quantity};

    #[test]
    fn a_variant_is_named_in_the_words_of_the_command_line() {
        let setup = &Plan::of_line("-v 200 --policy coalesce=free-first").unwrap().setups[0];
        let wanted = "200 vCPUs, 1 GiB, cmo on-map, coalesce free-first, split records, tables when-needed";
        assert_eq!(shown(setup), wanted);
    }

    #[test]
    fn runs_are_of_both_variants_and_the_first_is_none_of_them() {
        let line = "-s anonymous_thp -b 8M -v 2 --policy coalesce=free-first,install-first --runs 2";
        let plan = Plan::of_line(line).unwrap();
        let (mut results, progress) = (Results::begin(), Progress::new(plan.steps()).unwrap());
        take_turns(&plan, &mut Machines::new(), &mut results, &progress, &Stop::never()).unwrap();
        let times = |stage: &str| {
            let is = |one: &&Measurement| one.phase == stage && one.quantity == Quantity::CpuTime;
            results.measurements.iter().filter(is).map(|one| one.runs.len()).collect::<Vec<_>>()
        };
        assert_eq!(Stage::ALL.map(|stage| times(stage.name())), [vec![2, 2], vec![2, 2], vec![2, 2]]);
    }
}
