// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `dirty-costs`.

use std::path::PathBuf;

use clap::Args;

use super::size::GuestSize;

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

/// The help text below the options.
pub const HELP: &str = "\
The memslot's tables are in real memory; its pages do not exist and are never touched. Times are microseconds of CPU
time of one thread. If an operation exceeds its target, the command fails. The target for a get that scans every page
that hardware may have recorded is twice the time this machine takes to read the entries, measured in the same run.

Examples:
  cargo run --release -p twofold -- bench dirty-costs
  cargo run --release -p twofold -- bench dirty-costs --only clear,get --runs 21 --json costs.json";
