// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold attach`: a second terminal for a guest, or one line of the monitor for it.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use twofold_bench::output;
use twofold_launch::socket::Remote;
use twofold_launch::terminal::{self, End, Guests, RawMode};

use crate::signals;

/// Options of `attach`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The guest's name, as `twofold run --name` gave it
    pub name: String,
    /// Gives the monitor this line instead, and prints its answer
    #[arg(long, value_name = "LINE")]
    pub command: Option<String>,
}

/// What `--help` has at its end.
pub const HELP: &str = "\
Every key goes to the guest, Ctrl-C too. Ctrl-] opens the monitor, whose `help` lists its commands: `leave` ends this
command, and the guest goes on.

Examples:
  twofold attach web
  twofold attach web --command stop
  twofold attach web --command 'reset db'

Exit status: 0 if the terminal was left or the guests have ended, 1 if there is no such guest or a command is refused.";

/// `twofold attach`.
pub fn command(options: &Options) -> anyhow::Result<ExitCode> {
    let remote = Remote::find(Some(&options.name))?;
    if let Some(line) = &options.command {
        let answer = remote.command(&options.name, line);
        output::line(answer.trim_end())?;
        let is_done = !answer.contains(": refused: ") && !answer.starts_with("there is no ");
        return Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let stop = signals::stop()?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if is_terminal {
        output::line(&format!("The console of {}. Ctrl-] opens the monitor; `leave` there ends this.", options.name))?;
    }
    let raw = is_terminal.then(RawMode::begin).transpose()?;
    let ended = terminal::connect(&remote, &options.name, is_terminal, &stop);
    drop(raw);
    match ended {
        Ok(End::Ended) if is_terminal => output::line("\nThe guests have ended.")?,
        Ok(End::Ended | End::Left) => {}
        Ok(End::Stopped) => return Ok(ExitCode::from(signals::INTERRUPTED)),
        Err(why) => bail!("{}", why.trim_end()),
    }
    Ok(ExitCode::SUCCESS)
}
