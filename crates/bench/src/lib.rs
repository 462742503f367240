// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments: they measure how long Twofold's operations take, and check that its dirty logs miss no write. The
//! command `twofold bench` runs them.
//!
//! Invariant: a figure is printed only if its operation ran and its outcome was checked in the same process. An unknown
//! value is absent or `null`.

mod clock;
mod compare;
mod dirty;
mod engine;
mod estimate;
mod experiment;
mod features;
mod headline;
mod host;
mod machine;
mod options;
mod oracle;
pub mod output;
mod quantity;
mod readable;
mod report;
mod results;
mod show;
mod statistics;
mod stop;

use std::process::ExitCode;

pub use options::Command;

/// Runs the chosen experiment.
///
/// # Errors
///
/// The failure, as a message for people. If the reader of our output has closed it ([`output::is_closed`]), print no
/// message.
pub fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Engine(options) => engine::command(options).map(|()| ExitCode::SUCCESS),
        Command::Contiguous(options) => engine::contiguous::command(options).map(|()| ExitCode::SUCCESS),
        Command::Oracle(options) => oracle::command(options).map(|()| ExitCode::SUCCESS),
        Command::DirtyCosts(options) => dirty::costs(options),
        Command::DirtyTable(options) => dirty::table(options),
        Command::DirtyLog(options) => experiment::dirty_log::command(options),
        Command::PageTable(options) => experiment::page_table::command(options),
        Command::AsyncFault(options) => experiment::async_fault::command(options),
        Command::Exits(options) => experiment::exits::command(options),
        Command::Migrate(options) => experiment::migrate::command(options),
        Command::MigrateTarget => experiment::migrate::target_command().map(|()| ExitCode::SUCCESS),
        Command::MigrateCompare(options) => experiment::migrate::compare_command(options),
        Command::MigrateModel(options) => experiment::migrate_model::command(options),
        Command::MigratePass(options) => experiment::migrate_pass::command(options),
        Command::Headline(options) => headline::command(options),
        Command::Compare(options) => compare::command(options),
        Command::Show(options) => show::command(options),
    }
}
