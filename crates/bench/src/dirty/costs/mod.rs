// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-costs`: how long each operation of the dirty log takes, beside its target. The options name
//! [`rows`], which are measured ([`measure`]), judged ([`judge`]) and shown ([`report`]).

mod judge;
mod measure;
mod report;
mod rows;

use std::process::ExitCode;

use crate::options::DirtyCostsOptions;
use crate::output;
use judge::{Judged, Report};
use rows::{ROWS, Row};

/// Runs `twofold bench dirty-costs`; returns a failure if any target is missed.
pub fn command(options: &DirtyCostsOptions) -> anyhow::Result<ExitCode> {
    let size = options.size.bytes();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| chosen(row.name, &options.only)).collect();
    if rows.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        anyhow::bail!(
            "there is no operation with `{}` in its name; there are:\n  {}",
            options.only.join("` or `"),
            names.join("\n  ")
        );
    }
    let report = Report::of(&measure::measure(&rows, size, options.runs)?, size, options.runs);
    output::line(&report::shown(&report))?;
    if let Some(path) = &options.json {
        output::json(path, &report)?;
    }
    Ok(if report.rows.iter().any(Judged::is_missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns whether the name contains one of `only`; true if `only` is empty.
fn chosen(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_operation_has_is_answered_with_all() {
        let (size, only) = ("1G".parse().unwrap(), vec!["nosuch".to_owned()]);
        let error = command(&DirtyCostsOptions { size, runs: 1, json: None, only }).unwrap_err().to_string();
        assert!(ROWS.iter().all(|row| error.contains(row.name)), "{error}");
    }
}
