// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `headline`.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputOptions;
use super::size::Span;

/// Options of `headline`.
#[derive(Args, Clone, Debug, Default)]
pub struct HeadlineOptions {
    /// Uses the sources' own sizes, by mapping a small piece of memory repeatedly; takes an hour
    #[arg(long)]
    pub full: bool,
    /// Runs of each variant; default: as many as the time allows, at least 7
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Time for the whole command, exceeded for the least number of runs, and for Linux on the hypervisor: --time 10m.
    /// Default 5 minutes, with --full an hour
    #[arg(long, value_name = "TIME")]
    pub time: Option<Span>,
    /// Modelled cost of a guest exit in nanoseconds, for the rows that are marked `modelled`: --exit-cost 800
    #[arg(long, value_name = "NS", default_value_t = 1500)]
    pub exit_cost: u64,
    /// Only the parts with one of these in their names: --only 'Bras 2026',window
    #[arg(long, value_name = "WORD,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Prints the names of the parts and measures nothing
    #[arg(long, conflicts_with_all = ["runs", "json", "csv", "report"])]
    pub list: bool,
    /// Directory of twofold.img, guest.img, linux.img, bm.cpio, redis-linux.img and redis.cpio, for the hypervisor. Default:
    /// this workspace's, which are built if they are missing
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// The help text below the options.
pub const HELP: &str = "\
Each published number of the sources (docs/sources.md) has a row: the published change, ours, and whether ours saves more
or less than was published. A change is that of the time from the technique off to the technique on. Below are the
targets that Twofold sets itself. --all adds the published command and ours. Variants take turns in each run. The first run of each experiment is checked and not counted. If our experiment
is smaller than the published one, a line says so.

The hypervisor's rows are counted in QEMU and identical in each run, except those of Natapov 2010 and Redis: there a Linux with
two vCPUs runs at this host's pace, which takes about twelve minutes more. Without QEMU or an image, they name what is missing.

Examples:
  cargo run --release -p twofold -- bench headline --report headline.html
  cargo run --release -p twofold -- bench headline --only 'Bras 2026' --runs 21 --json bras.json
  cargo run --release -p twofold -- bench headline --exit-cost 800
  cargo run --release -p twofold -- bench headline --full --time 2h

Exit status: 1 if an interval excludes a saving that is expected, or misses a target. A row that shows neither, or that
is not measured, is not a failure.";
