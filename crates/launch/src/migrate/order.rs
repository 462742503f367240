// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order to move a guest, from another process of the user ([`socket`](crate::socket)), and what comes of it.
//!
//! Invariant: an order that is given up, because its process ends, cancels the move, as far as the guest was not offered. It never
//! gives up a guest that runs elsewhere.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use twofold_memory::dirty::Tracker;
use twofold_migration::Cancel;
use twofold_migration::plan::Plan;
use twofold_migration::precopy::Progress;

use super::link;
use super::record::Record;
use super::source::{self, Moved, News, Options, Postcopy};
use crate::hub::Hub;
use crate::{interactive, monitor, owner};

/// How a guest is to move.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The target, as HOST:PORT.
    pub to: String,
    /// The file with the key that both sides have.
    pub key: PathBuf,
    /// The owner record that both sides can reach.
    pub record: PathBuf,
    /// The name of the tracker.
    pub tracker: String,
    /// How long the guest may stand still.
    pub downtime: Duration,
    /// The most rounds while it runs.
    pub rounds: u32,
    /// Whether it is stopped after these rounds however much is left.
    pub forced: bool,
    /// Whether pages of its RAM come after it has changed hands.
    pub postcopy: Follow,
}

/// Which pages of a guest's RAM come after it has changed hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Follow {
    /// None.
    #[default]
    None,
    /// Those that are left if the rounds do not end.
    IfNeeded,
    /// All.
    All,
}

/// The names of all trackers.
#[must_use]
pub fn trackers() -> [&'static str; 5] {
    Tracker::ALL.map(Tracker::name)
}

/// What comes of an order, a line of JSON each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// A round has ended.
    Round {
        /// Its number, from 1.
        number: u64,
        /// The pages that it sent.
        pages: u64,
        /// How long it took.
        time: Duration,
        /// The pages that the guest has written meanwhile.
        left: u64,
        /// The time that is left until the guest runs at the target, if all goes on like this.
        until: Duration,
        /// How long it will stand still then.
        downtime: Duration,
    },
    /// The guest stands still, and the record does not say which side has it.
    InDoubt(String),
    /// It runs at the target, and pages have yet to follow.
    Switched {
        /// How long it stood still, as this side knows it.
        stopped: Duration,
        /// How many pages.
        left: u64,
    },
    /// The link is cut, and pages have yet to follow. It is made again as soon as the target can be reached.
    Cut(String),
    /// It runs at the target. The last report.
    Moved {
        /// How long it all took.
        time: Duration,
        /// How long the guest stood still, as this side knows it.
        stopped: Duration,
        /// Rounds while it ran.
        rounds: u64,
        /// Pages that were sent, each time.
        pages: u64,
        /// Those sent while it stood still.
        last_pages: u64,
        /// Bytes of the stream.
        bytes: u64,
        /// Pages that were sent after it had changed hands, and those of them that it waited for.
        after: [u64; 2],
    },
    /// It is here. The last report.
    Stays(String),
}

/// Carries an order out, and reports to the process that gave it.
pub(crate) fn serve(hub: &Arc<Hub>, guest: u16, order: &str, stream: &UnixStream) -> std::io::Result<()> {
    let cancel = Arc::new(Cancel::new());
    let has_switched = Arc::new(AtomicBool::new(false));
    let (mut theirs, ended, is_away) = (stream.try_clone()?, Arc::clone(&cancel), Arc::clone(&has_switched));
    thread::spawn(move || {
        // The process says nothing more, so this returns when it has gone.
        let _ = theirs.read(&mut [0]);
        if !is_away.load(Ordering::Acquire) {
            ended.cancel();
        }
    });
    let say = |report: Report| -> std::io::Result<()> {
        let line = serde_json::to_string(&report)?;
        writeln!(&*stream, "{line}")
    };
    let mut report = |news: News<'_>| {
        // A process that has gone cancels the move by its end.
        let _ = say(match news {
            News::Round(round) => round_of(round),
            News::Stops => return,
            News::InDoubt(why) => Report::InDoubt(why.to_owned()),
            News::Offered => return has_switched.store(true, Ordering::Release),
            News::Switched(moved, left) => Report::Switched { stopped: moved.stopped, left },
            News::Cut(why) => Report::Cut(why.to_owned()),
            News::Moved(moved) => moved_of(moved),
        });
    };
    match carry_out(hub, guest, order, &cancel, &mut report) {
        Ok(()) => Ok(()),
        Err(why) => say(Report::Stays(why)),
    }
}

fn carry_out(
    hub: &Arc<Hub>,
    guest: u16,
    order: &str,
    cancel: &Cancel,
    report: &mut dyn FnMut(News<'_>),
) -> Result<(), String> {
    let order: Order = serde_json::from_str(order).map_err(|why| why.to_string())?;
    let tracker = Tracker::ALL.into_iter().find(|tracker| tracker.name() == order.tracker);
    let options = Options {
        me: owner::this(),
        to: order.to,
        key: link::key(&order.key).map_err(|why| why.to_string())?,
        record: Record::new(&order.record),
        tracker: tracker.ok_or_else(|| format!("there is no tracker {:?}", order.tracker))?,
        downtime: order.downtime,
        rounds: order.rounds,
        forced: order.forced,
        postcopy: match order.postcopy {
            Follow::None => Postcopy::Off,
            Follow::IfNeeded => Postcopy::IfNeeded,
            Follow::All => Postcopy::AtOnce,
        },
        log: None,
    };
    // Before it is looked whether the guest runs: two moves of one guest would let it run twice.
    let _claim = hub.claim(guest).ok_or(monitor::CLAIMED)?;
    let bundle = hub.bundle().ok_or("this run does not know what its guests were started with")?;
    let name = hub.names().nth(guest.into()).unwrap_or_default();
    let mut news = |news: News<'_>| {
        match &news {
            News::Switched(_, left) => {
                interactive::note(&format!("{name} runs at {} now, and {left} of its pages follow", options.to));
            }
            News::Cut(why) => interactive::note(&format!(
                "the link by which pages of {name} follow it is cut ({why}). {name} stands still at {} where it needs one. This \
                 side tries to make the link again",
                options.to
            )),
            News::Moved(moved) if moved.after[0] == 0 => {
                interactive::note(&format!("{name} runs at {} now", options.to));
            }
            News::Moved(_) => interactive::note(&format!("all pages of {name} are at {} now", options.to)),
            News::Round(_) | News::Stops | News::Offered | News::InDoubt(_) => {}
        }
        report(news);
    };
    source::send(hub.session(), guest, bundle, &options, cancel, &mut news).map(drop).map_err(|why| why.to_string())
}

fn moved_of(moved: &Moved) -> Report {
    let sent = moved.sent;
    Report::Moved {
        time: sent.time,
        stopped: moved.stopped,
        rounds: sent.rounds,
        pages: sent.pages,
        last_pages: sent.last_pages,
        bytes: sent.bytes,
        after: moved.after,
    }
}

fn round_of(round: &Progress<'_>) -> Report {
    let forecast = match round.plan {
        Plan::Stop(forecast) | Plan::Round(forecast) | Plan::Throttle(_, forecast) | Plan::Never(forecast) => forecast,
    };
    Report::Round {
        number: round.round,
        pages: round.pages,
        time: round.time,
        left: round.left,
        until: forecast.total,
        downtime: forecast.downtime,
    }
}
