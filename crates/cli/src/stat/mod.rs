// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold stat`: what the guests of a run do, live or for programs.
//!
//! Invariant: the terminal has its settings again, however the command ends.

mod keys;
mod metrics;
mod rates;
mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::Errno;
use twofold_bench::output;
use twofold_launch::Stop;
use twofold_launch::socket::{Remote, SocketError};

use crate::signals;
use keys::Key;
use rates::Rates;

/// Options of `stat`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A guest of the run; without it, there must be one run only
    pub name: Option<String>,
    /// Prints each sample as a JSON object on a line of its own, instead of the screen
    #[arg(long, conflicts_with = "openmetrics")]
    pub json: bool,
    /// Prints one sample as OpenMetrics text, for a scraper
    #[arg(long)]
    pub openmetrics: bool,
    /// Ends after one sample, which has no rates. Implied by --openmetrics
    #[arg(long)]
    pub once: bool,
    /// Seconds from one sample to the next, 1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
}

/// What `--help` has at its end.
pub const HELP: &str = "\
Without a terminal the samples are printed as with --json. docs/stat.md explains the figures. The dirty rate is there while
a log runs, which `twofold attach NAME --command 'dirty start'` starts.

Examples:
  twofold stat
  twofold stat web --json --interval 10
  twofold stat --openmetrics > /var/lib/node_exporter/twofold.prom

Exit status: 0 if it was left, or the guests have ended; 1 if nothing runs.";

/// `twofold stat`.
pub fn command(options: &Options) -> anyhow::Result<ExitCode> {
    let remote = Remote::find(options.name.as_deref())?;
    let stop = signals::stop()?;
    if options.openmetrics {
        output::line(metrics::text(&remote.sample()?).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    if !options.json && !options.once && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return screen(&remote, Duration::from_secs(options.interval), &stop);
    }
    let mut before = None;
    loop {
        let sample = match remote.sample() {
            Ok(sample) => sample,
            Err(_) if before.is_some() => return Ok(ExitCode::SUCCESS),
            Err(why) => return Err(why.into()),
        };
        output::line(&serde_json::to_string(&Rates::between(before.as_ref(), sample.clone()))?)?;
        before = Some(sample);
        let next = Instant::now() + Duration::from_secs(options.interval);
        while !options.once && !stop.is_requested() && Instant::now() < next {
            std::thread::sleep(POLL);
        }
        if options.once || stop.is_requested() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

const POLL: Duration = Duration::from_millis(50);

/// The screen, until the user leaves it or the guests end.
fn screen(remote: &Remote, interval: Duration, stop: &Stop) -> anyhow::Result<ExitCode> {
    let mut before = remote.sample()?;
    let mut rates = Rates::between(None, before.clone());
    let mut chosen = 0;
    // It restores the terminal in a panic, too.
    let mut terminal = ratatui::try_init()?;
    let mut follow = || -> anyhow::Result<()> {
        let mut next = Instant::now() + interval;
        while !stop.is_requested() {
            terminal.draw(|frame| view::draw(frame, &rates, chosen))?;
            for key in keys::wait(io::stdin(), POLL.min(next.saturating_duration_since(Instant::now())))? {
                match key {
                    Key::Leave => return Ok(()),
                    Key::Down => chosen = (chosen + 1).min(rates.guests.len().saturating_sub(1)),
                    Key::Up => chosen = chosen.saturating_sub(1),
                }
            }
            if Instant::now() >= next {
                next = Instant::now() + interval;
                let sample = remote.sample()?;
                rates = Rates::between(Some(&before), sample.clone());
                before = sample;
            }
        }
        Ok(())
    };
    let followed = follow();
    let restored = ratatui::try_restore();
    match followed.and(restored.map_err(Into::into)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(why) if is_gone(&why) => Ok(ExitCode::SUCCESS),
        Err(why) if why.downcast_ref::<SocketError>().is_some() => {
            output::line("The guests have ended.")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => Err(why),
    }
}

/// The terminal is gone, so nothing reads an error or has settings to restore.
fn is_gone(why: &anyhow::Error) -> bool {
    why.downcast_ref::<io::Error>().is_some_and(|why| why.raw_os_error() == Some(Errno::IO.raw_os_error()))
}
