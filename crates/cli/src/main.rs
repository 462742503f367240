// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `twofold`.
//!
//! Invariant: standard output carries results only. A failure is one message on standard error and an exit status that
//! is not 0.

mod attach;
mod migrate;
mod run;
mod signals;
mod snapshot;
mod stat;
mod switch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use twofold_bench::output;

/// Runs arm64 guests, shows what they do, and measures how their memory is mapped, tracked and moved.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connects this terminal with the console of a guest that runs
    #[command(after_help = attach::HELP)]
    Attach(attach::Options),
    /// Experiments: each technique on and off, next to the published figures
    #[command(subcommand)]
    Bench(Box<twofold_bench::Command>),
    /// Moves a guest that runs to another machine
    #[command(after_help = migrate::HELP)]
    Migrate(migrate::Options),
    /// Runs guests
    #[command(after_help = run::HELP)]
    Run(Box<run::Options>),
    /// Writes a guest that runs into a file, from which it can go on
    #[command(after_help = snapshot::HELP)]
    Snapshot(snapshot::Options),
    /// Shows what guests do: memory, faults, exits, and their rates
    #[command(after_help = stat::HELP)]
    Stat(stat::Options),
    Switch(switch::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Attach(options) => attach::command(&options),
        Command::Bench(bench) => twofold_bench::run(&bench),
        Command::Migrate(options) => migrate::command(&options),
        Command::Run(options) => run::command(&options),
        Command::Snapshot(options) => snapshot::command(&options),
        Command::Stat(options) => stat::command(&options),
        Command::Switch(arguments) => switch::run(&arguments),
    };
    match done {
        Ok(code) => code,
        // The reader of our output has closed it (`| head`), so no message would be read.
        Err(error) if output::is_closed(&error) => ExitCode::from(CLOSED),
        Err(error) => {
            output::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// 128 plus the number of SIGPIPE.
const CLOSED: u8 = 141;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
