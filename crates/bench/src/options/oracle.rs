// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `oracle`.

use clap::Args;
use twofold_memory::dirty::Tracker;

use super::names::tracker;
use super::size::Size;
use crate::oracle::StorePlan;

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
    /// Pages leave to a file and come back meanwhile, late and out of order
    #[arg(long)]
    pub store: bool,
    /// The most bytes of the guest's 16 MiB in memory: --limit 4M
    #[arg(long, value_name = "SIZE", default_value = "8M", requires = "store")]
    pub limit: Size,
    /// One request to the store in this many fails: --fails 20
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "store", value_parser = clap::value_parser!(u64).range(2..))]
    pub fails: u64,
    /// Copies a page before clearing it. This is wrong on purpose: a control that must lose pages
    #[arg(long)]
    pub copy_first: bool,
}

impl OracleOptions {
    /// The store that is asked for.
    pub fn store_plan(&self) -> Option<StorePlan> {
        self.store.then_some(StorePlan { limit: self.limit.0, fails: self.fails })
    }
}

/// The help text below the options.
pub const HELP: &str = "\
Four vCPUs and a device write to a guest's memory without pause. Meanwhile the guest's dirty log is read and cleared,
pages are copied, and the log is stopped and started again. Every few rounds all writers are held, and each page that
the log reports as clean is compared with its copy. Only pages that were dirty in an earlier round count. With --store,
pages leave to a file and come back meanwhile; one that is absent is compared as the file has it.

Examples:
  cargo run --release -p twofold -- bench oracle --comparisons 1000000
  cargo run --release -p twofold -- bench oracle --tracker combined --seed 7
  cargo run --release -p twofold -- bench oracle --store --limit 4M --fails 100

Each tracker prints a line: `oracle: NAME: N compared, N re-dirtied, N lost`, and with --store one that begins with
`store: NAME:` and says how many pages moved. Exit status: 1 if a page was lost.";
