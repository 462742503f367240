// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask`: builds, runs and tests Twofold from a clean checkout.
//!
//! A command is a module here, or a crate below `tools/` if it judges the code. What commands share is
//! [`twofold_workspace`]. Invariant: the process ends with 0 only if the command succeeded and its checks passed. It
//! leaves no process running.

mod arguments;
mod build;
mod dirty_log;
mod dist;
mod doctor;
mod figures;
mod fuzz;
mod guest_option;
mod record;
mod redis;
mod redis_guest;
mod report;
mod run;
mod test;

use std::process::ExitCode;

use clap::Parser;
use twofold_launch::Stop;
use twofold_workspace::{Workspace, output, subprocess};

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let stop = Stop::default();
    subprocess::stop_with(stop.clone());
    match start(arguments, &stop) {
        Ok(code) => code,
        // The reader of the output has closed it (`| head`), so an error message would not be read.
        Err(error) if output::is_closed(&error) => ExitCode::from(CLOSED),
        Err(_) if stop.is_requested() => ExitCode::from(INTERRUPTED),
        Err(error) => {
            output::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// 128 and the number of SIGINT, as shells count.
const INTERRUPTED: u8 = 130;
/// 128 and the number of SIGPIPE.
const CLOSED: u8 = 141;

fn start(arguments: Arguments, stop: &Stop) -> anyhow::Result<ExitCode> {
    let on_signal = stop.clone();
    ctrlc::set_handler(move || {
        // A second signal ends the process at once: the clean-up that the first one started may hang.
        if on_signal.is_requested() {
            std::process::exit(INTERRUPTED.into());
        }
        on_signal.request();
    })?;
    let workspace = Workspace::find(stop.clone())?;
    match arguments.command {
        Command::Build(options) => build::command(&workspace, &options),
        Command::Coverage(options) => twofold_coverage::command(&workspace, &options),
        Command::Dist(options) => dist::command(&workspace, &options),
        Command::Doctor => doctor::command(&workspace),
        Command::Fuzz(options) => fuzz::command(&workspace, &options),
        Command::Mutants(options) => twofold_mutants::command(&workspace, &options),
        Command::Oracle(options) => twofold_oracle::command::command(&workspace, &options),
        Command::Peers(options) => twofold_peers::command(&workspace, &options),
        Command::RecordRedis(options) => record::command(&workspace, &options),
        Command::Run(options) => run::command(&workspace, &options),
        Command::Test(options) => test::command(&workspace, &options),
        Command::TraceCheck(options) => twofold_trace_check::command(&options),
    }
}
