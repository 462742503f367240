// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments: how long Twofold takes for what it does, and whether its dirty logs miss a write. The command `twofold
//! bench` is their front.
//!
//! Invariant: a figure is printed only where the operation that it is of was done and its outcome checked in the
//! same process; what is not known is absent or `null`.

mod arguments;
mod clock;
mod compare;
mod dirty;
mod engine;
mod estimate;
pub mod experiment;
mod features;
mod headline;
pub mod host;
mod machine;
mod oracle;
pub mod output;
mod readable;
pub mod report;
pub mod results;
mod show;
pub mod statistics;
mod stop;

use std::process::ExitCode;

pub use arguments::Command;

/// Does what was asked for.
///
/// # Errors
///
/// What went wrong, for a person. Where it is that nobody reads our output any more ([`output::is_closed`]) there is nobody to
/// tell.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Engine(options) => engine::command(options).map(|()| ExitCode::SUCCESS),
        Command::Oracle(options) => oracle::command(options).map(|()| ExitCode::SUCCESS),
        Command::DirtyCosts(options) => dirty::costs(options),
        Command::DirtyTable(options) => dirty::table(options),
        Command::DirtyLog(options) => experiment::dirty_log::command(options),
        Command::PageTable(options) => experiment::page_table::command(options),
        Command::Headline(options) => headline::command(options),
        Command::Compare(options) => compare::command(options),
        Command::Show(options) => show::command(options),
    }
}
