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

/// The experiment to run
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Stage-2 engine on this CPU: nanoseconds per page table entry, with one thread and with two
    #[command(after_help = ENGINE_HELP)]
    Engine(EngineOptions),
    /// Dirty logs on the hosted machine: keeps a copy of memory by what a log reports, and compares it
    #[command(after_help = ORACLE_HELP)]
    Oracle(OracleOptions),
    /// Dirty log on this CPU: microseconds per operation, with targets
    #[command(after_help = DIRTY_COSTS_HELP)]
    DirtyCosts(DirtyCostsOptions),
    /// Dirty log trackers by workload: the CPU time of guest and collector together
    #[command(after_help = DIRTY_TABLE_HELP)]
    DirtyTable(DirtyTableOptions),
    /// Dirty logging from outside, as KVM's dirty_log_perf_test: the time to enable, write, read and clear
    #[command(after_help = dirty_log::HELP)]
    DirtyLog(Box<DirtyLogOptions>),
    /// Tables from outside, as KVM's kvm_page_table_test: the time of vCPUs that map, write and read the same memory
    #[command(after_help = page_table::HELP)]
    PageTable(Box<PageTableOptions>),
    /// Every published number of the sources, with ours next to it
    #[command(after_help = headline::HELP)]
    Headline(Box<HeadlineOptions>),
    /// Compares two result files: faster, slower, or no difference shown
    #[command(after_help = compare::HELP)]
    Compare(CompareOptions),
    /// Shows a result file again: tables, HTML report, CSV
    #[command(after_help = show::HELP)]
    Show(ShowOptions),
}

/// Options of `engine`.
#[derive(Args, Clone, Debug)]
pub struct EngineOptions {
    /// Guest memory in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: GuestSize,
    /// Runs of each operation, at least 1; median, minimum and maximum are printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Prints every row with its counts, two threads, and the configuration, instead of the main rows
    #[arg(long)]
    pub all: bool,
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measures only these operations
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Prints the names of the operations and measures nothing
    #[arg(long, conflicts_with_all = ["runs", "all", "json", "only", "steps"])]
    pub list: bool,
    /// Reads operation names from standard input, one a line; runs each once and answers with a line of JSON. Another
    /// program can so interleave them with its own
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with_all = ["runs", "all", "json", "only"])]
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
    /// Seed of all random choices. Without it TWOFOLD_SEED is the seed; without both, it differs each time
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Copies a page before clearing it. This is wrong on purpose: a control that must lose pages
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
    /// The memslot in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G. Targets are for 16G and
    /// scale with the size; a target that a smaller memslot cannot reach is not judged
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: GuestSize,
    /// Runs of each operation, at least 1; median and quartiles are printed
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
    /// The memslot in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G that fits in memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: GuestSize,
    /// Rounds of writes; each is followed by a get and a clear
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Guest writes in a round, 8 bytes each; default: the guest's number of pages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub writes: Option<u64>,
    /// Runs of each tracker, at least 1; median and quartiles are printed
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Modelled cost of a fault's exit and re-entry, in nanoseconds, added for each fault
    #[arg(long, value_name = "NS,...", value_delimiter = ',', default_values_t = [0, 1500])]
    pub exit_cost: Vec<u32>,
    /// Recorded rounds to replay, instead of the Redis recording that comes with the program
    #[arg(long, value_name = "FILE")]
    pub recorded: Option<PathBuf>,
    /// Only these trackers
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = tracker, default_values = Tracker::ALL.map(Tracker::name))]
    pub tracker: Vec<Tracker>,
    /// Only the workloads with one of these in their names
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Prints every tracker's row, instead of a row for each workload
    #[arg(long)]
    pub all: bool,
    /// Writes the figures to FILE as JSON, in nanoseconds
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn tracker(name: &str) -> Result<Tracker, String> {
    let names = || Tracker::ALL.map(Tracker::name).join(", ");
    let tracker = Tracker::ALL.into_iter().find(|tracker| tracker.name() == name);
    tracker.ok_or_else(|| format!("there is no tracker `{name}`; there are {}", names()))
}

/// What a step reports.
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
    /// The size in bytes.
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
Each operation runs on the whole of the guest's memory: pages of 4 KiB, tables in real memory. The guest's own memory
does not exist and is never touched. TLB invalidations, barriers and cache operations cost nothing here; a run of their
own counts them per entry. The operations take turns, so a disturbance of the machine affects all of them. Figures are
nanoseconds of CPU time per page table entry, or per block where the table says so.

The main rows are printed, and one sentence. --all prints every row. With two CPUs or more, it has a second table with
two threads on one guest's tables: their rate divided by the rate of one thread. These are ratios of wall time, so they
need an idle machine.

Examples:
  cargo run --release -p twofold -- bench engine
  cargo run --release -p twofold -- bench engine --only map_pages,protect --runs 21
  cargo run --release -p twofold -- bench engine --size 1G --json engine.json
  cargo xtask peers linux                    the same next to Linux's own code, in one run";

const ORACLE_HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause. Meanwhile the guest's dirty log is read and cleared,
pages are copied, and the log is stopped and started again. Every few rounds all writers are held, and each page that
the log reports as clean is compared with its copy. Only pages that were dirty in an earlier round count.

Examples:
  cargo run --release -p twofold -- bench oracle --comparisons 1000000
  cargo run --release -p twofold -- bench oracle --tracker combined --seed 7

Each tracker prints a line: `oracle: NAME: N compared, N re-dirtied, N lost`. Exit status: 1 if a page was lost.";

const DIRTY_COSTS_HELP: &str = "\
The memslot's tables are in real memory; its pages do not exist and are never touched. Times are microseconds of CPU
time of one thread. If an operation exceeds its target, the command fails. The target for a get that scans every page
that hardware may have recorded is twice the time this machine takes to read the entries, measured in the same run.

Examples:
  cargo run --release -p twofold -- bench dirty-costs
  cargo run --release -p twofold -- bench dirty-costs --only clear,get --runs 21 --json costs.json";

const DIRTY_TABLE_HELP: &str = "\
A guest writes. After each round a collector reads the log and clears it, as in a live migration. Both run on one
thread, in turn. Times are the CPU time of all rounds in milliseconds. Writes per second are the guest's writes divided
by the CPU time of guest and collector, including the log's start and stop. Each tracker takes its turn in each run.
The command fails if adaptive is not best and its interval does not reach 95 % of the best. A row for each workload is
printed, and one sentence. --all prints every tracker's times.

The last workload is a recording: the pages that Linux wrote with Redis under `redis-benchmark -t set`, in a memslot of
256 MiB (crates/bench/recordings; `cargo xtask record-redis` makes it). --recorded replays another recording, a text
file. Its first line is `twofold-rounds 1 PAGES`, with the number of 4 KiB pages in the memslot. Each further line is a
round: the written pages as runs FIRST+COUNT, or FIRST for a single page, ascending, separated by spaces. A replay
writes each page once. It ignores --writes and --rounds, and has a memslot of its own, so it ignores --size too.

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
