// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold migrate`: moves a guest that runs to another machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;
use twofold_bench::output;
use twofold_launch::migrate::order::{self, Follow, Order, Report};
use twofold_launch::migrate::record::in_doubt;
use twofold_launch::socket::Remote;

/// Options of `migrate`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The guest's name, as `twofold run --name` gave it
    pub name: String,
    /// Where `twofold run --incoming` waits
    #[arg(value_name = "HOST:PORT")]
    pub to: String,
    /// The key, as on the other side: a file with 64 hexadecimal digits, which its owner alone can read
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The owner record, as on the other side: a file that both sides reach, which says which side runs the guest. It is made
    /// when the guest moves for the first time
    #[arg(long, value_name = "FILE")]
    pub owner: PathBuf,
    /// How the pages that the guest writes meanwhile are found (docs/migration.md)
    #[arg(long, value_name = "TRACKER", default_value = "adaptive", value_parser = trackers())]
    pub tracker: String,
    /// The most milliseconds for which the guest may stand still
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub downtime: u64,
    /// The most rounds in which memory is sent while the guest runs
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Moves the guest after these rounds even if it then stands still for longer; without it, the guest stays
    #[arg(long)]
    pub force: bool,
    /// Lets the guest go on at the other side at once, before its memory is there. Its pages follow, those first that it waits for.
    /// Until all are there, neither side has all of the guest: if either ends, the guest is lost
    #[arg(long, conflicts_with_all = ["tracker", "downtime", "rounds", "force", "postcopy_if_needed"])]
    pub postcopy: bool,
    /// The same with what is left if the rounds do not end because the guest writes too fast
    #[arg(long, conflicts_with = "force")]
    pub postcopy_if_needed: bool,
}

/// What `--help` has at its end.
pub const HELP: &str = "\
The guest's memory is sent while the guest runs, then what it has written meanwhile, and so on, until the rest fits --downtime. It
stands still for that rest, goes on at the other side, and ends here. If anything fails, or Ctrl-C ends this before, it goes on
here. The connection is encrypted, and authenticated by the key. Images of disks stay where they are, and both
hosts reach them at the same path.

Examples:
  (umask 077; openssl rand -hex 32 > key)
  twofold run --incoming :4444 --key key --owner /shared/web.owner     on the other machine
  twofold migrate web 192.0.2.7:4444 --key key --owner /shared/web.owner

With --postcopy, and with --postcopy-if-needed if the guest writes too fast, pages follow after the guest has changed hands. If the
link is cut then, the guest stands still at the other side where it needs a page, and the link is made again as soon as the other
side can be reached.

If the link is cut while the guest changes hands, the side that the owner record names runs it, and the other one ends it. While the
record cannot be reached, it stands still on both.

Exit status: 0 if the guest has moved, 1 if it is here. Ended by a signal, this says nothing: a guest that was not offered yet stays.";

/// The names of all trackers.
fn trackers() -> PossibleValuesParser {
    PossibleValuesParser::new(order::trackers())
}

/// `twofold migrate`.
pub fn command(options: &Options) -> anyhow::Result<ExitCode> {
    let remote = Remote::find(Some(&options.name))?;
    // The run has a working directory of its own.
    let absolute = |path: &Path| std::path::absolute(path);
    let order = Order {
        to: options.to.clone(),
        key: absolute(&options.key)?,
        record: absolute(&options.owner)?,
        tracker: options.tracker.clone(),
        downtime: Duration::from_millis(options.downtime),
        rounds: options.rounds,
        forced: options.force,
        postcopy: match (options.postcopy, options.postcopy_if_needed) {
            (true, _) => Follow::All,
            (false, true) => Follow::IfNeeded,
            (false, false) => Follow::None,
        },
    };
    let mut said = Ok(());
    let last = remote.migrate(&options.name, &order, |report| {
        said = say(report);
        said.is_ok()
    });
    said?;
    match last? {
        Report::Moved { time, bytes, after: [sent, waited], .. } if sent > 0 => {
            output::line(&format!(
                "all of {} is at {}: {:.1} s, {sent} pages followed it ({:.1} MiB on the link in all), and it waited for {waited}",
                options.name,
                options.to,
                time.as_secs_f64(),
                bytes as f64 / f64::from(1 << 20),
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        Report::Moved { time, stopped, rounds, pages, last_pages, bytes, .. } => {
            output::line(&format!(
                "{} runs at {}: {:.1} s, {rounds} rounds, {pages} pages ({:.1} MiB on the link); it stood still for {} ms, and \
                 {last_pages} pages were sent then",
                options.name,
                options.to,
                time.as_secs_f64(),
                bytes as f64 / f64::from(1 << 20),
                stopped.as_millis(),
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        Report::Stays(why) => bail!("{why}"),
        other => bail!("the run ends with {other:?}"),
    }
}

fn say(report: &Report) -> anyhow::Result<()> {
    match report {
        Report::Round { number, pages, time, left, until, downtime } => output::line(&format!(
            "round {number}: {pages} pages in {:.2} s, {left} written meanwhile; {:.1} s to go, standing still for {} ms",
            time.as_secs_f64(),
            until.as_secs_f64(),
            downtime.as_millis(),
        ))?,
        Report::InDoubt(why) => output::error(&in_doubt(why)),
        Report::Switched { stopped, left } => output::line(&format!(
            "it runs at the other side, and stood still for {} ms; {left} pages follow",
            stopped.as_millis()
        ))?,
        Report::Cut(why) => output::error(&format!(
            "the link is cut ({why}); the guest stands still at the other side where it needs a page, and the link is made again \
             as soon as the other side can be reached"
        )),
        Report::Moved { .. } | Report::Stays(_) => {}
    }
    Ok(())
}
