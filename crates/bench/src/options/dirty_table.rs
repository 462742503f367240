// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `dirty-table`.

use std::path::PathBuf;

use clap::Args;
use twofold_memory::dirty::Tracker;

use super::names::tracker;
use super::size::GuestSize;

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

/// The help text below the options.
pub const HELP: &str = "\
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
