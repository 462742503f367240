// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `oracle`.

use clap::Args;
use twofold_memory::dirty::Tracker;

use super::names::tracker;

/// Options of `oracle`.
#[derive(Args, Clone, Debug)]
pub struct OracleOptions {
    /// Only this tracker: write-protect, manual, hardware, combined or adaptive
    #[arg(long, value_name = "NAME", value_parser = tracker)]
    pub tracker: Option<Tracker>,
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

/// The help text below the options.
pub const HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause. Meanwhile the guest's dirty log is read and cleared,
pages are copied, and the log is stopped and started again. Every few rounds all writers are held, and each page that
the log reports as clean is compared with its copy. Only pages that were dirty in an earlier round count.

Examples:
  cargo run --release -p twofold -- bench oracle --comparisons 1000000
  cargo run --release -p twofold -- bench oracle --tracker combined --seed 7

Each tracker prints a line: `oracle: NAME: N compared, N re-dirtied, N lost`. Exit status: 1 if a page was lost.";
