// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `coverage`.
//!
//! Invariant: the exit status is 0 only if each crate reaches [`LEAST`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, output, table};

use super::lines::{CRATES, ELSEWHERE, Lines, total};
use super::measure::Measured;

/// Options of `coverage`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Writes each source line with its execution count to DIR, as HTML
    #[arg(long, value_name = "DIR")]
    pub html: Option<PathBuf>,
}

/// The last lines of the command's help.
pub const HELP: &str = "Exit status: 1 if the tests execute less than 90 % of the lines of stage2 or of memory.";

/// `cargo xtask coverage`.
pub fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let measured = Measured::new(workspace)?;
    let steps = Steps::new(workspace.stop().clone());
    let programs = steps.step("build", || {
        let programs = measured.build()?;
        let words = format!("{} test programs", programs.len());
        Ok((programs, words))
    })?;
    steps.step("tests", || Ok((measured.run()?, String::new())))?;
    let files = steps.step("read", || Ok((measured.read(&programs)?, String::new())))?;
    if let Some(directory) = &options.html {
        measured.html(&programs, directory)?;
    }
    output::line(&format!("\n{}", shown(&files)))?;
    output::line(&format!("\nnot counted: {ELSEWHERE}, which is not compiled for this machine, and the tests"))?;
    let mut good = true;
    for name in CRATES {
        let total = total(&files, name);
        output::line(&format!("{name}: {} of {} lines, {:.1} %", total.covered, total.lines, total.percent()))?;
        good &= total.percent() >= LEAST;
    }
    if !good {
        output::error(&format!("the tests execute less than {LEAST} % of a crate's lines"));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The percentage of each crate's lines that the tests must execute.
const LEAST: f64 = 90.0;

fn shown(files: &BTreeMap<String, Lines>) -> String {
    let rows = files.iter().map(|(file, lines)| {
        let total = lines.total();
        let (percent, missed) = (format!("{:.1}", total.percent()), lines.missed());
        vec![file.clone(), total.lines.to_string(), total.covered.to_string(), percent, missed]
    });
    table::with_numbers(&["file", "lines", "covered", "%", "not covered"], rows, 1..4)
}
