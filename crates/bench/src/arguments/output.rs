// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where an experiment's figures go, the same for all of them.

use std::path::PathBuf;

use clap::Args;

/// Files beside the table on standard output.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputOptions {
    /// Writes the figures of each run to FILE as JSON, for `compare`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Writes the figures of each run to FILE as CSV, a line for each
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,
    /// Writes a page with tables and plots to FILE, as HTML in one piece
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

impl OutputOptions {
    /// The options that were given, each with its file.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let all = [("--json", &self.json), ("--csv", &self.csv), ("--report", &self.report)];
        all.into_iter().filter_map(|(option, file)| Some((option, file.as_ref()?)))
    }
}
