// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use twofold_memory::dirty::Tracker;

/// Measures Twofold, or puts it to the proof, and prints what comes out.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
pub struct Arguments {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The stage-2 engine on this CPU: nanoseconds per page table entry, one thread and two
    #[command(after_help = ENGINE_HELP)]
    Engine(EngineOptions),
    /// The dirty logs on the hosted machine: keeps a copy by what a log tells, and compares
    #[command(after_help = ORACLE_HELP)]
    Oracle(OracleOptions),
}

/// Options of `engine`.
#[derive(Args, Clone, Debug)]
pub struct EngineOptions {
    /// Guest memory in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: GuestSize,
    /// Runs of each operation, whose median, minimum and maximum are printed; at least 1
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measures only these operations
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Prints the names of the operations and measures none
    #[arg(long, conflicts_with_all = ["runs", "json", "only", "steps"])]
    pub list: bool,
    /// Reads names of operations from standard input, one a line, does each once and answers with a line of JSON:
    /// how another program runs them in turn with its own
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["runs", "json", "only"])]
    pub steps: Option<Steps>,
}

/// Options of `oracle`.
#[derive(Args, Clone, Debug)]
pub struct OracleOptions {
    /// Only this tracker: write-protect, manual, hardware, combined or adaptive
    #[arg(long, value_name = "NAME")]
    pub tracker: Option<TrackerName>,
    /// Pages to compare for each tracker
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub comparisons: u64,
    /// What is chosen at random is chosen by this; TWOFOLD_SEED stands for it, and without both it is another each time
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Copies a page before it is cleared, which is wrong: a control that has to lose pages
    #[arg(long)]
    pub copy_first: bool,
}

/// A tracker, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackerName(pub Tracker);

impl FromStr for TrackerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Tracker::ALL.into_iter().find(|tracker| tracker.name() == text);
        named.map(Self).ok_or_else(|| {
            let names = Tracker::ALL.map(Tracker::name).join(", ");
            format!("there is no tracker `{text}`; there are {names}")
        })
    }
}

/// What a step answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Steps {
    /// Nanoseconds per entry
    Time,
    /// Instructions and tables per entry
    Count,
}

/// Guest memory: a power of two from 1 GiB to 256 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSize(u64);

impl GuestSize {
    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for GuestSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.strip_suffix('G') {
            Some(digits) => (digits, 30),
            None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
        };
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size: give 16G, 4096M or bytes"))?;
        let bytes = number.saturating_mul(1 << shift);
        if bytes.is_power_of_two() && (1 << 30..=256 << 30).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(format!("{text} is not a power of two from 1G to 256G"))
        }
    }
}

const ENGINE_HELP: &str = "\
Each operation is done on the whole of the guest's memory, 4 KiB pages in tables in real memory; the guest's own
memory does not exist and is never touched. TLB invalidations, barriers and cache operations cost nothing here and are
counted, per entry, in a run of their own. The operations take turns, so that what disturbs the machine disturbs all
of them. Figures are nanoseconds of CPU time per page table entry, or per block where it says so.

Where there are two CPUs, two threads follow: their rate on one guest's tables by that of one thread, as ratios of time
on the wall, so on a machine that does nothing else.

Examples:
  cargo run --release -p twofold-bench -- engine
  cargo run --release -p twofold-bench -- engine --only map_pages,protect --runs 21
  cargo run --release -p twofold-bench -- engine --size 1G --json engine.json
  cargo xtask peers linux                    the same beside Linux's own code, in one run";

const ORACLE_HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause, while its dirty log is read and cleared, pages are
copied, and the log is stopped and started anew. Every few rounds all of them are held, and each page that the log calls
clean is compared with its copy. Only pages that were dirty in an earlier round count.

Examples:
  cargo run --release -p twofold-bench -- oracle --comparisons 1000000
  cargo run --release -p twofold-bench -- oracle --tracker combined --seed 7

A line for each tracker: `oracle: NAME: N compared, N re-dirtied, N lost`. Exit status: 1 where a page was lost.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn trackers_have_names() {
        assert_eq!("write-protect".parse(), Ok(TrackerName(Tracker::WriteProtect)));
        assert!("dirty-ring".parse::<TrackerName>().is_err_and(|error| error.contains("adaptive")));
    }

    #[test]
    fn sizes() {
        assert_eq!("16G".parse(), Ok(GuestSize(16 << 30)));
        assert_eq!("1024M".parse(), Ok(GuestSize(1 << 30)));
        for bad in ["", "G", "3G", "512M", "512G", "-1", "99999999999G"] {
            assert!(bad.parse::<GuestSize>().is_err(), "{bad}");
        }
    }
}
