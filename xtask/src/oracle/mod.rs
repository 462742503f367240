// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle`: checks that a dirty log misses no write, on the hosted machine or under a live Linux.
//!
//! Invariant: the exit status is 0 only if the requested number of pages was compared and none was lost. For the
//! controls, it is 0 only if each of them lost a page.

mod controls;
pub mod hypervisor;

use std::env;
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

use crate::arguments::{OracleOptions, Place, TrackerOption};
use hypervisor::Plan;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output, subprocess};

/// `cargo xtask oracle`.
pub fn command(workspace: &Workspace, options: &OracleOptions) -> anyhow::Result<ExitCode> {
    match options.on {
        Place::Machine if options.controls => controls::run(workspace, options),
        Place::Machine => on_machine(workspace, options),
        Place::Hypervisor if options.controls => {
            bail!("the controls run only on the hosted machine; leave --on hypervisor out")
        }
        Place::Hypervisor => on_hypervisor(workspace, options),
    }
}

/// Runs all trackers in one boot of Linux.
fn on_hypervisor(workspace: &Workspace, options: &OracleOptions) -> anyhow::Result<ExitCode> {
    let comparisons = options.comparisons.unwrap_or(hypervisor::COMPARISONS);
    let seed = options.seed.map_or_else(seed, Ok)?;
    let plan = Plan::new(options.tracker.map(TrackerOption::name), comparisons, seed)?;
    let all = hypervisor::run(workspace, &plan, &Steps::new(workspace.stop().clone()))?;
    for found in &all {
        output::line(&found.to_string())?;
    }
    all.iter().try_for_each(|found| found.check(comparisons)).with_context(|| format!("with --seed {seed}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns TWOFOLD_SEED, or a new seed for each run.
fn seed() -> anyhow::Result<u64> {
    match env::var("TWOFOLD_SEED") {
        Ok(seed) => seed.parse().with_context(|| format!("TWOFOLD_SEED is {seed:?}, which is not a number")),
        Err(_) => Ok(SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| u64::from(now.subsec_nanos()))),
    }
}

/// Runs `twofold bench oracle`, which prints its own results.
fn on_machine(workspace: &Workspace, options: &OracleOptions) -> anyhow::Result<ExitCode> {
    subprocess::show(&mut bench(workspace, "build"))?;
    let mut oracle = bench(workspace, "run");
    oracle.args(["--quiet", "--", "bench", "oracle"]);
    oracle.args(["--comparisons", &options.comparisons.unwrap_or(COMPARISONS).to_string()]);
    oracle.args(options.tracker.iter().flat_map(|tracker| ["--tracker", tracker.name()]));
    oracle.args(options.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
    let status = oracle.status().context("cargo does not start")?;
    if workspace.stop().is_requested() {
        bail!("stopped");
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The default number of comparisons for each tracker.
const COMPARISONS: u64 = 10_000_000;

/// Returns the command `cargo COMMAND` for the package `twofold` in the release profile.
fn bench(workspace: &Workspace, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace.root()).args([command, "--release", "--package", "twofold"]);
    cargo
}
