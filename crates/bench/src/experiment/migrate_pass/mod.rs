// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench migrate-pass`: what each stage of one pass over a guest costs, beside the library that it uses, alone,
//! over the same bytes.
//!
//! | file | concept |
//! |---|---|
//! | `plan.rs` | from options to a guest |
//! | `guest.rs` | a stopped guest: a third zero, a third compressible, a third random |
//! | `stages.rs` | the stages, each as a migration does it, and as the library does it alone |
//! | `link.rs` | where bytes go: nowhere, or through a socket to a thread that drops them |
//! | `downtime.rs` | a guest that writes while it is sent, on the host's clock |
//! | `measure.rs` | part by part, both in turns, and the targets |

mod downtime;
mod guest;
mod link;
mod measure;
mod plan;
mod stages;

use std::process::ExitCode;

use super::progress::Progress;
use crate::options::MigratePassOptions;
use crate::results::Verdict;
use crate::stop::Stop;
use plan::Plan;

/// `twofold bench migrate-pass`. The exit status is a failure if an interval misses a target.
///
/// # Errors
///
/// Nothing was measured: a file cannot be written, or memory does not fit. A socket failed.
pub fn command(options: &MigratePassOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    let stop = Stop::on_signal()?;
    let progress = Progress::new(plan.steps())?;
    let results = measure::results(&plan, &progress, &stop)?;
    drop(progress);
    let differs = results.headline.iter().any(|row| row.verdict == Verdict::Differs);
    let code = plan.files.show(&results)?;
    Ok(if differs && !results.interrupted { ExitCode::FAILURE } else { code })
}
