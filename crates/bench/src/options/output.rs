// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment prints, and its output files; the same for all experiments.

use std::path::PathBuf;

use clap::Args;

/// How much is printed, and the output files.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputOptions {
    /// Prints every row, the whole configuration and the machine, instead of a summary of about twelve lines
    #[arg(long, help_heading = "Output")]
    pub all: bool,
    /// Writes the figures of each run to FILE as JSON, for `compare`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Writes the figures to FILE as CSV, one line per run
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<PathBuf>,
    /// Writes a page with tables and plots to FILE, as one HTML file
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,
}

impl OutputOptions {
    /// The options that are set, each with its file.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let all = [("--json", &self.json), ("--csv", &self.csv), ("--report", &self.report)];
        all.into_iter().filter_map(|(option, file)| Some((option, file.as_ref()?)))
    }
}
