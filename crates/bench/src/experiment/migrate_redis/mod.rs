// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench migrate --on hypervisor`: Debian's Linux with Redis moves between two hypervisors, each in a QEMU of its own,
//! while `redis-benchmark` sets keys in it.
//!
//! 1. The options become a [`plan`].
//! 2. The plan is measured ([`measure`]): the guest is in a [`host`], and moves to another one ([`hop`]). In each turn it moves
//!    once in each way, and stays once.
//! 3. Before the guest's first entry at the target, all of it is [`judged`]: the program of `bench migrate-compare`
//!    compares the memory files of both QEMUs, and the sections of both sides have to be the same bytes.
//! 4. A [`watcher`] outside of both QEMUs has one connection to Redis through all moves. It reads what it wrote, counts the requests
//!    that Redis has served, and knows for how long it got no answer.
//! 5. The figures of each move ([`figures`]) are reported as those of every experiment.
//!
//! The guest and its orders are those of [`twofold_launch::redis`].

mod figures;
mod guest;
mod hop;
mod host;
mod images;
mod judged;
mod measure;
mod network;
mod plan;
mod watcher;

use std::process::ExitCode;
use std::sync::Arc;

use super::progress::Progress;
use crate::options::MigrateOptions;
use crate::output;
use crate::stop::Stop;

pub use figures::record;
pub use measure::Guest;
pub use plan::Plan;

/// `twofold bench migrate --on hypervisor`.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, an image is missing, or memory does not fit. A check failed: a page or a
/// section differs, a key was lost, or a connection was dropped.
pub fn command(options: &MigrateOptions) -> anyhow::Result<ExitCode> {
    let plan = Arc::new(Plan::of(options)?);
    let stop = Stop::on_signal()?;
    let progress = Progress::new(plan.steps())?;
    if plan.control.is_some() {
        let noticed = measure::control(&plan, &progress, &stop)?;
        drop(progress);
        output::line(&format!("noticed: {noticed}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let results = measure::results(&plan, &progress, &stop)?;
    drop(progress);
    plan.files.show(&results)
}
