// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The side that a guest leaves.
//!
//! Invariants: if the guest was not offered, it goes on here. From the offer on it stands still here until the record says
//! which side has it: this side asks again as long as there is no answer, because both sides may have the guest's memory.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use twofold_abi::channel::{Command, GuestState};
use twofold_memory::dirty::Tracker;
use twofold_migration::commit::{Embedder, Event, Owner, Ownership, Request, Side, State};
use twofold_migration::plan::{Throttle, Wanted};
use twofold_migration::precopy::{self, Precopy, Progress, Sent};
use twofold_migration::sealed::Key;
use twofold_migration::stream::Compression;
use twofold_migration::{Answers, Cancel, Runtime, Section};

use super::carried::Carried;
use super::link::{self, LinkError};
use super::memory;
use super::record::{Record, RecordError};
use super::serve::Follow;
use super::{ASK_AGAIN, Clock, section};
use crate::bundle::Bundle;
use crate::owner;
use crate::saved::sections;
use crate::session::Session;
use crate::snapshot::{OWNER, name};

pub use twofold_migration::precopy::Postcopy;

/// How a guest is to move.
#[derive(Clone, Debug)]
pub struct Options {
    /// This side, as the record names it. No two machines have the same name.
    pub me: Owner,
    /// The target, as HOST:PORT.
    pub to: String,
    /// The key that both sides have.
    pub key: Key,
    /// The record that both sides can reach.
    pub record: Record,
    /// How writes are tracked.
    pub tracker: Tracker,
    /// How long the guest may stand still.
    pub downtime: Duration,
    /// The most rounds while it runs.
    pub rounds: u32,
    /// Whether it is stopped after these rounds however much is left.
    pub forced: bool,
    /// Whether pages of its RAM come after it has changed hands: none, those that are left if the rounds do not end, or all.
    pub postcopy: Postcopy,
    /// For a negative control: what the dirty log says in place of what it has found.
    pub log: Option<ChangeLog>,
}

/// Changes a word of a dirty log: its first page's number in the memslot, and its bits.
pub type ChangeLog = fn(first_page: u64, mask: u64) -> u64;

/// What comes of it meanwhile.
pub enum News<'a> {
    /// A round has ended.
    Round(&'a Progress<'a>),
    /// The guest is about to be stopped for the last round.
    Stops,
    /// It was offered: it cannot be cancelled any more.
    Offered,
    /// This side is in doubt, and why the record does not answer.
    InDoubt(&'a str),
    /// The guest runs elsewhere, and this number of its pages has yet to follow.
    Switched(&'a Moved, u64),
    /// The link is cut before all of them have. It is made again as soon as the target can be reached.
    Cut(&'a str),
    /// The guest runs elsewhere, and is about to end here: its machine may end with it.
    Moved(&'a Moved),
}

/// A guest that has moved.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// What was sent.
    pub sent: Sent,
    /// From the time at which the stop of the guest began to the time at which this side learned that it runs elsewhere.
    pub stopped: Duration,
    /// Pages that were sent after it had changed hands, each time, and those of them that it waited for.
    pub after: [u64; 2],
}

/// Why a guest stays.
#[derive(Debug, Error)]
pub enum MoveError {
    /// It does not run.
    #[error("the guest does not run")]
    NotRunning,
    /// Its bundle cannot be read, or it has what does not move.
    #[error("the guest cannot move: {0}")]
    Unfit(String),
    /// The record cannot be used, or is another guest's.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Another run has the guest.
    #[error(
        "the owner record {0} says that another run has the guest; if that run has ended, remove the file, or give another one"
    )]
    Owner(PathBuf),
    /// There is no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The guest was not offered.
    #[error("{0}; the guest goes on here")]
    Failed(#[from] precopy::Failed),
    /// It was offered, and the target has not taken it.
    #[error("the target did not take the guest ({0}); the guest goes on here")]
    TakenBack(String),
    /// It runs elsewhere, and this side has given up before all of its pages were there.
    #[error(
        "the guest is the target's, and this side has given up before all of its pages were there ({0}): it stands still there \
         where it needs one, and is lost"
    )]
    Lost(String),
    /// It was taken back, and does not go on.
    #[error("the target did not take the guest, and it does not go on here: {0}")]
    NotContinued(String),
    /// The machine has ended while this side was in doubt.
    #[error(
        "the machine has ended while the guest changed hands; it runs at the target if the target has all of it, and otherwise it \
         is lost"
    )]
    Ended,
}

/// Moves guest number `guest`, which `bundle` has started, and ends it here. `cancel` ends this early: the guest stays, unless it
/// was offered. After a post-copy's switch-over it has an effect only while the link is cut: the guest is given up.
///
/// # Errors
///
/// [`MoveError`]: the guest is here, but with [`MoveError::Lost`].
pub fn send(
    session: &Session,
    guest: u16,
    bundle: &Bundle,
    options: &Options,
    cancel: &Cancel,
    news: &mut dyn FnMut(News<'_>),
) -> Result<Moved, MoveError> {
    let own = Carried::of(bundle, guest).map_err(|why| MoveError::Unfit(why.to_string()))?;
    if let Some(image) = own.devices.shared_with(&bundle.devices) {
        let why = format!("it writes to the disk {}, which other guests here have, too", image.display());
        return Err(MoveError::Unfit(why));
    }
    let memory = own.hello().memory;
    if memory > memory::MEMORY_MAX {
        return Err(MoveError::Unfit(format!("it has {} GiB of memory, and 63 GiB are the most", memory >> 30)));
    }
    if session.state(guest) != Some(GuestState::Running) {
        return Err(MoveError::NotRunning);
    }
    let (reader, writer) = link::connect(&options.to, &options.key)?;
    let me = options.me;
    let owned = options.record.open(me, &own.known().name)?;
    if owned.owner != me {
        return Err(MoveError::Owner(options.record.path().to_owned()));
    }
    let clock = Clock::new();
    let mut side = Side::new(me, State::Running { owned });
    let mut host =
        Host { session, guest, own: &own, record: &options.record, error: None, stopped: None, clock: &clock, news };
    let (ram, hello) = (memory::Source::new(session, guest, own.slots(), options), own.hello());
    let precopy = Precopy {
        ram: &ram,
        hello: hello.clone(),
        wanted: Wanted {
            downtime: options.downtime,
            fixed: options.downtime.min(FIXED) / 2,
            rounds: options.rounds,
            throttle: 0,
            forced: options.forced,
        },
        limit: None,
        compression: Compression::Lz4,
        postcopy: options.postcopy,
        runtime: &clock,
        cancel,
    };
    let mut answers = Answers::new(reader);
    let offered = precopy.run(vec![writer], Some(&mut answers), &mut side, &mut host)?;
    (host.news)(News::Offered);
    let why = match answers.taken() {
        Ok(now) => {
            side.raise(Event::Record(now), &mut host);
            String::new()
        }
        Err(why) => {
            side.raise(Event::Cancel, &mut host);
            offered.broken.map_or_else(|| why.to_string(), |broken| broken.to_string())
        }
    };
    while let State::InDoubt { .. } = side.state() {
        if session.has_ended() {
            return Err(MoveError::Ended);
        }
        let why = host.error.take().unwrap_or_default();
        (host.news)(News::InDoubt(&why));
        clock.wait(ASK_AGAIN);
        side.raise(Event::Tick, &mut host);
    }
    match side.state() {
        State::Idle { .. } => {
            let stopped = clock.now().saturating_sub(host.stopped.unwrap_or_default());
            let mut moved = Moved { sent: offered.sent, stopped, after: [0; 2] };
            if let Some((left, outgoing)) = offered.postcopy {
                (host.news)(News::Switched(&moved, left.left()));
                let mut follow = Follow { ram: &ram, hello: &hello, options, left, outgoing, answers };
                follow.all(&clock, cancel, &mut moved, host.news)?;
                moved.sent.time = clock.now();
            }
            (host.news)(News::Moved(&moved));
            host.command(Command::Quit);
            Ok(moved)
        }
        _ => Err(host.error.map_or(MoveError::TakenBack(why), MoveError::NotContinued)),
    }
}

/// Of the downtime, what state and commit are taken to need at most.
const FIXED: Duration = Duration::from_millis(200);

/// What the migration asks of this side.
struct Host<'a> {
    session: &'a Session,
    guest: u16,
    own: &'a Carried,
    record: &'a Record,
    /// Why the record or the hypervisor did not answer last.
    error: Option<String>,
    stopped: Option<Duration>,
    clock: &'a Clock,
    news: &'a mut dyn FnMut(News<'_>),
}

impl Host<'_> {
    /// Sends a command, and keeps why it was not done.
    fn command(&mut self, command: Command) {
        self.error = match memory::patiently(|| self.session.ask(Some(self.guest), command)) {
            Ok(answer) => answer.refusal.map(|refusal| refusal.text),
            Err(why) => Some(why.to_string()),
        };
    }
}

impl Embedder for Host<'_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        let Self { session, record, error, news, .. } = self;
        // A side whose machine is gone must not win the guest: the other one may have all of it.
        record.answer(request, error, &|| !session.has_ended(), &mut |why| news(News::InDoubt(why)))
    }

    fn run(&mut self) {
        self.command(Command::Continue);
    }

    /// A run that ends takes its guest with it, and another run has no images of it.
    fn boot(&mut self) {}

    /// The guest stands still until this side has said that it has moved.
    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl precopy::Host for Host<'_> {
    fn stop(&mut self) {
        (self.news)(News::Stops);
        // The most of it while the guest runs. What it writes from here on is looked at again, and so is an error.
        let _ = self.own.devices.sync();
        self.stopped = Some(self.clock.now());
        self.command(Command::Stop);
    }

    /// vCPUs are never slowed down: the plan allows no throttle.
    fn throttle(&mut self, _: &Throttle) {}

    fn images(&mut self) -> Result<Vec<Section>, String> {
        self.own.sections()
    }

    fn state(&mut self) -> Result<Vec<Section>, String> {
        if let Some(why) = self.error.take() {
            return Err(format!("the guest cannot be stopped: {why}"));
        }
        let answer =
            memory::patiently(|| self.session.ask(Some(self.guest), Command::Save)).map_err(|why| why.to_string())?;
        if let Some(refusal) = answer.refusal {
            return Err(refusal.text);
        }
        let mut state: Vec<_> = sections(&answer.content).filter_map(section).collect();
        // The images stay where they are, and the target reads there what this host's cache holds now.
        self.own.devices.sync().map_err(|why| format!("what the guest wrote to its disks: {why}"))?;
        if let Some(offered) = owner::offer(&self.own.devices).map_err(|why| why.to_string())? {
            state.push(Section { name: name(OWNER), instance: 0, version: 1, bytes: owner::to_bytes(offered) });
        }
        Ok(state)
    }

    fn progress(&mut self, round: &Progress<'_>) {
        (self.news)(News::Round(round));
    }
}
