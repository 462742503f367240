// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `headline`.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputOptions;
use super::size::Span;

/// Options of `headline`.
#[derive(Args, Clone, Debug, Default)]
pub struct HeadlineOptions {
    /// The sources' own sizes, by a small piece of memory that is mapped over and over; takes an hour
    #[arg(long)]
    pub full: bool,
    /// Runs of each variant; without it as many as there is time for, 7 at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// How long all of it may take, but for the least number of runs: --time 10m. Without it 5 minutes, with --full an hour
    #[arg(long, value_name = "TIME")]
    pub time: Option<Span>,
    /// Nanoseconds of a guest's exit on the machine that is thought of, in the rows that are marked `modelled`: --exit-cost 800
    #[arg(long, value_name = "NS", default_value_t = 1500)]
    pub exit_cost: u64,
    /// Only the parts with one of these in their names: --only S0,window
    #[arg(long, value_name = "WORD,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Prints the names of the parts and measures none
    #[arg(long, conflicts_with_all = ["runs", "json", "csv", "report"])]
    pub list: bool,
    /// Where twofold.img and guest.img are, for what is counted on the hypervisor; without it this workspace's, which are built
    /// where they are missing
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// What stands below the options.
pub const HELP: &str = "\
Each published number of the sources S0 to S4 has a row: with the command that it was published with, ours beside it with the
technique off and on, and whether it has the same shape. Below them are the bars that Twofold sets itself. Variants take turns
in each run; each experiment's first run is checked and not counted. Where ours is smaller than theirs, a line says so.

The hypervisor's rows are counted in QEMU and the same in each run; without a QEMU or an image they say what is missing.

Examples:
  cargo run --release -p twofold -- bench headline --report headline.html
  cargo run --release -p twofold -- bench headline --only S0 --runs 21 --json s0.json
  cargo run --release -p twofold -- bench headline --exit-cost 800
  cargo run --release -p twofold -- bench headline --full --time 2h

Exit status: 1 where an interval excludes a gain that should be there; a row that is inconclusive or not measured is no failure.";
