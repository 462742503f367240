// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `twofold`.
//!
//! Invariant: standard output carries results only. A failure is one message on standard error and an exit status that
//! is not 0.

mod switch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use twofold_bench::output;

/// Measures how the memory of arm64 guests is mapped, tracked and moved.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Experiments: each technique on and off, next to the published figures
    #[command(subcommand)]
    Bench(twofold_bench::Command),
    Switch(switch::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(bench) => twofold_bench::run(&bench),
        Command::Switch(arguments) => switch::run(&arguments),
    };
    match result {
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
