// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask mutants`: leaves out or weakens each step of the engine, one at a time, and says which nobody noticed.
//!
//! All mutants are in one build (`--cfg mutants`) and one of them is chosen at run time; the list comes from the source
//! ([`sites`]), so it has all. Invariant: the exit status is 0 only where every mutant was caught, or is excused by name.

mod excused;
mod judges;
mod peers;
mod program;
mod report;
mod sites;
mod source;
mod verdicts;

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, bail};

use crate::arguments::MutantsOptions;
use crate::output;
use crate::report as json;
use crate::steps::Steps;
use crate::workspace::Workspace;

pub use judges::CHOICE;
use report::Report;
use sites::Mutant;

/// `cargo xtask mutants`.
pub fn command(workspace: &Workspace, options: &MutantsOptions) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        json::check_path(path)?;
    }
    let all = sites::list(workspace.root())?;
    let chosen = choose(all.clone(), options)?;
    if options.list {
        chosen.iter().try_for_each(|mutant| output::line(&format!("{mutant}  {}", mutant.label())))?;
        return Ok(ExitCode::SUCCESS);
    }
    excused::check(&all)?;
    let defects = peers::DEFECTS.iter().map(|defect| Ok((defect, &all[peers::number(defect, &all)?])));
    let defects = defects.collect::<anyhow::Result<Vec<_>>>()?;

    let steps = Steps::new(workspace.stop().clone());
    let jobs = options.jobs.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let mut judges = steps.step("build", || {
        let judges = judges::build(workspace)?;
        let words = format!("{} judges", judges.len());
        Ok((judges, words))
    })?;
    steps.step("judges", || {
        judges::measure(&mut judges, jobs, workspace.stop())?;
        let names: Vec<_> = judges.iter().map(|judge| judge.name.as_str()).collect();
        Ok(((), format!("pass without a mutant: {}", names.join(", "))))
    })?;
    let outcomes = steps.step("mutants", || {
        let outcomes = verdicts::all(&chosen, &judges, jobs, workspace.stop(), |mutant, outcome| {
            report::survivor(mutant, outcome).map_or(Ok(()), |line| output::line(&line))
        })?;
        let words = format!("{} of them, {jobs} at a time", outcomes.len());
        Ok((outcomes, words))
    })?;
    let hypervisor = match options.el2 {
        true => Some(steps.step("el2", || Ok((staleness(workspace)?, "staleness".to_owned())))?),
        false => None,
    };

    let rows: Vec<_> = chosen.into_iter().zip(outcomes).collect();
    let row = |wanted: &Mutant| rows.iter().position(|(mutant, _)| mutant == wanted);
    let defects = defects.iter().filter_map(|(defect, mutant)| Some((*defect, row(mutant)?))).collect();
    let report = Report { rows, defects, hypervisor };
    output::line(&format!("\n{}", report.shown()))?;
    if let Some(path) = &options.json {
        json::write(path, &report.json())?;
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The mutant with this label in a file, as [`CHOICE`] has it.
pub fn find(workspace: &Workspace, file: &str, label: &str) -> anyhow::Result<String> {
    let all = sites::list(workspace.root())?;
    let mut found = all.iter().filter(|mutant| mutant.site.file == file && mutant.label() == label);
    match (found.next(), found.next()) {
        (Some(mutant), None) => Ok(mutant.to_string()),
        (None, _) => bail!("there is no mutant {label} in {file}; `cargo xtask mutants --list` names all"),
        (Some(_), Some(_)) => bail!("there are several mutants {label} in {file}"),
    }
}

/// The mutants that are asked for.
fn choose(mut mutants: Vec<Mutant>, options: &MutantsOptions) -> anyhow::Result<Vec<Mutant>> {
    if !options.only.is_empty() {
        let names = |mutant: &Mutant| [mutant.to_string(), mutant.label()];
        let wanted = |name: &String| options.only.iter().any(|only| name.contains(only.as_str()));
        mutants.retain(|mutant| names(mutant).iter().any(wanted));
        if mutants.is_empty() {
            bail!("no mutant has `{}` in its name; --list gives the names", options.only.join("`, `"));
        }
    }
    if options.quick {
        // One of each: what is called, and what becomes of it.
        let mut seen = BTreeSet::new();
        mutants.retain(|mutant| seen.insert((mutant.site.call.clone(), mutant.kind)));
    }
    Ok(mutants)
}

/// Runs the tests at EL2 that leave out steps of the hypervisor's own sequences on an emulated CPU; how many there are.
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
        let quick = choose(all(), &options).unwrap();
        for kind in sites::Kind::ALL {
            assert!(quick.iter().any(|mutant| mutant.kind == kind), "{kind:?}");
        }
        assert!(quick.len() < all().len() / 2);
    }

    #[test]
    fn a_name_that_nobody_has_is_an_error() {
        let only = |name: &str| MutantsOptions { only: vec![name.to_owned()], ..MutantsOptions::default() };
        assert!(choose(all(), &only("no such thing")).is_err());
        let found = choose(all(), &only("crates/stage2/src/tlb.rs")).unwrap();
        assert!(found.iter().all(|mutant| mutant.site.file.ends_with("tlb.rs")) && !found.is_empty());
    }
}
