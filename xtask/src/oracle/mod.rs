// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle`: whether a dirty log misses a write, on the hosted machine or under a live Linux.
//!
//! Invariant: the exit status is 0 only where as many pages were compared as were asked for, and none was lost; of the
//! controls, where each of them lost some.

mod controls;

use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::arguments::{OracleOptions, Place};
use crate::subprocess;
use crate::workspace::Workspace;

/// `cargo xtask oracle`.
pub fn command(workspace: &Workspace, options: &OracleOptions) -> anyhow::Result<ExitCode> {
    match options.on {
        Place::Machine if options.controls => controls::run(workspace, options),
        Place::Machine => on_machine(workspace, options),
        Place::Hypervisor => bail!("there is no oracle on the hypervisor yet; take --on machine"),
    }
}

/// What watches on the machine is `twofold-bench oracle`, which says what it found by itself.
fn on_machine(workspace: &Workspace, options: &OracleOptions) -> anyhow::Result<ExitCode> {
    subprocess::show(&mut bench(workspace, "build"))?;
    let mut oracle = bench(workspace, "run");
    oracle.args(["--quiet", "--", "oracle"]);
    oracle.args(["--comparisons", &options.comparisons.unwrap_or(COMPARISONS).to_string()]);
    oracle.args(options.tracker.iter().flat_map(|tracker| ["--tracker", tracker.name()]));
    oracle.args(options.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
    let status = oracle.status().context("cargo does not start")?;
    if workspace.stop().is_requested() {
        bail!("stopped");
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For each tracker, unless it is said.
const COMPARISONS: u64 = 10_000_000;

/// Cargo with `command` on the bench, as fast as it can be.
fn bench(workspace: &Workspace, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace.root()).args([command, "--release", "--package", "twofold-bench"]);
    cargo
}
