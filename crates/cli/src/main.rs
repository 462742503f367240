// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `twofold`.
//!
//! Invariant: results go to standard output and nothing else does; whatever went wrong is one message on standard error and an
//! exit status that is not 0.

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
    /// Experiments: each technique on and off, beside what was published of it
    #[command(subcommand)]
    Bench(twofold_bench::Command),
}

fn main() -> ExitCode {
    let Command::Bench(bench) = Arguments::parse().command;
    match twofold_bench::run(&bench) {
        Ok(code) => code,
        // The reader of our output is gone (`| head`): there is nobody to tell.
        Err(error) if output::is_closed(&error) => ExitCode::from(CLOSED),
        Err(error) => {
            output::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// 128 and the number of SIGPIPE.
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
