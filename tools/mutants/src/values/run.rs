// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects mutants of values, and judges them.

use std::path::Path;

use serde_json::{Value as Json, json};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output};

use super::copy::Copy;
use super::sources;
use super::value::Value;
use crate::judge::{Patience, TestProgram, Tests};
use crate::judged::Judged;
use crate::mutation::Mutation;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::parallel::in_parallel;

/// The outcomes of the selected mutants.
#[derive(Debug)]
pub struct Report {
    /// The mutants with their outcomes.
    pub judged: Judged<Value>,
    /// Sites that cannot be switched at run time.
    skipped: usize,
    /// Changes that do not compile.
    lost: usize,
    /// Files of the hypervisor that no host compiles.
    missing: Vec<String>,
}

/// `--quick` takes one mutant out of this number.
const QUICK: usize = 24;

/// Returns the names and labels of the mutants that the options select.
pub fn list(root: &Path, options: &Options) -> anyhow::Result<Vec<String>> {
    let all = sources::read(root)?.0.values;
    let all = all.into_iter().enumerate().map(|(index, value)| (index as u32 + 1, value)).collect();
    Ok(choose(all, options).iter().map(|(_, value)| value.to_string()).collect())
}

/// Judges the mutants that the options select, `jobs` at a time.
pub fn judge(workspace: &Workspace, options: &Options, jobs: usize, steps: &Steps) -> anyhow::Result<Report> {
    let place = workspace.mutants().join("values");
    let mut copy = Copy::new(workspace.root(), &place)?;
    steps.step("values", || {
        copy.compile()?;
        let (all, skipped, lost) = copy.mutants();
        Ok(((), format!("{} mutants; {lost} more do not compile, {skipped} sites are constant", all.len())))
    })?;
    let (all, skipped, lost) = copy.mutants();
    Value::EXCUSES.check(&all.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>())?;
    let chosen = choose(all, options);
    let programs = steps.step("build", || {
        let programs = copy.build(chosen.iter().map(|(_, value)| value))?;
        let words = format!("{} test programs", programs.len());
        Ok((programs, words))
    })?;
    let tests = steps.step("tests", || {
        let tests = Tests::measure(programs, &place, jobs, workspace.stop())?;
        let words = format!("{} pass without a mutant, and judge", tests.count());
        Ok((tests, words))
    })?;
    let mut outcomes = steps.step("mutants", || {
        let outcomes = in_parallel(&chosen, jobs, |_, (id, value), bar| {
            let is_for = |test: &TestProgram| is_own(test, value);
            let outcome = tests.judge(&id.to_string(), is_for, Patience::with(value), workspace.stop())?;
            if is_survivor(value, &outcome) && !is_for_orders(value) {
                bar.suspend(|| output::line(&format!("{value}: {}", outcome.described())))?;
            }
            Ok(outcome)
        })?;
        let words = format!("{} of values, {jobs} at a time", outcomes.len());
        Ok((outcomes, words))
    })?;
    let left: Vec<_> = (0..chosen.len())
        .filter(|index| is_for_orders(&chosen[*index].1) && is_survivor(&chosen[*index].1, &outcomes[*index]))
        .collect();
    if !left.is_empty() {
        let orders = steps.step("orders", || {
            let orders = Tests::measure(vec![copy.build_orders()?], &place, jobs, workspace.stop())?;
            let words = format!("{} tests of the model checker, for {} remaining mutants", orders.count(), left.len());
            Ok((orders, words))
        })?;
        let judged = steps.step("mutants", || {
            let judged = in_parallel(&left, jobs, |_, index, bar| {
                let (id, value) = &chosen[*index];
                let by_orders = orders.judge(&id.to_string(), |_| true, Patience::Long, workspace.stop())?;
                let outcome = outcomes[*index].clone().or(by_orders);
                if !outcome.is_caught() {
                    bar.suspend(|| output::line(&format!("{value}: {}", outcome.described())))?;
                }
                Ok(outcome)
            })?;
            let words = format!("{} of values, {jobs} at a time", judged.len());
            Ok((judged, words))
        })?;
        for (index, outcome) in left.into_iter().zip(judged) {
            outcomes[index] = outcome;
        }
    }
    let rows = chosen.into_iter().map(|(_, value)| value).zip(outcomes).collect();
    Ok(Report { judged: Judged { rows }, skipped, lost, missing: sources::missing(workspace.root())? })
}

/// Returns whether a mutant was not caught and is not excused.
fn is_survivor(value: &Value, outcome: &Outcome) -> bool {
    !outcome.is_caught() && value.excuse().is_none()
}

/// Returns whether the model checker's tests, which test the engine, may still catch a surviving mutant.
fn is_for_orders(value: &Value) -> bool {
    sources::judge_of(&value.file) == "stage2"
}

/// Returns whether a test program belongs to the mutant's own crate.
fn is_own(program: &TestProgram, value: &Value) -> bool {
    program.name.split(' ').next() == Some(sources::judge_of(&value.file))
}

/// Returns the mutants that the options select.
fn choose(mut values: Vec<(u32, Value)>, options: &Options) -> Vec<(u32, Value)> {
    values.retain(|(_, value)| options.selects(value));
    if options.quick {
        values = values.into_iter().step_by(QUICK).collect();
    }
    values
}

impl Report {
    /// Formats the report.
    pub fn shown(&self) -> String {
        let Self { judged, skipped, lost, .. } = self;
        format!(
            "{}\n{}\n\nnot judged: {lost} changes that do not compile, {skipped} places that the compiler evaluates\n",
            judged.excuses(Value::to_string),
            judged.kinds()
        )
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Json {
        json!({ "mutants": self.judged.json(), "constant": self.skipped, "not_compiled": self.lost,
            "not_hosted": self.missing })
    }
}
