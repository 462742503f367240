// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects mutants of calls, and judges them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output};

use super::defects::{self, DEFECTS};
use super::judges;
use super::report::{self, Report};
use super::sites::{self, Mutant};
use crate::judge::{Patience, TestProgram, Tests};
use crate::judged::Judged;
use crate::mutation::Mutation;
use crate::options::Options;
use crate::parallel::in_parallel;

/// Returns the mutants that the options select.
pub fn list(root: &Path, options: &Options) -> anyhow::Result<Vec<Mutant>> {
    Ok(choose(sites::all(root)?, options))
}

/// Judges the mutants that the options select, `jobs` at a time.
pub fn judge(workspace: &Workspace, options: &Options, jobs: usize, steps: &Steps) -> anyhow::Result<Report> {
    let all = sites::all(workspace.root())?;
    Mutant::EXCUSES.check(&all)?;
    let chosen = choose(all.clone(), options);
    let defects = DEFECTS.iter().map(|defect| Ok((defect, &all[defects::number(defect, &all)?])));
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
            let outcome = tests.judge(&mutant.to_string(), is_for, Patience::with(mutant), workspace.stop())?;
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
    Ok(Report { judged: Judged { rows }, defects, hypervisor })
}

/// Returns the mutant with this label in a file, as a value of [`crate::CHOICE`].
pub fn find(workspace: &Workspace, file: &str, label: &str) -> anyhow::Result<String> {
    let all = sites::all(workspace.root())?;
    let mut found = all.iter().filter(|mutant| mutant.site.file == file && mutant.label() == label);
    match (found.next(), found.next()) {
        (Some(mutant), None) => Ok(mutant.to_string()),
        (None, _) => bail!("there is no mutant {label} in {file}; `cargo xtask mutants --list` names all"),
        (Some(_), Some(_)) => bail!("there are several mutants {label} in {file}"),
    }
}

/// Returns the mutants that the options select.
fn choose(mut mutants: Vec<Mutant>, options: &Options) -> Vec<Mutant> {
    mutants.retain(|mutant| options.selects(mutant));
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
mod tests {
    use super::*;

    fn all() -> Vec<Mutant> {
        sites::all(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).unwrap()
    }

    #[test]
    fn what_is_named_is_there() {
        let all = all();
        Mutant::EXCUSES.check(&all).unwrap();
        for defect in DEFECTS {
            defects::number(defect, &all).unwrap();
        }
    }

    #[test]
    fn the_quick_ones_have_all_kinds() {
        let options = Options { quick: true, ..Options::default() };
        let quick = choose(all(), &options);
        for kind in sites::Kind::ALL {
            assert!(quick.iter().any(|mutant| mutant.kind == kind), "{kind:?}");
        }
        assert!(quick.len() < all().len() / 2);
    }

    #[test]
    fn a_name_selects_what_has_it() {
        let only = |name: &str| Options { only: vec![name.to_owned()], ..Options::default() };
        assert!(choose(all(), &only("no such thing")).is_empty());
        let found = choose(all(), &only("crates/stage2/src/tlb.rs"));
        assert!(found.iter().all(|mutant| mutant.site.file.ends_with("tlb.rs")) && !found.is_empty());
    }
}
