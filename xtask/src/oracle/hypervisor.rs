// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle on the hypervisor: Debian's Linux boots and rewrites 32 MiB in tmpfs. The hypervisor compares the guest's
//! memory with a copy that follows the dirty log.
//!
//! Invariant: a tracker has a result only if the image itself reported that the tracker's run was complete.

use std::time::Duration;

use anyhow::{bail, ensure};
use twofold_abi::vendor::TRACKERS;
use twofold_launch::{Guest, Pages, Report, machine};
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::guest::Wanted;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, build, guest, install};

/// The trackers and the number of comparisons.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The trackers to run in turn, by the names of `Tracker::name`.
    pub trackers: Vec<String>,
    /// The least number of comparisons for each.
    pub comparisons: u64,
    /// The seed that chooses when rounds start and the options with which logs start.
    pub seed: u64,
    /// Whether this is a control: the oracle ignores one page of those that the log reports in each round, so that
    /// pages must be lost.
    pub is_deaf: bool,
    /// The CPU model.
    pub cpu: String,
    /// The limit against hangs; `None` for no limit.
    pub timeout: Option<Duration>,
}

/// The oracle's result for one tracker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The tracker's name.
    pub tracker: String,
    /// Pages that were compared with their copies, of those that the guest had written before.
    pub compared: u64,
    /// Pages that the log reported again.
    pub redirtied: u64,
    /// Pages that had changed without a report of the log.
    pub lost: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of starts of the log.
    pub starts: u64,
    /// Blocks that were coalesced while no log ran.
    pub blocks: u64,
}

impl Plan {
    /// Plans a run of all trackers, or of one.
    ///
    /// # Errors
    ///
    /// There is no such tracker.
    pub fn new(tracker: Option<&str>, comparisons: u64, seed: u64) -> anyhow::Result<Self> {
        let all = TRACKERS.map(|tracker| tracker.replace('_', "-"));
        let trackers = match tracker {
            None => all.to_vec(),
            Some(name) if all.iter().any(|known| known == name) => vec![name.to_owned()],
            Some(name) => bail!("there is no tracker {name:?}; take one of {}", all.join(", ")),
        };
        let cpu = machine::CPU_DEFAULT.to_owned();
        Ok(Self { trackers, comparisons, seed, is_deaf: false, cpu, timeout: None })
    }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tracker, compared, redirtied, lost, .. } = self;
        write!(f, "oracle: {tracker}: {compared} compared, {redirtied} re-dirtied, {lost} lost")
    }
}

/// Builds, fetches and boots the guest, and returns the results. Trackers that the CPU does not support are left out.
pub fn run(workspace: &Workspace, plan: &Plan, steps: &Steps) -> anyhow::Result<Vec<Found>> {
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
    let guest = Guest {
        kernel: selected.kernel,
        initrd: selected.initrd,
        command_line: "console=ttyAMA0 panic=-1 loglevel=4 twofold.rewrite".to_owned(),
        memory: MEMORY,
        cpus: 1,
        pages: Pages::Auto,
        flags: 0,
        test: None,
        before: 0,
    };
    let control = if plan.is_deaf { ":deaf" } else { "" };
    let argument = format!("{}:{}:{}{control}", plan.trackers.join(","), plan.comparisons, plan.seed);
    let boot = Boot {
        label: "oracle",
        guest,
        cpu: &plan.cpu,
        deterministic: false,
        checked: false,
        timeout: plan.timeout,
        terminal: false,
        image: Image::Oracle(&argument),
    };
    let outcome = steps.step("oracle", || {
        let outcome = boot.run(workspace, &qemu)?;
        Ok((outcome, "under Debian's Linux, which boots and rewrites 32 MiB in tmpfs".to_owned()))
    })?;
    // The guest powers off only if its loop failed; then a result is missing.
    let found: Vec<_> =
        plan.trackers.iter().filter_map(|tracker| Found::of(&outcome.control.report, tracker)).collect();
    let missing = |tracker: &&String| {
        let skipped = format!("oracle: {tracker}: not on this CPU");
        !found.iter().any(|found| found.tracker == **tracker) && !outcome.control.log.contains(&skipped)
    };
    if let Some(tracker) = plan.trackers.iter().find(missing) {
        bail!(
            "the hypervisor does not report {tracker}; the console ends with:\n{}",
            outcome.console.tail(10).join("\n")
        );
    }
    Ok(found)
}

/// The default number of comparisons for each tracker.
pub const COMPARISONS: u64 = 500_000;

/// The guest's memory in bytes: enough for 32 MiB in tmpfs, and little more to compare.
const MEMORY: u64 = 128 << 20;

impl Found {
    fn of(report: &Report, tracker: &str) -> Option<Self> {
        let figure = |what: &str| report.get(&format!("oracle.{}.{what}", tracker.replace('-', "_")));
        Some(Self {
            tracker: tracker.to_owned(),
            compared: figure("compared")?,
            redirtied: figure("redirtied")?,
            lost: figure("lost")?,
            rounds: figure("rounds")?,
            starts: figure("starts")?,
            blocks: figure("blocks")?,
        })
    }

    /// Checks that no page was lost and that the run was long enough to prove it.
    ///
    /// # Errors
    ///
    /// A page was lost, or there were too few comparisons, starts or coalesced blocks.
    pub fn check(&self, comparisons: u64) -> anyhow::Result<()> {
        ensure!(self.lost == 0, "{self}");
        ensure!(self.compared >= comparisons && self.redirtied > 0, "{self}: too few");
        ensure!(self.starts > 1 && self.blocks > 0, "{self}: {} starts, {} coalesced blocks", self.starts, self.blocks);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use twofold_launch::Control;

    use super::*;

    #[test]
    fn what_the_image_says_becomes_a_line() {
        let figures = [("compared", 7), ("redirtied", 5), ("lost", 0), ("rounds", 3), ("starts", 2), ("blocks", 1)];
        let text: String =
            figures.iter().map(|(key, value)| format!("twofold:stat oracle.write_protect.{key} {value}\n")).collect();
        let report = Control::parse(&text).report;
        let found = Found::of(&report, "write-protect").unwrap();
        assert_eq!(found.to_string(), "oracle: write-protect: 7 compared, 5 re-dirtied, 0 lost");
        assert!(found.check(7).is_ok());
        assert!(found.check(8).is_err());
        for bad in
            [Found { lost: 1, ..found.clone() }, Found { starts: 1, ..found.clone() }, Found { blocks: 0, ..found }]
        {
            assert!(bad.check(1).is_err(), "{bad:?}");
        }
        assert_eq!(Found::of(&report, "manual"), None);
    }

    #[test]
    fn trackers_are_known_by_name() {
        assert_eq!(Plan::new(None, 1, 1).unwrap().trackers.len(), TRACKERS.len());
        assert_eq!(Plan::new(Some("write-protect"), 1, 1).unwrap().trackers, ["write-protect"]);
        assert!(Plan::new(Some("none"), 1, 1).unwrap_err().to_string().contains("adaptive"));
    }
}
