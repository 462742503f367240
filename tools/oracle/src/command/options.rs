// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of the command `oracle`.

use clap::{Args, ValueEnum};
use twofold_memory::dirty::Tracker;

/// Options of `oracle`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The place where the guest runs
    #[arg(long, value_enum, default_value_t = Platform::Machine)]
    pub on: Platform,
    /// Runs only this tracker
    #[arg(long, value_enum, value_name = "NAME")]
    pub tracker: Option<TrackerOption>,
    /// Pages to compare for each tracker; default: 10 million, on the hypervisor 500,000, with --controls 6 million
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub comparisons: Option<u64>,
    /// Seed of all random choices; default: TWOFOLD_SEED, else a new seed for each run
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Runs logs with a known defect instead, each of which must lose pages
    #[arg(long, conflicts_with = "tracker")]
    pub controls: bool,
}

/// Where a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// On the hosted machine: guest programs, a software MMU, native speed
    Machine,
    /// Under the hypervisor, in QEMU: Linux
    Hypervisor,
}

/// A tracker of a dirty log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrackerOption {
    /// The first write to a page faults; a get clears the pages that it reports
    WriteProtect,
    /// The first write to a page faults; a separate call clears
    Manual,
    /// Hardware records writes
    Hardware,
    /// A write fault sets DBM on the pages around it, so that hardware records further writes
    Combined,
    /// Write-protect or DBM for each 64-page word, chosen by its past rounds
    Adaptive,
}

impl TrackerOption {
    /// The tracker.
    pub const fn tracker(self) -> Tracker {
        match self {
            Self::WriteProtect => Tracker::WriteProtect,
            Self::Manual => Tracker::Manual,
            Self::Hardware => Tracker::Hardware,
            Self::Combined => Tracker::Combined,
            Self::Adaptive => Tracker::Adaptive,
        }
    }
}

/// The last lines of the command's help.
pub const HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause. Meanwhile the collector reads and clears the dirty log,
copies the dirty pages, and stops and restarts the log. Every few rounds the oracle pauses all writers and compares each
page that the log reports clean with its copy. Only pages that were dirty in an earlier round count.

Examples:
  cargo xtask oracle                                   every tracker, 10 million comparisons each
  cargo xtask oracle --tracker combined --comparisons 1000000 --seed 7
  cargo xtask oracle --controls                        logs with a known defect lose pages

A line for each tracker: `oracle: NAME: N compared, N re-dirtied, N lost`. For each control: `control: NAME: lost N`.
Exit status: 1 if a page was lost; with --controls, if a control lost none.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trackers_are_called_what_they_are_named() {
        for option in TrackerOption::value_variants() {
            let name = option.to_possible_value().map(|value| value.get_name().to_owned());
            assert_eq!(name.as_deref(), Some(option.tracker().name()));
        }
    }
}
