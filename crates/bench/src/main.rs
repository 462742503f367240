// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold-bench`: how long Twofold takes for what it does, and whether its dirty logs miss a write.
//!
//! Invariant: a figure is printed only where the operation that it is of was done and its outcome checked in the
//! same process; what is not known is absent or `null`.

mod arguments;
mod clock;
mod dirty;
mod engine;
mod features;
mod machine;
mod oracle;
mod output;
mod statistics;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Engine(options) => engine::command(&options).map(|()| ExitCode::SUCCESS),
        Command::Oracle(options) => oracle::command(&options).map(|()| ExitCode::SUCCESS),
        Command::DirtyCosts(options) => dirty::costs(&options),
        Command::DirtyTable(options) => dirty::table(&options),
    };
    match result {
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
