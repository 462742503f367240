// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle`: checks that a dirty log misses no write, on the hosted machine or under a live Linux.
//!
//! Invariant: the exit status is 0 only if the requested number of pages was compared and none was lost. For the
//! controls, it is 0 only if each of them lost a page.

mod controls;
pub mod hypervisor;
mod machine;
mod options;

use std::env;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output};

pub use options::{HELP, Options, Platform, TrackerOption};

use hypervisor::Run;

/// `cargo xtask oracle`.
pub fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    match options.on {
        Platform::Machine if options.controls => controls::run(workspace, options),
        Platform::Machine => machine::run(workspace, options),
        Platform::Hypervisor if options.controls => {
            bail!("the controls run only on the hosted machine; leave --on hypervisor out")
        }
        Platform::Hypervisor => on_hypervisor(workspace, options),
    }
}

/// Runs all trackers in one boot of Linux.
fn on_hypervisor(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let comparisons = options.comparisons.unwrap_or(hypervisor::COMPARISONS);
    let seed = options.seed.map_or_else(seed, Ok)?;
    let run = Run::new(options.tracker.map(TrackerOption::tracker), comparisons, seed);
    let all = hypervisor::run(workspace, &run, &Steps::new(workspace.stop().clone()))?;
    for found in &all {
        output::line(&found.to_string())?;
    }
    all.iter()
        .try_for_each(|found| hypervisor::check(found, comparisons))
        .with_context(|| format!("with --seed {seed}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns TWOFOLD_SEED, or a new seed for each run.
fn seed() -> anyhow::Result<u64> {
    match env::var("TWOFOLD_SEED") {
        Ok(seed) => seed.parse().with_context(|| format!("TWOFOLD_SEED is {seed:?}, which is not a number")),
        Err(_) => Ok(SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| u64::from(now.subsec_nanos()))),
    }
}
