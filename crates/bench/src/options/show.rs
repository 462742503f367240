// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `show`.

use std::path::PathBuf;

use clap::Args;

/// Options of `show`.
#[derive(Args, Clone, Debug)]
pub struct ShowOptions {
    /// The result file, as `--json` wrote it
    #[arg(value_name = "FILE.json")]
    pub file: PathBuf,
    /// Prints every row, the whole configuration and the machine, instead of a summary
    #[arg(long)]
    pub all: bool,
    /// Prints only the table of published numbers, as Markdown for docs/results.md
    #[arg(long, conflicts_with = "all")]
    pub markdown: bool,
    /// Writes one line per run to FILE, as CSV
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Writes a page with tables and plots to FILE, as one HTML file
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
}

pub const HELP: &str = "\
Examples:
  cargo run --release -p twofold -- bench show results.json --all
  cargo run --release -p twofold -- bench show results.json --report results.html
  cargo run --release -p twofold -- bench show headline.json --markdown";
