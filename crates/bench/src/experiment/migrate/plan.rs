// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `twofold bench migrate`: from options to moves. The options are read here and nowhere else.
//!
//! Invariant: contradictory options, and a guest that does not fit into this machine twice, are refused before anything is
//! set up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use twofold_machine::fast::CpusError;
use twofold_memory::dirty::Tracker;

use super::place;
use super::settings::{How, PAGE, Settings};
use crate::machine;
use crate::options::{Control, MigrateOptions, Packed};
use crate::readable;
use crate::report::Files;
use crate::results::Platform;

/// What to measure, and which files to write.
#[derive(Debug)]
pub struct Plan {
    /// What both processes know.
    pub settings: Settings,
    /// The ways of moving that are compared; the baseline comes first.
    pub ways: Vec<How>,
    /// Moves with each way.
    pub moves: u32,
    /// Whether only a forecast is made.
    pub is_dry: bool,
    /// A negative control, and nothing else.
    pub control: Option<Control>,
    /// The output files.
    pub files: Files,
    /// Removed with the plan.
    _directory: TempDir,
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other, the guest does not fit here, or a file cannot be written.
    pub fn of(options: &MigrateOptions) -> anyhow::Result<Self> {
        let on = options.on;
        ensure!(on == Platform::Machine, "--on {on}: guests move on the machine or on the hypervisor");
        let of_hypervisor = options.requests.is_some() || options.clients.is_some() || options.images.is_some();
        ensure!(!of_hypervisor, "--requests, --clients and --images are for --on hypervisor");
        ensure!(options.control != Some(Control::Unlogged), "--control unlogged is for --on hypervisor");
        let typed = options.memory.0;
        ensure!((1..=MOST).contains(&typed), "--memory {typed}: 1 byte to {}", readable::bytes(MOST));
        CpusError::check(options.vcpus as usize)?;
        let memory = typed.next_multiple_of(HUGE_PAGE);
        ensure!(options.bandwidth.is_none_or(|limit| limit.0 > 0), "--bandwidth 0: nothing would ever arrive");
        let mut ways: Vec<_> = match options.tracker.as_slice() {
            // With --postcopy alone, all ways.
            [] => Tracker::ALL.map(How::Precopy).to_vec(),
            some => some.iter().copied().map(How::Precopy).collect(),
        };
        for (at, how) in ways.iter().enumerate() {
            ensure!(!ways[..at].contains(how), "--tracker {} twice", how.name());
        }
        ways.sort_by_key(|how| *how != How::Precopy(Tracker::WriteProtect));
        ways.extend(options.postcopy.then_some(How::Postcopy));
        let (needed, free) = (2 * place::needed(memory) + memory / PAGE * 64, machine::memory("MemAvailable:"));
        ensure!(
            free.is_none_or(|free| needed <= free - free / 16),
            "--memory {}: two processes need {} MiB of this machine's memory, of which {} MiB are free: use less",
            readable::bytes(memory),
            needed >> 20,
            free.unwrap_or(0) >> 20
        );
        let files = Files::check(&options.output)?;
        let directory =
            tempfile::Builder::new().prefix("twofold-migrate-").tempdir().context("a directory for a move")?;
        let settings = Settings {
            memory,
            vcpus: options.vcpus,
            rate: options.rate.unwrap_or(RATE),
            sets: options.sets.unwrap_or(SETS),
            seed: options.seed,
            downtime: options.downtime.map_or(DOWNTIME, |downtime| downtime.0),
            bandwidth: options.bandwidth.map(|limit| limit.0),
            postcopy_if_needed: options.postcopy_if_needed,
            streams: options.streams,
            compressed: options.compression == Packed::Lz4,
            settle: options.settle.map_or(SETTLE, |settle| settle.0),
            directory: directory.path().to_owned(),
            program: std::env::current_exe().context("this program's own file")?,
        };
        ensure!(settings.table(settings.vcpus - 1).is_some(), "--memory {memory}: too small for the vCPUs' tables");
        Ok(Self {
            settings,
            ways,
            moves: options.moves,
            is_dry: options.dry_run,
            control: options.control,
            files,
            _directory: directory,
        })
    }

    /// The number of moves.
    pub fn steps(&self) -> u64 {
        u64::from(self.moves) * self.ways.len() as u64
    }

    /// The place of a way among the variants.
    pub fn place(&self, configuration: &BTreeMap<String, String>) -> usize {
        let name = configuration.get("tracker").map(String::as_str);
        self.ways.iter().position(|how| Some(how.name()) == name).unwrap_or(0)
    }

    /// Notes that a reader of the figures needs.
    pub fn notes(&self) -> Vec<String> {
        vec![
            "two processes of this host, over Unix sockets; a fault of the guest is a function call, so what exits cost on \
             a CPU is not in these figures"
                .to_owned(),
        ]
    }

    /// The plan of a command line; for tests.
    ///
    /// # Errors
    ///
    /// As for [`of`](Self::of), and if the line cannot be parsed.
    #[cfg(test)]
    pub fn of_line(line: &str) -> anyhow::Result<Self> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: MigrateOptions,
        }
        let words = ["migrate"].into_iter().chain(line.split_whitespace());
        Self::of(&<Line as clap::Parser>::try_parse_from(words)?.options)
    }
}

/// The experiment's name in results.
pub const NAME: &str = "migrate";
const HUGE_PAGE: u64 = 2 << 20;
/// What the options are that are not given.
const RATE: u64 = 100_000;
const SETS: u64 = 20;
const DOWNTIME: Duration = Duration::from_millis(5);
const SETTLE: Duration = Duration::from_millis(200);
/// The largest guest.
const MOST: u64 = 64 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_trackers_are_compared_and_the_baseline_comes_first() {
        let plan = Plan::of_line("").unwrap();
        assert_eq!(plan.ways, Tracker::ALL.map(How::Precopy));
        assert_eq!(
            (plan.settings.memory, plan.settings.downtime, plan.moves),
            (256 << 20, Duration::from_millis(5), 10)
        );
        let plan = Plan::of_line("--tracker adaptive,write-protect --postcopy --memory 5M --moves 3").unwrap();
        assert_eq!(
            plan.ways.iter().map(|how| how.name()).collect::<Vec<_>>(),
            ["write-protect", "adaptive", "post-copy"]
        );
        assert_eq!((plan.settings.memory, plan.steps()), (6 << 20, 9));
        for how in plan.ways {
            assert_eq!(How::find(how.name()), Some(how));
        }
        assert_eq!(How::find("dirty-ring"), None);
    }

    #[test]
    fn the_tables_fill_the_memory_and_do_not_overlap() {
        for line in ["--vcpus 1", "--vcpus 3 --memory 32M", "--vcpus 16 --memory 2M"] {
            let settings = Plan::of_line(line).unwrap().settings;
            let tables: Vec<_> = (0..settings.vcpus).map(|vcpu| settings.table(vcpu).unwrap()).collect();
            let mut end = super::super::settings::RAM;
            for table in tables {
                assert!(table.start >= end);
                end = table.word(table.records, 0);
            }
            let left = super::super::settings::RAM + settings.memory - end;
            assert!(left < u64::from(settings.vcpus) * PAGE, "{line}: {left} bytes are left");
        }
    }

    #[test]
    fn what_contradicts_itself_or_does_not_fit_is_refused() {
        for (line, why) in [
            ("--on kvm", "on the machine or on the hypervisor"),
            ("--clients 5", "for --on hypervisor"),
            ("--tracker manual,manual", "--tracker manual twice"),
            ("--tracker ring", "there is no tracker"),
            ("--memory 0", "1 byte"),
            ("--memory 1T", "1 byte to 64 GiB"),
            ("--bandwidth 0", "nothing would ever arrive"),
            ("--downtime 0ms", "not a time"),
            ("--moves 0", "1..=10000"),
            ("--streams 17", "1..=16"),
            ("--sets 101", "0..=100"),
            ("--vcpus 0", "1..=16"),
            ("--control unlogged", "for --on hypervisor"),
            ("--dry-run --control dead", "cannot be used with"),
            ("--json /none/x.json", "make it first"),
        ] {
            let error = format!("{:#}", Plan::of_line(line).unwrap_err());
            assert!(error.contains(why), "{line}: {error}");
        }
        if machine::memory("MemAvailable:").is_some_and(|free| free < 128 << 30) {
            let error = Plan::of_line("--memory 64G").unwrap_err().to_string();
            assert!(error.contains("MiB are free"), "{error}");
        }
    }
}
