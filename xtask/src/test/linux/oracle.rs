// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: the oracle under a live Linux.

use std::time::Duration;

use anyhow::ensure;
use twofold_workspace::steps::Steps;

use super::suite::Suite;
use crate::oracle::hypervisor::{self, Plan};

/// No tracker loses a page under a Linux that boots and rewrites its memory.
pub fn each_tracker(suite: &Suite) -> anyhow::Result<()> {
    const COMPARISONS: u64 = 50_000;
    let plan = Plan { timeout: Some(ORACLE_LIMIT), ..Plan::new(None, COMPARISONS, 1)? };
    let found = hypervisor::run(&suite.workspace, &plan, &Steps::new(suite.workspace.stop().clone()))?;
    ensure!(found.len() == plan.trackers.len(), "only {found:?}");
    found.iter().try_for_each(|found| found.check(COMPARISONS))
}

/// The oracle ignores some reported pages. It must find them by comparing.
pub fn deaf(suite: &Suite) -> anyhow::Result<()> {
    let plan = Plan { is_deaf: true, timeout: Some(ORACLE_LIMIT), ..Plan::new(Some("manual"), 50_000, 1)? };
    let found = hypervisor::run(&suite.workspace, &plan, &Steps::new(suite.workspace.stop().clone()))?;
    ensure!(found.iter().all(|found| found.lost > 0), "nothing is lost: {found:?}");
    Ok(())
}

/// The limit against hangs.
const ORACLE_LIMIT: Duration = Duration::from_secs(600);
