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
