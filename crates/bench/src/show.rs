// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench show`: a result file once more, as the run itself told it.

use std::process::ExitCode;

use crate::arguments::ShowOptions;
use crate::output;
use crate::report;
use crate::results::Results;

/// `twofold bench show`.
///
/// # Errors
///
/// A file that cannot be read or written, or is none of ours.
pub fn command(options: &ShowOptions) -> anyhow::Result<ExitCode> {
    let results = Results::read(&options.file)?;
    output::line(&report::text(&results))?;
    if let Some(path) = &options.csv {
        report::write_csv(path, &results)?;
    }
    if let Some(path) = &options.report {
        report::write_html(path, &results)?;
    }
    Ok(ExitCode::SUCCESS)
}
