// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values: of a comparison's bound, a condition, an operator, a literal, or a constant.
//!
//! A copy of the sources below `target/` contains all of them in one build, and one is selected at run time. The list
//! comes from the source ([`sites`]). Invariant: a mutant counts as caught only if a test that evaluated it failed or
//! reached the limit on evaluations. A mutant that reaches the watchdog's time limit is reported, and is not caught.

mod copy;
mod excused;
mod rewrite;
mod sites;

use std::path::Path;

use serde_json::{Value as Json, json};

use super::report::described;
use super::tests::{TestProgram, Tests};
use super::verdicts::{Outcome, in_parallel};
use crate::arguments::MutantsOptions;
use copy::Copy;
use sites::{Kind, Value};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output, table};

/// The outcomes of the selected mutants.
#[derive(Debug)]
pub struct Report {
    rows: Vec<(Value, Outcome)>,
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
pub fn list(root: &Path, options: &MutantsOptions) -> anyhow::Result<Vec<String>> {
    let all = copy::read(root)?.0.values;
    let all = all.into_iter().enumerate().map(|(index, value)| (index as u32 + 1, value)).collect();
    Ok(choose(all, options).iter().map(|(_, value)| value.to_string()).collect())
}

/// Judges the mutants that the options select, `jobs` at a time.
pub fn judge(workspace: &Workspace, options: &MutantsOptions, jobs: usize, steps: &Steps) -> anyhow::Result<Report> {
    let place = workspace.mutants().join("values");
    let mut copy = Copy::new(workspace.root(), &place)?;
    steps.step("values", || {
        copy.compile()?;
        let (all, skipped, lost) = copy.mutants();
        Ok(((), format!("{} mutants; {lost} more do not compile, {skipped} sites are constant", all.len())))
    })?;
    let (all, skipped, lost) = copy.mutants();
    excused::check(&all.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>())?;
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
            let outcome = tests.judge(&id.to_string(), |test| is_own(test, value), workspace.stop())?;
            if is_survivor(value, &outcome) && !is_for_orders(value) {
                bar.suspend(|| output::line(&format!("{value}: {}", described(&outcome))))?;
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
                let outcome = outcomes[*index].clone().or(orders.judge(&id.to_string(), |_| true, workspace.stop())?);
                if !outcome.is_caught() {
                    bar.suspend(|| output::line(&format!("{value}: {}", described(&outcome))))?;
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
    Ok(Report { rows, skipped, lost, missing: copy::missing(workspace.root())? })
}

/// Returns whether a mutant was not caught and is not excused.
fn is_survivor(value: &Value, outcome: &Outcome) -> bool {
    !outcome.is_caught() && excused::reason(value).is_none()
}

/// Returns whether the model checker's tests, which test the engine, may still catch a surviving mutant.
fn is_for_orders(value: &Value) -> bool {
    copy::judge_of(&value.file) == "stage2"
}

/// Returns whether a test program belongs to the mutant's own crate.
fn is_own(program: &TestProgram, value: &Value) -> bool {
    program.name.split(' ').next() == Some(copy::judge_of(&value.file))
}

/// Returns the mutants that the options select.
fn choose(mut values: Vec<(u32, Value)>, options: &MutantsOptions) -> Vec<(u32, Value)> {
    if !options.only.is_empty() {
        let names = |value: &Value| [value.to_string(), value.label()];
        let wanted = |name: &String| options.only.iter().any(|only| name.contains(only.as_str()));
        values.retain(|(_, value)| names(value).iter().any(wanted));
    }
    if options.quick {
        values = values.into_iter().step_by(QUICK).collect();
    }
    values
}

impl Report {
    /// Returns the number of caught mutants, and of all mutants.
    pub fn caught(&self) -> (usize, usize) {
        (self.rows.iter().filter(|(_, outcome)| outcome.is_caught()).count(), self.rows.len())
    }

    /// Returns whether every mutant was caught or is excused.
    pub fn is_good(&self) -> bool {
        self.rows.iter().all(|(value, outcome)| outcome.is_caught() || excused::reason(value).is_some())
    }

    /// Formats the report.
    pub fn shown(&self) -> String {
        let mut text = String::new();
        for (value, outcome) in &self.rows {
            match (outcome.is_caught(), excused::reason(value)) {
                (false, Some(reason)) => text += &format!("excused: {value}: {reason}\n"),
                (true, Some(_)) => text += &format!("caught although excused: {value}\n"),
                (_, None) => {}
            }
        }
        let rows = Kind::ALL.into_iter().filter_map(|kind| {
            let of: Vec<_> = self.rows.iter().filter(|(value, _)| value.kind == kind).collect();
            let count = |word: &str| of.iter().filter(|(_, outcome)| outcome.word() == word).count().to_string();
            let excused = of.iter().filter(|(value, outcome)| !outcome.is_caught() && excused::reason(value).is_some());
            let cells = [of.len().to_string(), count("caught"), count("survived"), count("hung"), count("not reached")];
            let row = [kind.name().to_owned()].into_iter().chain(cells).chain([excused.count().to_string()]);
            (!of.is_empty()).then(|| row.collect())
        });
        let header = ["kind", "mutants", "caught", "survived", "timed out", "not reached", "of these excused"];
        text += &format!("\n{}\n\n", table::with_numbers(&header, rows, 1..));
        let Self { skipped, lost, .. } = self;
        text + &format!(
            "not judged: {lost} changes that do not compile, {skipped} places that the compiler evaluates\n"
        )
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Json {
        let rows = self.rows.iter().map(|(value, outcome)| {
            json!({
                "mutant": value.to_string(),
                "label": value.label(),
                "kind": value.kind.name(),
                "result": outcome,
                "excused": excused::reason(value),
            })
        });
        json!({ "mutants": rows.collect::<Vec<_>>(), "constant": self.skipped, "not_compiled": self.lost,
            "not_hosted": self.missing })
    }
}
