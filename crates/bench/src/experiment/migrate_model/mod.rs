// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench migrate-model`: a guest that writes while it moves, with each tracker, in virtual time.
//!
//! Kolothum's claim (2023) is that a guest does its work sooner while it is migrated if hardware records a part of its
//! writes. The driver of pre-copy and the dirty log are the real ones. What they execute is counted and charged.
//!
//! | file | concept |
//! |---|---|
//! | `plan.rs` | from options to guests |
//! | `prices.rs` | what is charged, with the sources |
//! | `events.rs` | a CPU that counts what the engine executes |
//! | `load.rs` | the guest's writes, and each vCPU's clock |
//! | `clocks.rs` | the migration's clock, and how vCPUs follow it |
//! | `migration.rs` | one guest that moves, once |
//! | `measure.rs`, `break_even.rs`, `judge.rs` | all runs; the table of loads; the targets |

mod break_even;
mod clocks;
mod events;
mod judge;
mod load;
mod measure;
mod migration;
mod plan;
mod prices;

use std::process::ExitCode;

use super::progress::Progress;
use crate::options::MigrateModelOptions;
use crate::output;
use crate::results::Verdict;
use crate::stop::Stop;
use plan::Plan;

pub use judge::{LOADS, TRACKERS, missing_rows, rows_of};
pub use measure::record;
pub use migration::migrate;
pub use plan::Guest;

/// `twofold bench migrate-model`. The exit status is a failure if an interval misses a target.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, or memory does not fit. A check
/// failed: a page was sent that is not as the guest left it.
pub fn command(options: &MigrateModelOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    let stop = Stop::on_signal()?;
    let progress = Progress::new(plan.steps())?;
    let mut results = measure::results(&plan, &progress, &stop)?;
    let rows = break_even::rows(&plan, &progress, &stop)?;
    drop(progress);
    results.notes.extend(break_even::sentences(&rows));
    results.headline = judge::rows(&plan, &results);
    let differs = results.headline.iter().any(|row| row.verdict == Verdict::Differs);
    if !rows.is_empty() {
        output::line(&break_even::shown(&rows))?;
    }
    let code = plan.files.show(&results)?;
    Ok(if differs && !results.interrupted { ExitCode::FAILURE } else { code })
}

#[cfg(test)]
mod tests;
