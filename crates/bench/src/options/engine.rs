// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `engine`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::size::GuestSize;

/// Options of `engine`.
#[derive(Args, Clone, Debug)]
pub struct EngineOptions {
    /// Guest memory in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    pub size: GuestSize,
    /// Pages of the tables, and so the sizes of their blocks: 4k, 16k or 64k (bytes, powers of 1024)
    #[arg(long, value_enum, value_name = "SIZE", default_value_t = GranuleOption::Kib4)]
    pub granule: GranuleOption,
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

/// Values of `--granule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GranuleOption {
    /// 4 KiB, with blocks of 2 MiB and 1 GiB
    #[value(name = "4k")]
    Kib4,
    /// 16 KiB, with blocks of 32 MiB
    #[value(name = "16k")]
    Kib16,
    /// 64 KiB, with blocks of 512 MiB
    #[value(name = "64k")]
    Kib64,
}

/// What a step reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Steps {
    /// Nanoseconds per entry
    Time,
    /// Instructions and tables per entry
    Count,
}

/// The help text below the options.
pub const HELP: &str = "\
Each operation runs on the whole of the guest's memory, with tables in real memory. The guest's own memory does not
exist and is never touched. TLB invalidations, barriers and cache operations cost nothing here; a run of their own counts
them per entry. The operations take turns, so a disturbance of the machine affects all of them. Figures are nanoseconds
of CPU time per page table entry, or per block where the table says so.

With --granule 16k an entry maps four times as much as with 4k, and with 64k sixteen times. Rows of blocks have the size
of the block in their name: split_2m, split_32m, split_512m. The comparison with Linux and the targets of two threads are
for pages of 4 KiB only.

The main rows are printed, and one sentence. --all prints every row. With two CPUs or more, it has a second table with
two threads on one guest's tables: their rate divided by the rate of one thread. These are ratios of wall time, so they
need an idle machine. faults_beside_maintenance needs eight blocks: 4G of guest memory with --granule 64k.

Examples:
  cargo run --release -p twofold -- bench engine
  cargo run --release -p twofold -- bench engine --only map_pages,protect --runs 21
  cargo run --release -p twofold -- bench engine --size 1G --json engine.json
  cargo run --release -p twofold -- bench engine --granule 64k --only map_pages,split_512m
  cargo xtask peers linux                    the same next to Linux's own code, in one run";
