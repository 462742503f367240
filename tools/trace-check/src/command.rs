// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `trace-check`: reads a file, prints its breaches.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use twofold_workspace::output;

use super::report::check;

/// Options of `trace-check`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The trace file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// The last lines of the command's help.
pub const HELP: &str = "docs/trace.md has the format and the rules. Exit status: 1 if the trace breaks a rule.";

/// Checks the trace and prints each breach; the exit status is 1 if there is one.
pub fn command(options: &Options) -> anyhow::Result<ExitCode> {
    let file = &options.file;
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let report = check(&text).with_context(|| file.display().to_string())?;
    for finding in report.lost.iter().chain(&report.breaches) {
        output::line(finding)?;
    }
    output::line(&format!("trace: {} events, {} breaches", report.events, report.breaches.len()))?;
    Ok(if report.breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
