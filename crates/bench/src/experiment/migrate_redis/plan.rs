// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `bench migrate --on hypervisor`: from options to moves. The options are read here and nowhere else.
//!
//! Invariant: contradictory options are refused before anything is started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use twofold_memory::dirty::Tracker;

use crate::experiment::migrate::settings::How;
use crate::machine;
use crate::options::{Control, MigrateOptions, OutputOptions, Packed};
use crate::readable;
use crate::report::Files;

/// What to measure, and which files to write.
#[derive(Debug)]
pub struct Plan {
    /// Bytes of the guest's memory.
    pub memory: u64,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Clients of its benchmark.
    pub clients: u32,
    /// Requests of its benchmark in each run.
    pub requests: u64,
    /// What it does in each turn.
    pub ways: Vec<Way>,
    /// Turns.
    pub moves: u32,
    /// What is broken, so that it has to be noticed. Nothing is measured then.
    pub control: Option<Control>,
    /// How long it may stand still.
    pub downtime: Duration,
    /// The directory of images. `None`: those of this workspace.
    pub images: Option<PathBuf>,
    /// This program.
    pub program: PathBuf,
    /// The output files.
    pub files: Files,
    /// Removed with the plan.
    directory: TempDir,
}

/// What the guest does while its benchmark runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It stays where it is.
    Stay,
    /// It moves.
    Move(How),
}

impl Way {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stay => "stays",
            Self::Move(how) => how.name(),
        }
    }
}

impl Plan {
    /// What `headline` measures: the trackers of Kolothum 2023.
    ///
    /// # Errors
    ///
    /// A directory cannot be made.
    pub fn headline(images: Option<PathBuf>) -> anyhow::Result<Self> {
        Ok(Self {
            memory: 256 << 20,
            vcpus: 2,
            clients: CLIENTS,
            requests: HEADLINE_REQUESTS,
            ways: PUBLISHED.map(|tracker| Way::Move(How::Precopy(tracker))).to_vec(),
            moves: 1,
            control: None,
            downtime: DOWNTIME,
            images,
            program: std::env::current_exe().context("this program's own file")?,
            files: Files::check(&OutputOptions::default())?,
            directory: directory()?,
        })
    }

    /// The command that measures the same.
    pub fn command(&self) -> String {
        let names: Vec<_> = self.ways.iter().map(|way| way.name()).collect();
        format!("twofold bench migrate --on hypervisor --tracker {} --requests {}", names.join(","), self.requests)
    }

    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other, or a file cannot be written.
    pub fn of(options: &MigrateOptions) -> anyhow::Result<Self> {
        let is_of_machine = [
            ("--rate", options.rate.is_some()),
            ("--sets", options.sets.is_some()),
            ("--postcopy-if-needed", options.postcopy_if_needed),
            ("--bandwidth", options.bandwidth.is_some()),
            ("--streams", options.streams != 1),
            ("--compression", options.compression != Packed::Off),
            ("--settle", options.settle.is_some()),
            ("--seed", options.seed != 1),
            ("--dry-run", options.dry_run),
            ("--control dead", options.control == Some(Control::Dead)),
        ];
        if let Some((option, _)) = is_of_machine.iter().find(|(_, is_given)| *is_given) {
            anyhow::bail!("{option} is for --on machine");
        }
        let memory = options.memory.0;
        ensure!(
            (LEAST..=MOST).contains(&memory) && memory.is_multiple_of(PAGE),
            "--memory {memory}: Redis and its benchmark need {} to {}, in whole pages",
            readable::bytes(LEAST),
            readable::bytes(MOST)
        );
        let (needed, free) = (2 * (memory + HOST), machine::memory("MemAvailable:"));
        ensure!(
            free.is_none_or(|free| needed <= free),
            "--memory {}: two QEMUs need {} MiB of this machine's memory, of which {} MiB are free: use less",
            readable::bytes(memory),
            needed >> 20,
            free.unwrap_or(0) >> 20
        );
        let requests = options.requests.unwrap_or(REQUESTS);
        ensure!(requests >= 1000, "--requests {requests}: at least 1000, so that a move is within them");
        let mut trackers = options.tracker.clone();
        if trackers.is_empty() {
            trackers.extend(Tracker::ALL);
        }
        for (at, tracker) in trackers.iter().enumerate() {
            ensure!(!trackers[..at].contains(tracker), "--tracker {} twice", tracker.name());
        }
        trackers.sort_by_key(|tracker| *tracker != Tracker::WriteProtect);
        let postcopy = options.postcopy.then_some(How::Postcopy);
        let moving = trackers.into_iter().map(How::Precopy).chain(postcopy).map(Way::Move);
        Ok(Self {
            memory,
            vcpus: options.vcpus,
            clients: options.clients.unwrap_or(CLIENTS),
            requests,
            ways: [Way::Stay].into_iter().chain(moving).collect(),
            moves: options.moves,
            control: options.control,
            downtime: options.downtime.map_or(DOWNTIME, |downtime| downtime.0),
            images: options.images.clone(),
            program: std::env::current_exe().context("this program's own file")?,
            files: Files::check(&options.output)?,
            directory: directory()?,
        })
    }

    /// For the record, the socket of the network, lists and bundles.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The number of runs of the benchmark.
    pub fn steps(&self) -> u64 {
        u64::from(self.moves) * self.ways.len() as u64
    }

    /// The place of a way among the variants.
    pub fn place(&self, configuration: &BTreeMap<String, String>) -> usize {
        let name = configuration.get("tracker").map(String::as_str);
        self.ways.iter().position(|way| Some(way.name()) == name).unwrap_or(0)
    }

    /// Notes that a reader of the figures needs.
    pub fn notes(&self) -> Vec<String> {
        vec![
            "emulated: each vCPU has a CPU of QEMU, at the pace of this host, which both machines, both ends of the link and the \
             client share; the ways take turns, and only their ratios can be compared with anything"
                .to_owned(),
        ]
    }
}

fn directory() -> anyhow::Result<TempDir> {
    TempDir::with_prefix("twofold-migrate-").context("a directory for a move")
}

/// The experiment's name in results.
pub const NAME: &str = "migrate-redis";
const PAGE: u64 = 4096;
const LEAST: u64 = 128 << 20;
const MOST: u64 = 16 << 30;
/// What a QEMU needs beside the guest's memory.
const HOST: u64 = 512 << 20;
const REQUESTS: u64 = 100_000;
const HEADLINE_REQUESTS: u64 = 20_000;
const CLIENTS: u32 = 50;
/// Before, and after: what QEMU asks KVM for by default, and the series.
const PUBLISHED: [Tracker; 2] = [Tracker::Manual, Tracker::Combined];
const DOWNTIME: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn of_line(line: &str) -> anyhow::Result<Plan> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: MigrateOptions,
        }
        let words = ["migrate", "--on", "hypervisor"].into_iter().chain(line.split_whitespace());
        Plan::of(&<Line as clap::Parser>::try_parse_from(words)?.options)
    }

    #[test]
    fn a_guest_stays_once_and_moves_with_each_tracker() {
        let plan = of_line("").unwrap();
        let names: Vec<_> = plan.ways.iter().map(|way| way.name()).collect();
        assert_eq!(names, ["stays", "write-protect", "manual", "hardware", "combined", "adaptive"]);
        assert_eq!(of_line("--postcopy").unwrap().ways.last(), Some(&Way::Move(How::Postcopy)));
        let plan = of_line("--tracker adaptive --moves 3 --requests 5000 --clients 900").unwrap();
        assert_eq!((plan.steps(), plan.requests, plan.clients), (6, 5000, 900));
    }

    #[test]
    fn what_is_for_another_machine_is_refused() {
        for (line, why) in [
            ("--rate 5", "--rate is for --on machine"),
            ("--sets 5", "--sets is for --on machine"),
            ("--streams 2", "--streams is for"),
            ("--control dead", "--control dead is for"),
            ("--dry-run", "--dry-run is for"),
            ("--memory 64M", "need 128 MiB"),
            ("--memory 200000001", "whole pages"),
            ("--requests 10", "at least 1000"),
            ("--clients 0", "1..=2000"),
            ("--tracker manual,manual", "twice"),
        ] {
            let error = format!("{:#}", of_line(line).unwrap_err());
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
