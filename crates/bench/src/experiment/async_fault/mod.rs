// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench async-fault`: Natapov's `bm` in a guest whose pages are in a store.
//!
//! 1. The options become a [`plan`].
//! 2. The plan is measured: on the machine each mode gets a [`guest`] of its own in each run, in virtual time ([`measure`]); on
//!    the hypervisor each mode boots one in QEMU ([`hypervisor`]).
//! 3. The first run's array is compared with what was written ([`guest`]), and the figures are judged beside what was
//!    published ([`judge`]).
//! 4. The results are reported as those of every experiment.

mod guest;
mod hypervisor;
mod judge;
mod measure;
mod plan;

use std::process::ExitCode;

use super::progress::Progress;
use crate::options::AsyncFaultOptions;
use crate::results::{Platform, Verdict};
use crate::stop::Stop;
use plan::Plan;

pub use hypervisor::Guests;
pub use judge::{DISK, Pairs, missing_published_rows, missing_rows, mode_rows, published_rows};
pub use measure::{Score, measure, record};
pub use plan::Bm;

/// `twofold bench async-fault`. The exit status is a failure if an interval excludes a gain that is expected.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, or memory does not fit. A check
/// failed: the array differs from what was written.
pub fn command(options: &AsyncFaultOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    let stop = Stop::on_signal()?;
    let progress = Progress::new(plan.steps())?;
    let mut results = match plan.on {
        Platform::Hypervisor => hypervisor::results(&plan, &progress, &stop)?,
        Platform::Machine | Platform::Kvm => measure::results(&plan, &progress, &stop)?,
    };
    drop(progress);
    results.notes.extend(judge::ratios(&plan, &results));
    results.notes.extend(judge::means(&plan, &results));
    results.headline = judge::rows(&plan, &results);
    let differs = results.headline.iter().any(|row| row.verdict == Verdict::Differs);
    let code = plan.files.show(&results)?;
    Ok(if differs && !results.interrupted { ExitCode::FAILURE } else { code })
}

#[cfg(test)]
mod tests;
