// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench page-table`: the tables from outside, as KVM's `kvm_page_table_test` measures them.
//!
//! 1. The options become a [`plan`].
//! 2. The plan is measured ([`measure`]): the variants go through the [`stages`] in turns, or once under the hypervisor,
//!    which counts.
//! 3. After each stage of a checked run, leaves and contents are judged ([`judge`]).
//! 4. The results are reported as those of every experiment.

mod judge;
mod measure;
mod plan;
mod stages;

use std::process::ExitCode;

use super::progress::Progress;
use super::runner::Runner;
use crate::options::PageTableOptions;
use crate::stop::Stop;
use plan::Plan;

pub use stages::{Stage, Stages};

/// `twofold bench page-table`.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, memory does not fit, or the platform
/// is not available. A check failed: a stage left wrong leaves or contents.
pub fn command(options: &PageTableOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan::of(options)?;
    let stop = Stop::on_signal()?;
    let progress = Progress::new(plan.steps())?;
    let mut runner = Runner::find(plan.platform, plan.images.as_deref(), &stop, &progress)?;
    let results = measure::results(&plan, &mut runner, progress, &stop)?;
    plan.files.show(&results)
}
