// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench show`: prints a result file again.

use std::process::ExitCode;

use crate::options::ShowOptions;
use crate::output;
use crate::report::{self, Detail};
use crate::results::Results;

/// `twofold bench show`.
///
/// # Errors
///
/// A file cannot be read or written, or is not a result file of this program.
pub fn command(options: &ShowOptions) -> anyhow::Result<ExitCode> {
    let results = Results::read(&options.file)?;
    output::line(&match options {
        ShowOptions { markdown: true, .. } => report::published::markdown(&results.headline),
        ShowOptions { all, .. } => report::text(&results, Detail::of(*all)),
    })?;
    if let Some(path) = &options.csv {
        report::write_csv(path, &results)?;
    }
    if let Some(path) = &options.report {
        report::write_html(path, &results)?;
    }
    Ok(ExitCode::SUCCESS)
}
