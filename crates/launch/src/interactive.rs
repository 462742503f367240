// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine for a user: the terminal or standard output has its consoles, and other processes of the user find it.
//!
//! Invariant: the terminal has its settings again, and the run's socket is gone, however this returns.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::thread;

use thiserror::Error;

use crate::hub::{Claim, Hub};
use crate::machine::Loaded;
use crate::migrate::fetch::Fetched;
use crate::migrate::target::{Coming, IncomingError};
use crate::outcome::Outcome;
use crate::owner::{self, OwnerError};
use crate::run::{Launch, RunError, read_lines};
use crate::sample::Known;
use crate::session::Session;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::socket::Server;
use crate::terminal::{self, RawMode};

/// Why there is no outcome.
#[derive(Debug, Error)]
pub enum InteractiveError {
    /// The machine did not end by itself.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}")]
    Terminal(#[from] io::Error),
    /// There is no such guest.
    #[error("--attach: {0}")]
    NoGuest(String),
    /// The guest of a disk is elsewhere.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The guest cannot be restored.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The guest did not come.
    #[error("the guest did not come: {0}")]
    Incoming(#[from] IncomingError),
}

/// Where guests come from.
pub enum Origin {
    /// They start here.
    Start,
    /// The only one is restored from a file.
    File(Box<Snapshot>),
    /// The only one comes from another machine.
    Link(Box<Coming>),
}

impl Origin {
    /// Lets a guest that was not started go on. The claim ends when all of the guest is here.
    fn go_on(self, session: &Arc<Session>, claim: Option<Claim>) -> Result<(), InteractiveError> {
        match self {
            Self::Start => Ok(()),
            Self::File(snapshot) => Ok(snapshot.restore(session)?),
            Self::Link(coming) => {
                let name = coming.carried.known().name;
                let Some(fetching) = (*coming).go_on(session)? else {
                    note(&format!("{name} runs here now"));
                    return Ok(());
                };
                note(&format!("{name} runs here now, and pages of it follow"));
                thread::spawn(move || {
                    match fetching.wait() {
                        Ok(Fetched { left: 0, asked, pages, zeroes, time, .. }) => note(&format!(
                            "all pages of {name} are here after {:.1} s: {pages}, and {zeroes} of zeroes; it waited for {asked}",
                            time.as_secs_f64()
                        )),
                        // It has ended.
                        Ok(_) => {}
                        Err(why) => note(&format!("the pages of {name} do not come any more: {why}")),
                    }
                    drop(claim);
                });
                Ok(())
            }
        }
    }
}

/// Runs guests that have their consoles on the channel ([`CONSOLES`](twofold_abi::bundle::flags::CONSOLES)). Standard input and
/// output are the console of the guest `attached`. Without one, a terminal is the first guest's, and otherwise the lines of all
/// guests are printed, with their names if there are several.
///
/// # Errors
///
/// [`InteractiveError`].
pub fn run(
    launch: &Launch<'_>,
    guests: &[Known],
    from: Origin,
    attached: Option<&str>,
) -> Result<Outcome, InteractiveError> {
    let session = Arc::<Session>::default();
    let names: Vec<_> = guests.iter().map(|guest| guest.name.clone()).collect();
    let hub = Hub::new(Arc::clone(&session), &names);
    if let Loaded::Guest { bundle, .. } = &launch.machine.loaded {
        hub.started_with(bundle);
        if matches!(from, Origin::Start) {
            owner::take(&bundle.devices)?;
        }
    }
    // Until the only guest is whole here, no command of another process may let it go on.
    let claim = if matches!(from, Origin::Start) { None } else { hub.claim(0) };
    let server = Server::start(&hub, guests.to_vec());
    if let Err(why) = &server {
        // The guests do without it.
        let _ = writeln!(io::stderr(), "`twofold attach` and `twofold stat` will not find this run: {why}");
    }
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let shown = attached.or(names.first().map(String::as_str).filter(|_| is_terminal));
    let mut raw = None;
    let drive = |_: &Session| match (from.go_on(&session, claim)?, shown) {
        ((), Some(name)) => {
            if is_terminal {
                println(&format!("The console of {name}. Ctrl-] opens the monitor; `quit` there ends the guests."));
                // Ctrl-C ends the run up to here.
                raw = Some(RawMode::begin()?);
            }
            let pumps = hub.spawn();
            let connected = terminal::connect(&hub, name, is_terminal, &launch.stop);
            // They end with the machine, or what stops this ends that.
            drop(pumps);
            connected.map(drop).map_err(|why| InteractiveError::NoGuest(why.trim_end().to_owned()))
        }
        ((), None) => {
            lines(&hub, &names);
            Ok(())
        }
    };
    let ended = launch.run_consoles(&session, drive);
    if raw.is_some() {
        drop(raw);
        // The guest's console may end in the middle of a line.
        println("");
    }
    drop(server);
    Ok(ended?.0)
}

/// Prints each line of each guest, to the end of the machine.
fn lines(hub: &Arc<Hub>, names: &[String]) {
    thread::scope(|scope| {
        for (guest, name) in (0..).zip(names) {
            let Some(console) = Hub::open(hub, guest) else { continue };
            let prefix = if names.len() > 1 { format!("[{name}] ") } else { String::new() };
            scope.spawn(move || read_lines(console.output, |line| writeln!(io::stdout(), "{prefix}{line}").is_ok()));
        }
        // After the readers are there, so that none misses the beginning.
        hub.spawn();
    });
}

/// The terminal may be closed; the signal that says so ends the run.
fn println(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Says something that the user should know, on standard error: a terminal in raw mode needs the carriage's return.
pub(crate) fn note(text: &str) {
    let _ = write!(io::stderr(), "{text}\r\n");
}
