// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle on the hosted machine: `twofold bench oracle`, which prints its own results.

use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use twofold_workspace::{Workspace, subprocess};

use super::options::{Options, TrackerOption};

/// Runs the trackers.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    subprocess::show(&mut bench(workspace, "build"))?;
    let mut oracle = bench(workspace, "run");
    let tracker = options.tracker.map(TrackerOption::tracker);
    oracle.args(["--quiet", "--", "bench", "oracle"]);
    oracle.args(["--comparisons", &options.comparisons.unwrap_or(COMPARISONS).to_string()]);
    oracle.args(tracker.iter().flat_map(|tracker| ["--tracker", tracker.name()]));
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
pub fn bench(workspace: &Workspace, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace.root()).args([command, "--release", "--package", "twofold"]);
    cargo
}
