// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-log`: the dirty log from outside, as KVM's `dirty_log_perf_test` measures it.
//!
//! 1. The options become a [`plan`].
//! 2. The plan is measured ([`measure`]): guests run in turns ([`run`]), without pause ([`continuous`]), or under the
//!    hypervisor, which counts ([`counted`]).
//! 3. Each checked run is judged ([`judge`]).
//! 4. The results are reported as those of every experiment; checks as lines ([`tap`], [`digest`]).

mod continuous;
mod counted;
mod digest;
mod judge;
pub(crate) mod load;
mod measure;
mod plan;
mod run;
mod tap;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use super::progress::Progress;
use super::record::leave_out_zeroes;
use super::runner::Runner;
use super::threads;
use crate::options::DirtyLogOptions;
use crate::stop::Stop;
use plan::Plan;

pub use load::Load;
pub use run::{Check, Iteration, Run};

/// `twofold bench dirty-log`.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, memory does not fit, or the platform
/// is not available. A check failed: a log differs from the guest's writes.
pub fn command(options: &DirtyLogOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    let stop = Stop::on_signal()?;
    plan.collector.map_or(Ok(()), threads::pin)?;
    let progress = Progress::new(plan.steps())?;
    let runner = Runner::find(plan.platform, plan.images.as_deref(), &stop, &progress);
    if plan.only_checks {
        return match runner {
            Ok(mut runner) => tap::show(&measure::checks(&plan, &mut runner, progress, &stop), &stop),
            Err(why) => tap::skipped(&why),
        };
    }
    let mut results = measure::results(&plan, &mut runner?, progress, &stop)?;
    leave_out_zeroes(&mut results);
    plan.files.show(&results)
}
