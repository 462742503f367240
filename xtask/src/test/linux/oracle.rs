// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: the oracle under a live Linux.

use std::time::Duration;

use anyhow::ensure;
use twofold_memory::dirty::Tracker;
use twofold_oracle::command::hypervisor::{self, Run};
use twofold_workspace::steps::Steps;

use super::suite::Suite;

/// No tracker loses a page under a Linux that boots and rewrites its memory.
pub fn each_tracker(suite: &Suite) -> anyhow::Result<()> {
    const COMPARISONS: u64 = 50_000;
    let run = Run { timeout: Some(ORACLE_LIMIT), ..Run::new(None, COMPARISONS, 1) };
    let found = hypervisor::run(&suite.workspace, &run, &Steps::new(suite.workspace.stop().clone()))?;
    ensure!(found.len() == run.plan.trackers.len(), "only {found:?}");
    found.iter().try_for_each(|found| hypervisor::check(found, COMPARISONS))
}

/// The oracle ignores some reported pages. It must find them by comparing.
pub fn deaf(suite: &Suite) -> anyhow::Result<()> {
    let mut run = Run { timeout: Some(ORACLE_LIMIT), ..Run::new(Some(Tracker::Manual), 50_000, 1) };
    run.plan.is_deaf = true;
    let found = hypervisor::run(&suite.workspace, &run, &Steps::new(suite.workspace.stop().clone()))?;
    ensure!(found.iter().all(|found| found.tally.lost > 0), "nothing is lost: {found:?}");
    Ok(())
}

/// The limit against hangs.
const ORACLE_LIMIT: Duration = Duration::from_secs(600);
