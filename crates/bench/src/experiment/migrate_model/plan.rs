// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of `twofold bench migrate-model`: from options to guests. The options are read here and nowhere else.
//!
//! Invariant: a guest that does not fit into this machine is refused before anything is set up.

use std::fmt;
use std::time::Duration;

use anyhow::ensure;
use twofold_machine::fast::CpusError;
use twofold_memory::dirty::Tracker;

use super::load::PAGE;
use super::prices::{Picos, Prices};
use crate::machine;
use crate::options::MigrateModelOptions;
use crate::readable;
use crate::report::Files;

pub use crate::options::{Hot, Mix};

/// What to measure, and which files to write.
#[derive(Debug)]
pub struct Plan {
    /// The guest; its load is one of `loads` in turn.
    pub guest: Guest,
    /// Writes, in percent of the link.
    pub loads: Vec<u64>,
    /// The loads of the break-even table; none: there is no such table.
    pub sweep: Vec<u64>,
    /// Runs of each tracker with each load, each with a seed of its own.
    pub runs: u32,
    /// The seed of the first run.
    pub seed: u64,
    /// Whether the first run's charges are shown.
    pub verbose: bool,
    /// The output files.
    pub files: Files,
}

/// A guest that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// vCPUs. Together they write at the stated rate.
    pub vcpus: u64,
    /// Bytes of memory, whole blocks of 2 MiB.
    pub bytes: u64,
    /// Bytes a second that the link carries.
    pub link: u64,
    /// Bytes a second of pages that are written, in percent of the link: a write is to one page of 4 KiB.
    pub load: u64,
    /// Which part of the writes goes to which part of the pages.
    pub mix: Mix,
    /// Where the hot pages are.
    pub hot: Hot,
    /// How long the guest may stand still.
    pub downtime: Duration,
}

impl Guest {
    /// The guest of the claim, which was fixed beforehand.
    pub const CLAIM: Self = Self {
        vcpus: 1,
        bytes: 256 << 20,
        link: 1_000_000_000,
        load: 80,
        mix: Mix { writes: 80, pages: 20 },
        hot: Hot::Scattered,
        downtime: Duration::from_millis(5),
    };

    /// A vCPU's computing before each write.
    pub fn step(&self) -> Picos {
        Picos::new((SECOND * 100 * u128::from(PAGE * self.vcpus) / u128::from(self.load * self.link)) as u64)
    }

    /// The writes that each vCPU has to do: those of the time in which the link carries the guest's memory twice.
    pub fn goal(&self) -> u64 {
        (2 * self.bytes / PAGE * self.load / 100 / self.vcpus).max(1)
    }

    /// The link's time for a byte.
    pub fn byte(&self) -> Picos {
        Picos::new((SECOND / u128::from(self.link)) as u64)
    }

    /// Bytes of the machine's memory: the guest's, and its tables.
    pub fn machine_bytes(&self) -> u64 {
        let tables = self.bytes.div_ceil(BLOCK) * PAGE;
        self.bytes + tables.next_multiple_of(BLOCK) + SPARE
    }
}

impl Plan {
    /// The plan of these options.
    ///
    /// # Errors
    ///
    /// The options contradict each other, the guest does not fit here, or a file cannot be written.
    pub fn of(options: &MigrateModelOptions) -> anyhow::Result<Self> {
        let bytes = options.memory.0;
        ensure!((BLOCK..=MOST).contains(&bytes), "--memory {bytes}: a guest has 2 MiB to {}", readable::bytes(MOST));
        let guest = Guest {
            vcpus: options.vcpus,
            bytes: bytes.next_multiple_of(BLOCK),
            link: options.link,
            load: options.load.first().copied().unwrap_or(Guest::CLAIM.load),
            mix: options.mix,
            hot: options.hot,
            downtime: options.downtime,
        };
        CpusError::check(guest.vcpus as usize)?;
        let (needed, free) = (guest.machine_bytes(), machine::memory("MemAvailable:"));
        ensure!(
            free.is_none_or(|free| needed <= free),
            "--memory {} needs {} MiB of this machine's memory, of which {} MiB are free: use a smaller guest",
            readable::bytes(bytes),
            needed >> 20,
            free.unwrap_or(0) >> 20
        );
        for (at, load) in options.load.iter().enumerate() {
            ensure!(!options.load[..at].contains(load), "--load {load} twice");
        }
        let fixed = Duration::from_nanos((Prices::STATED.state + Prices::STATED.stop).get() / 1000);
        ensure!(guest.downtime > fixed, "--downtime: state and commit alone take {fixed:?}, so ask for more");
        Ok(Self {
            guest,
            loads: options.load.clone(),
            sweep: if options.no_sweep { Vec::new() } else { (1..=20).map(|step| step * 5).collect() },
            runs: options.runs,
            seed: options.seed,
            verbose: options.verbose,
            files: Files::check(&options.output)?,
        })
    }

    /// The number of single migrations.
    pub fn steps(&self) -> u64 {
        let trackers = Tracker::ALL.len() as u64;
        (u64::from(self.runs) * self.loads.len() as u64 + self.sweep.len() as u64) * trackers
    }

    /// Notes that a reader of the figures needs.
    pub fn notes(&self) -> Vec<String> {
        let price = |one: super::prices::Stated| format!("{} {} ({})", one.what, one.price, one.source);
        let prices = Prices::STATED.stated().map(price).join(", ");
        vec![
            format!("modelled: all times are virtual, and these prices are stated: {prices}"),
            "real: the driver of pre-copy, the dirty log, the tables, each fault, TLBI, barrier, entry and atomic, which are \
             counted where they happen; each page that was sent is compared with the stopped guest's"
                .to_owned(),
            "not modelled: what a TLBI costs other CPUs and their TLBs' refills, waiting for locks, the thread's work beside \
             the link (the link's time has it), and the target's first touches"
                .to_owned(),
            format!(
                "{}, link {} MB/s, {} of writes to {} of pages ({}), downtime of {:?} at most; the guest's work is what it \
                 writes in the time in which the link carries its memory twice, {:.1} ms without a migration",
                readable::bytes(self.guest.bytes),
                self.guest.link / 1_000_000,
                percent(self.guest.mix.writes),
                percent(self.guest.mix.pages),
                self.guest.hot.name(),
                self.guest.downtime,
                (self.guest.step() * self.guest.goal()).as_nanos() / 1e6
            ),
        ]
    }

    /// The plan of a command line, for tests.
    #[cfg(test)]
    pub fn of_line(line: &str) -> anyhow::Result<Self> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: MigrateModelOptions,
        }
        let words = ["migrate-model"].into_iter().chain(line.split_whitespace());
        Self::of(&<Line as clap::Parser>::try_parse_from(words)?.options)
    }
}

fn percent(number: u64) -> String {
    format!("{number} %")
}

impl fmt::Display for Picos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let picos = self.get();
        if picos.is_multiple_of(1_000_000_000) && picos > 0 {
            write!(f, "{} ms", picos / 1_000_000_000)
        } else if picos.is_multiple_of(1000) || picos >= 1_000_000 {
            write!(f, "{} ns", picos / 1000)
        } else {
            write!(f, "{}.{} ns", picos / 1000, picos % 1000 / 100)
        }
    }
}

/// The experiment's name in results.
pub const NAME: &str = "migrate-model";
/// Picoseconds.
const SECOND: u128 = 1_000_000_000_000;
const BLOCK: u64 = 2 << 20;
/// Table pages of the upper levels, and what a run of 2 MiB cannot use.
const SPARE: u64 = 4 << 20;
const MOST: u64 = 64 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_is_the_default() {
        let plan = Plan::of_line("").unwrap();
        assert_eq!(plan.guest, Guest { load: 20, ..Guest::CLAIM });
        assert_eq!((plan.loads.as_slice(), plan.sweep.len(), plan.runs), (&[20, 80][..], 20, 7));
        let claim = Guest::CLAIM;
        assert_eq!(claim.byte(), Picos::nanos(1));
        // 195,312 writes a second.
        assert_eq!((claim.step(), claim.goal()), (Picos::nanos(5_120), 104_857));
        let four = Guest { vcpus: 4, ..claim };
        assert_eq!((four.step(), four.goal()), (Picos::nanos(4 * 5_120), 26_214));
    }

    #[test]
    fn what_contradicts_itself_or_does_not_fit_is_refused() {
        for (line, why) in [
            ("--memory 1", "2 MiB to"),
            ("--memory 100G", "2 MiB to"),
            ("--load 20,20", "--load 20 twice"),
            ("--load 0", "1..=100"),
            ("--mix 80", "80/20"),
            ("--mix 80/0", "80/20"),
            ("--downtime 1ms", "--downtime"),
            ("--vcpus 0", "1..=64"),
            ("--json /none/x.json", "make it first"),
        ] {
            let error = format!("{:#}", Plan::of_line(line).unwrap_err());
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn prices_are_shown_with_their_units() {
        let shown = [2_400, 20_000, 1_326_666, 1_000_000_000].map(|picos| Picos::new(picos).to_string());
        assert_eq!(shown, ["2.4 ns", "20 ns", "1326 ns", "1 ms"]);
    }
}
