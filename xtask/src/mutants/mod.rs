// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask mutants`: leaves out or weakens each step of the engine, one at a time, and reports the mutants that no
//! test caught.
//!
//! All mutants are in one build (`--cfg mutants`), and one is selected at run time. The list comes from the source
//! ([`sites`]), so it is complete. Invariant: the exit status is 0 only if every mutant was caught or is excused by
//! name.

mod excused;
mod judges;
mod peers;
mod program;
mod report;
mod sites;
mod source;
mod tests;
mod values;
mod verdicts;

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, bail};

use crate::arguments::{MutantsOf, MutantsOptions};

pub use judges::CHOICE;
use report::Report;
use sites::Mutant;
use tests::{TestProgram, Tests};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, file, output};
use verdicts::in_parallel;

/// `cargo xtask mutants`.
pub fn command(workspace: &Workspace, options: &MutantsOptions) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    let all = if options.of == Some(MutantsOf::Values) { Vec::new() } else { sites::list(workspace.root())? };
    let calls = choose(all.clone(), options);
    let values =
        if options.of == Some(MutantsOf::Calls) { Vec::new() } else { values::list(workspace.root(), options)? };
    if calls.is_empty() && values.is_empty() {
        bail!("no mutant has `{}` in its name; --list gives the names", options.only.join("`, `"));
    }
    if options.list {
        calls.iter().try_for_each(|mutant| output::line(&format!("{mutant}  {}", mutant.label())))?;
        values.iter().try_for_each(|value| output::line(value))?;
        return Ok(ExitCode::SUCCESS);
    }
    let steps = Steps::new(workspace.stop().clone());
    let jobs = options.jobs.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let calls = match calls.is_empty() {
        true => None,
        false => Some(judge_calls(workspace, options, (calls, &all), jobs, &steps)?),
    };
    let values = match values.is_empty() {
        true => None,
        false => Some(values::judge(workspace, options, jobs, &steps)?),
    };
    let (mut caught, mut count, mut is_good) = (0, 0, true);
    if let Some(report) = &calls {
        output::line(&format!("\n{}", report.shown()))?;
        caught += report.caught();
        count += report.rows.len();
        is_good &= report.is_good();
    }
    if let Some(report) = &values {
        output::line(&format!("\n{}", report.shown()))?;
        caught += report.caught().0;
        count += report.caught().1;
        is_good &= report.is_good();
    }
    output::line(&format!("mutants: {caught} of {count} caught"))?;
    if let Some(path) = &options.json {
        let mut report = calls.map_or_else(|| serde_json::json!({}), |report| report.json());
        if let Some(values) = values {
            report["values"] = values.json();
        }
        file::write_json(path, &report)?;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Judges the mutants of calls that were `chosen` from `all`, `jobs` at a time.
fn judge_calls(
    workspace: &Workspace,
    options: &MutantsOptions,
    (chosen, all): (Vec<Mutant>, &[Mutant]),
    jobs: usize,
    steps: &Steps,
) -> anyhow::Result<Report> {
    excused::check(all)?;
    let defects = peers::DEFECTS.iter().map(|defect| Ok((defect, &all[peers::number(defect, all)?])));
    let defects = defects.collect::<anyhow::Result<Vec<_>>>()?;
    let programs = steps.step("build", || {
        let programs = judges::build(workspace)?;
        let words = format!("{} test programs", programs.len());
        Ok((programs, words))
    })?;
    let tests = steps.step("tests", || {
        let tests = Tests::measure(programs, &workspace.mutants().join("calls"), jobs, workspace.stop())?;
        let words = format!("{} pass without a mutant", tests.count());
        Ok((tests, words))
    })?;
    let outcomes = steps.step("mutants", || {
        let outcomes = in_parallel(&chosen, jobs, |_, mutant, bar| {
            let is_for = |program: &TestProgram| judges::is_for(program, mutant);
            let outcome = tests.judge(&mutant.to_string(), is_for, workspace.stop())?;
            if let Some(line) = report::survivor(mutant, &outcome) {
                bar.suspend(|| output::line(&line))?;
            }
            Ok(outcome)
        })?;
        let words = format!("{} of calls, {jobs} at a time", outcomes.len());
        Ok((outcomes, words))
    })?;
    let hypervisor = match options.el2 {
        true => Some(steps.step("el2", || Ok((staleness(workspace)?, "staleness".to_owned())))?),
        false => None,
    };
    let rows: Vec<_> = chosen.into_iter().zip(outcomes).collect();
    let row = |wanted: &Mutant| rows.iter().position(|(mutant, _)| mutant == wanted);
    let defects = defects.iter().filter_map(|(defect, mutant)| Some((*defect, row(mutant)?))).collect();
    Ok(Report { rows, defects, hypervisor })
}

/// Returns the mutant with this label in a file, as a value of [`CHOICE`].
pub fn find(workspace: &Workspace, file: &str, label: &str) -> anyhow::Result<String> {
    let all = sites::list(workspace.root())?;
    let mut found = all.iter().filter(|mutant| mutant.site.file == file && mutant.label() == label);
    match (found.next(), found.next()) {
        (Some(mutant), None) => Ok(mutant.to_string()),
        (None, _) => bail!("there is no mutant {label} in {file}; `cargo xtask mutants --list` names all"),
        (Some(_), Some(_)) => bail!("there are several mutants {label} in {file}"),
    }
}

/// Returns the mutants that the options select.
fn choose(mut mutants: Vec<Mutant>, options: &MutantsOptions) -> Vec<Mutant> {
    if !options.only.is_empty() {
        let names = |mutant: &Mutant| [mutant.to_string(), mutant.label()];
        let wanted = |name: &String| options.only.iter().any(|only| name.contains(only.as_str()));
        mutants.retain(|mutant| names(mutant).iter().any(wanted));
    }
    if options.quick {
        // One mutant for each called function and kind.
        let mut seen = BTreeSet::new();
        mutants.retain(|mutant| seen.insert((mutant.site.call.clone(), mutant.kind)));
    }
    mutants
}

/// Runs the EL2 tests that leave out steps of the hypervisor's own sequences on an emulated CPU; returns their number.
fn staleness(workspace: &Workspace) -> anyhow::Result<u64> {
    let mut tests = Command::new(workspace.command());
    let output = tests.args(["test", "el2", "staleness"]).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    if !output.status.success() {
        bail!("`cargo xtask test el2 staleness`: {last}");
    }
    last.split(' ').next().and_then(|count| count.parse().ok()).context("the tests at EL2 were not counted")
}

#[cfg(test)]
mod own_tests {
    use std::path::Path;

    use super::*;

    fn all() -> Vec<Mutant> {
        sites::list(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap()
    }

    #[test]
    fn what_is_named_is_there() {
        let all = all();
        excused::check(&all).unwrap();
        for defect in peers::DEFECTS {
            peers::number(defect, &all).unwrap();
        }
    }

    #[test]
    fn the_quick_ones_have_all_kinds() {
        let options = MutantsOptions { quick: true, ..MutantsOptions::default() };
        let quick = choose(all(), &options);
        for kind in sites::Kind::ALL {
            assert!(quick.iter().any(|mutant| mutant.kind == kind), "{kind:?}");
        }
        assert!(quick.len() < all().len() / 2);
    }

    #[test]
    fn a_name_selects_what_has_it() {
        let only = |name: &str| MutantsOptions { only: vec![name.to_owned()], ..MutantsOptions::default() };
        assert!(choose(all(), &only("no such thing")).is_empty());
        let found = choose(all(), &only("crates/stage2/src/tlb.rs"));
        assert!(found.iter().all(|mutant| mutant.site.file.ends_with("tlb.rs")) && !found.is_empty());
    }
}
