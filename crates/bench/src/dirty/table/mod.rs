// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-table`: trackers against workloads. The options become a [`plan`], which is measured
//! ([`measure`]), judged ([`judge`]) and shown ([`report`]).

mod judge;
mod measure;
mod plan;
mod report;

use std::process::ExitCode;

use crate::options::DirtyTableOptions;
use crate::output;
use judge::{Report, Row};
use plan::Plan;

/// Runs `twofold bench dirty-table`; returns a failure if the adaptive tracker is neither the best nor as good as the
/// best.
pub fn command(options: &DirtyTableOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    let report = Report::of(&plan, &measure::measure(&plan)?);
    output::line(&if plan.all { report::shown(&report) } else { report::summary(&report) })?;
    if let Some(path) = &plan.json {
        output::json(path, &report)?;
    }
    Ok(if report.rows.iter().any(Row::is_missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
