// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench migrate`: a key-value store that moves between two processes while it serves requests.
//!
//! 1. The options become a [`plan`].
//! 2. The plan is measured ([`measure`]): the bench and a [`process`] that it starts are a [`node`] each, and the guest
//!    moves between them, back and forth. The bench sends the other node its [`orders`].
//! 3. At each switch, before the guest's first entry, a third program compares the memory of both ([`compare`]); it gets
//!    [`lists`] of pages. It shares no code with the migration.
//! 4. The figures of each move ([`figures`]) are reported as those of every experiment.
//!
//! | in a node | |
//! |---|---|
//! | [`guest`], [`pace`], [`meter`] | the guest: vCPUs as threads, how fast they serve, and what they have served |
//! | [`place`] | the machine that a guest is made on, whose memory is a file |
//! | [`source`], [`serve`] | what a migration asks of the guest that leaves, and of its pages after it has left |
//! | [`target`], [`judged`], [`arrivals`] | what makes a guest of what comes; pages that come later, and vCPUs that wait for them |
//! | [`link`] | the sockets |
//!
//! The arbiter is the owner record of [`twofold_launch`].

mod arrivals;
pub mod compare;
mod dry_run;
mod figures;
mod guest;
mod judged;
mod link;
pub mod lists;
mod measure;
mod meter;
mod node;
mod orders;
mod pace;
mod place;
mod plan;
mod process;
mod serve;
pub mod settings;
mod source;
mod target;

use std::process::ExitCode;

use super::{migrate_redis, progress::Progress};
use crate::options::MigrateOptions;
use crate::output;
use crate::results::Platform;
use crate::stop::Stop;
use plan::Plan;

pub use compare::command as compare_command;
pub use process::command as target_command;

/// `twofold bench migrate`.
///
/// # Errors
///
/// Nothing was measured: options contradict each other, a file cannot be written, or memory does not fit. A check failed:
/// a page or a word of the store differs, or a process ended.
pub fn command(options: &MigrateOptions) -> anyhow::Result<ExitCode> {
    if options.on == Platform::Hypervisor {
        return migrate_redis::command(options);
    }
    let plan = Plan::of(options)?;
    let stop = Stop::on_signal()?;
    if plan.is_dry {
        output::line(&dry_run::text(&plan)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(control) = plan.control {
        let noticed = measure::control(&plan, control, &stop)?;
        noticed.iter().try_for_each(|noticed| output::line(&format!("noticed: {noticed}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new(plan.steps())?;
    let results = measure::results(&plan, progress, &stop)?;
    plan.files.show(&results)
}
