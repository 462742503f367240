// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of registers: the switch between vCPUs loses one register, once when it saves and once when it restores.
//!
//! The list is the switch's own table, so a new register has its mutants at once. The tests run over faked registers on
//! the host, because emulated CPUs have some of the registers as constants. All mutants are in one build: each step of
//! the hosted switch asks whether it is left out (`fuzz/hypervisor/src/omitted.rs`).

use std::fmt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value as Json;
use twofold_fuzz_hypervisor::omitted::{self, Step};
use twofold_workspace::cargo::{self, Executable};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output};

use crate::judge::{Patience, TestProgram, Tests};
use crate::judged::Judged;
use crate::mutation::{Excuses, Mutation};
use crate::options::Options;
use crate::parallel::in_parallel;

/// A step of the switch that is left out.
#[derive(Clone, Debug)]
pub struct Register {
    step: Step,
    name: &'static str,
}

/// The outcomes of the selected mutants.
#[derive(Debug)]
pub struct Report {
    /// The mutants with their outcomes.
    pub judged: Judged<Register>,
}

/// `--quick` takes one mutant out of this number.
const QUICK: usize = 24;
/// The package and the test program that judge.
const PACKAGE: &str = "twofold-fuzz-hypervisor";
const JUDGE: &str = "switch";

/// Returns the mutants that the options select.
pub fn list(options: &Options) -> Vec<Register> {
    let all = omitted::steps().map(|(step, name)| Register { step, name });
    let chosen = all.filter(|register| options.selects(register));
    if options.quick { chosen.step_by(QUICK).collect() } else { chosen.collect() }
}

/// Judges the mutants that the options select, `jobs` at a time.
pub fn judge(workspace: &Workspace, options: &Options, jobs: usize, steps: &Steps) -> anyhow::Result<Report> {
    let chosen = list(options);
    let programs = steps.step("build", || Ok((build(workspace)?, format!("the test program {JUDGE}"))))?;
    let tests = steps.step("tests", || {
        let tests = Tests::measure(programs, &workspace.mutants().join("registers"), jobs, workspace.stop())?;
        let words = format!("{} pass without a mutant", tests.count());
        Ok((tests, words))
    })?;
    let outcomes = steps.step("mutants", || {
        let outcomes = in_parallel(&chosen, jobs, |_, register, bar| {
            let outcome = tests.judge(&register.to_string(), |_| true, Patience::Long, workspace.stop())?;
            if !outcome.is_caught() {
                bar.suspend(|| output::line(&format!("{register}: {}", outcome.described())))?;
            }
            Ok(outcome)
        })?;
        let words = format!("{} of registers, {jobs} at a time", outcomes.len());
        Ok((outcomes, words))
    })?;
    Ok(Report { judged: Judged { rows: chosen.into_iter().zip(outcomes).collect() } })
}

fn build(workspace: &Workspace) -> anyhow::Result<Vec<TestProgram>> {
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).args(["test", "--no-run", "--message-format=json"]);
    command.args(["--package", PACKAGE, "--test", JUDGE]);
    let output = command.stdin(Stdio::null()).output().context("cargo does not start")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors: String = cargo::errors(&text).filter_map(|error| error.rendered).take(3).collect();
        bail!("the tests of {PACKAGE} cannot be built\n{errors}{}", String::from_utf8_lossy(&output.stderr));
    }
    let judges: Vec<_> = cargo::executables(&text)
        .filter(|Executable { target, .. }| *target == JUDGE)
        .map(|Executable { file, package, .. }| TestProgram {
            name: format!("hypervisor {JUDGE}"),
            program: file,
            directory: package,
            filter: "",
            except: &[],
            preemptions: 1,
            meetings_only: false,
        })
        .collect();
    match judges.is_empty() {
        true => bail!("{PACKAGE} has no test program {JUDGE}"),
        false => Ok(judges),
    }
}

impl fmt::Display for Register {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&omitted::name(self.step, self.name))
    }
}

impl Mutation for Register {
    const EXCUSES: Excuses = Excuses { listed_in: "tools/mutants/src/registers.rs", lists: &[] };

    fn kinds() -> Vec<&'static str> {
        vec!["save", "restore"]
    }

    fn file(&self) -> &str {
        "crates/hypervisor/src/switch/table.rs"
    }

    fn label(&self) -> String {
        self.to_string()
    }

    fn kind(&self) -> &'static str {
        match self.step {
            Step::Save => "save",
            Step::Restore => "restore",
        }
    }
}

impl Report {
    /// Formats the report.
    pub fn shown(&self) -> String {
        self.judged.kinds()
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Json {
        self.judged.json()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_register_is_saved_and_restored() {
        let all = list(&Options::default());
        let has = |name: &str| all.iter().any(|register| register.to_string() == name);
        for name in ["save:TTBR0_EL1", "restore:TTBR0_EL1", "save:V31", "restore:CNTV_CTL_EL0", "restore:MDSCR_EL1"] {
            assert!(has(name), "{name}");
        }
        assert!(!has("save:MDSCR_EL1"), "debug registers live in memory");
        let only = Options { only: vec!["TTBR".to_owned()], ..Options::default() };
        assert_eq!(list(&only).len(), 4);
        assert!(list(&Options { quick: true, ..Options::default() }).len() > 5);
    }
}
