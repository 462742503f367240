// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line.

mod compare;
mod dirty_log;
mod headline;
mod output;
mod page_table;
mod show;
mod size;
mod variants;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use twofold_memory::dirty::Tracker;

pub use compare::CompareOptions;
pub use dirty_log::DirtyLogOptions;
pub use headline::HeadlineOptions;
pub use output::OutputOptions;
pub use page_table::PageTableOptions;
pub use show::ShowOptions;
pub use variants::policies;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The stage-2 engine on this CPU: nanoseconds per page table entry, one thread and two
    #[command(after_help = ENGINE_HELP)]
    Engine(EngineOptions),
    /// The dirty logs on the hosted machine: keeps a copy by what a log tells, and compares
    #[command(after_help = ORACLE_HELP)]
    Oracle(OracleOptions),
    /// The dirty log on this CPU: microseconds per operation, beside what it may take
    #[command(after_help = DIRTY_COSTS_HELP)]
    DirtyCosts(DirtyCostsOptions),
    /// Trackers of the dirty log against ways to write: what guest and collector take together
    #[command(after_help = DIRTY_TABLE_HELP)]
    DirtyTable(DirtyTableOptions),
    /// Dirty logging from outside, as KVM's dirty_log_perf_test: how long enabling, writing, reading and clearing take
    #[command(after_help = dirty_log::HELP)]
    DirtyLog(Box<DirtyLogOptions>),
    /// Tables from outside, as KVM's kvm_page_table_test: how long vCPUs take that map, write and read the same memory
    #[command(after_help = page_table::HELP)]
    PageTable(Box<PageTableOptions>),
    /// Every number that the sources published, and ours beside it
    #[command(after_help = headline::HELP)]
    Headline(Box<HeadlineOptions>),
    /// Two result files apart: what became faster, what slower, and what shows no difference
    #[command(after_help = compare::HELP)]
    Compare(CompareOptions),
    /// A result file once more: its tables, as a page, as CSV
    #[command(after_help = show::HELP)]
    Show(ShowOptions),
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

/// Options of `dirty-costs`.
#[derive(Args, Clone, Debug)]
pub struct DirtyCostsOptions {
    /// The slot in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G. The bars are for 16G, and of another
    /// size in proportion; a bar that a smaller slot cannot reach is not judged there
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: GuestSize,
    /// Runs of each operation, whose median and quartiles are printed; at least 1
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Writes the figures to FILE as JSON, in nanoseconds
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measures only the operations with one of these in their names
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<String>,
}

/// Options of `dirty-table`.
#[derive(Args, Clone, Debug)]
pub struct DirtyTableOptions {
    /// The slot in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G, for which there is memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: GuestSize,
    /// Rounds of writes, each followed by a get and a clear
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// The guest's writes in a round, of 8 bytes each; as many as it has pages, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub writes: Option<u64>,
    /// Runs of each tracker, whose median and quartiles are printed; at least 1
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Nanoseconds that a fault's way out of the guest and back takes on the machine that is thought of: added for each fault
    #[arg(long, value_name = "NS,...", value_delimiter = ',', default_values_t = [0, 1500])]
    pub exit_cost: Vec<u32>,
    /// Rounds that were recorded, instead of those of Redis that come with the program
    #[arg(long, value_name = "FILE")]
    pub recorded: Option<PathBuf>,
    /// These trackers alone
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = tracker, default_values = Tracker::ALL.map(Tracker::name))]
    pub tracker: Vec<Tracker>,
    /// Only the ways to write with one of these in their names
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Writes the figures to FILE as JSON, in nanoseconds
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn tracker(name: &str) -> Result<Tracker, String> {
    let names = || Tracker::ALL.map(Tracker::name).join(", ");
    let tracker = Tracker::ALL.into_iter().find(|tracker| tracker.name() == name);
    tracker.ok_or_else(|| format!("there is no tracker `{name}`; there are {}", names()))
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
  cargo run --release -p twofold -- bench engine
  cargo run --release -p twofold -- bench engine --only map_pages,protect --runs 21
  cargo run --release -p twofold -- bench engine --size 1G --json engine.json
  cargo xtask peers linux                    the same beside Linux's own code, in one run";

const ORACLE_HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause, while its dirty log is read and cleared, pages are
copied, and the log is stopped and started anew. Every few rounds all of them are held, and each page that the log calls
clean is compared with its copy. Only pages that were dirty in an earlier round count.

Examples:
  cargo run --release -p twofold -- bench oracle --comparisons 1000000
  cargo run --release -p twofold -- bench oracle --tracker combined --seed 7

A line for each tracker: `oracle: NAME: N compared, N re-dirtied, N lost`. Exit status: 1 where a page was lost.";

const DIRTY_COSTS_HELP: &str = "\
The slot's tables are in real memory; its pages do not exist and are never touched. Times are microseconds of CPU time
of one thread. Where an operation has a bar, it may take no longer; if one does, the command fails. The bar of a look at
all that hardware may have recorded is twice what this machine takes to read the entries, measured in the same run.

Examples:
  cargo run --release -p twofold -- bench dirty-costs
  cargo run --release -p twofold -- bench dirty-costs --only clear,get --runs 21 --json costs.json";

const DIRTY_TABLE_HELP: &str = "\
A guest writes, and after each round somebody asks what it wrote and clears it, as for a live migration. Both are on one
thread, in turns; times are its CPU time, in milliseconds of all rounds together, and writes per second are the guest's
by the CPU time of both, with the log's start and stop. Each tracker takes its turn in each run. The command fails where
adaptive is not best, and its interval does not reach 95 % of the best.

The last way to write was recorded: what Linux wrote with Redis under `redis-benchmark -t set`, in a slot of 256 MiB
(crates/bench/recordings; `cargo xtask record-redis` makes it). --recorded has another in its place, from a text file: its
first line `twofold-rounds 1 PAGES`, with the pages of 4 KiB of the slot; behind it a line for each round, with the pages
that were written in it as runs FIRST+COUNT, or FIRST for one, ascending, with spaces between. They are written once each,
whatever --writes and --rounds say, in a slot of their own, whatever --size says.

Examples:
  cargo run --release -p twofold -- bench dirty-table
  cargo run --release -p twofold -- bench dirty-table --only sparse --exit-cost 0,800,3000
  cargo run --release -p twofold -- bench dirty-table --only recorded --recorded target/redis.rounds
  cargo run --release -p twofold -- bench dirty-table --size 4G --writes 10000 --tracker manual,hardware,adaptive";

#[cfg(test)]
mod tests {
    use super::*;

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
