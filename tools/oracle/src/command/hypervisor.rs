// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle on the hypervisor: Debian's Linux boots and rewrites 32 MiB in tmpfs. The hypervisor compares the guest's
//! memory with a copy that follows the dirty log.
//!
//! Invariant: a tracker has a result only if the image itself reported that the tracker's run was complete.

use std::time::Duration;

use anyhow::{Context, bail};
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::{Devices, GuestSettings, Pages, Policies, Report, machine};
use twofold_memory::dirty::Tracker;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::guest::Wanted;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, build, guest, install};

use crate::{Found, Plan, Tally};

/// A run of the oracle's image.
#[derive(Clone, Debug)]
pub struct Run {
    /// The trackers, and for how long.
    pub plan: Plan,
    /// The CPU model.
    pub cpu: String,
    /// The limit against hangs; `None` for no limit.
    pub timeout: Option<Duration>,
}

impl Run {
    /// Plans a run of all trackers, or of one.
    pub fn new(tracker: Option<Tracker>, comparisons: u64, seed: u64) -> Self {
        let trackers = tracker.map_or_else(|| Tracker::ALL.to_vec(), |tracker| vec![tracker]);
        let plan = Plan { trackers, comparisons, seed, is_deaf: false };
        Self { plan, cpu: machine::CPU_DEFAULT.to_owned(), timeout: None }
    }
}

/// Builds, fetches and boots the guest, and returns the results. Trackers that the CPU does not support are left out.
pub fn run(workspace: &Workspace, run: &Run, steps: &Steps) -> anyhow::Result<Vec<Found>> {
    let Run { plan, cpu, timeout } = run;
    let qemu = install::tools(steps)?;
    steps.step("build", || {
        build::images(workspace, &[build::ORACLE_HYPERVISOR])?;
        Ok(((), "the hypervisor, with the oracle".to_owned()))
    })?;
    let selected = steps.step("guest", || {
        let selected = guest::select(workspace, &Wanted::linux())?;
        let words = selected.words.clone();
        Ok((selected, words))
    })?;
    let guest = GuestSettings {
        name: NAME_DEFAULT.to_owned(),
        weight: WEIGHT_DEFAULT,
        firmware: None,
        kernel: selected.kernel,
        initrd: selected.initrd,
        command_line: "console=ttyAMA0 panic=-1 loglevel=4 twofold.rewrite".to_owned(),
        memory: MEMORY,
        cpus: 1,
        pages: Pages::Auto,
        flags: 0,
        devices: Devices::default(),
        swap: None,
        test: None,
        policies: Policies::default(),
    };
    let argument = plan.to_string();
    let boot = Boot {
        label: "oracle",
        guests: vec![guest],
        cpu,
        host_cpus: None,
        deterministic: false,
        checked: false,
        timeout: *timeout,
        terminal: false,
        image: Image::Oracle(&argument),
    };
    let outcome = steps.step("oracle", || {
        let outcome = boot.run(workspace, &qemu)?;
        Ok((outcome, "under Debian's Linux, which boots and rewrites 32 MiB in tmpfs".to_owned()))
    })?;
    // The guest powers off only if its loop failed; then a result is missing.
    let report = &outcome.control.report;
    let all: Vec<_> = plan.trackers.iter().filter_map(|tracker| found(report, *tracker)).collect();
    let missing = |tracker: &&Tracker| {
        let skipped = format!("oracle: {}: not on this CPU", tracker.name());
        !all.iter().any(|found| found.tracker == **tracker) && !outcome.control.log.contains(&skipped)
    };
    if let Some(tracker) = plan.trackers.iter().find(missing) {
        let console = outcome.console.tail(10).join("\n");
        bail!("the hypervisor does not report {}; the console ends with:\n{console}", tracker.name());
    }
    Ok(all)
}

/// Checks that a run lost no page, and that it was long enough to prove it.
///
/// # Errors
///
/// A page was lost, or there were too few comparisons, starts or coalesced blocks.
pub fn check(found: &Found, comparisons: u64) -> anyhow::Result<()> {
    found.tally.check(comparisons).with_context(|| found.to_string())
}

/// The default number of comparisons for each tracker.
pub const COMPARISONS: u64 = 500_000;

/// The guest's memory in bytes: enough for 32 MiB in tmpfs, and little more to compare.
const MEMORY: u64 = 128 << 20;

/// The result that the image reported for this tracker, if its run was complete.
fn found(report: &Report, tracker: Tracker) -> Option<Found> {
    let name = tracker.name().replace('-', "_");
    Some(Found { tracker, tally: Tally::from_named(|what| report.get(&format!("oracle.{name}.{what}")))? })
}

#[cfg(test)]
mod tests {
    use twofold_launch::Control;

    use super::*;

    #[test]
    fn what_the_image_says_becomes_a_result() {
        let tally = Tally { compared: 7, redirtied: 5, lost: 0, rounds: 3, starts: 2, blocks: 1 };
        let line = |(key, value)| format!("twofold:stat oracle.write_protect.{key} {value}\n");
        let report = Control::parse(&tally.named().map(line).concat()).report;
        let result = found(&report, Tracker::WriteProtect).unwrap();
        assert_eq!(result, Found { tracker: Tracker::WriteProtect, tally });
        assert!(check(&result, 7).is_ok());
        let error = format!("{:#}", check(&result, 8).unwrap_err());
        assert!(error.contains("write-protect") && error.contains("too few"), "{error}");
        assert_eq!(found(&report, Tracker::Manual), None);
    }
}
