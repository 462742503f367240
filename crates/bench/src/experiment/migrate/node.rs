// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One of the two processes between which the guest moves: its place, its guest if it has one, and its side of the commit.
//!
//! Both processes run this code: the bench calls it, and the process that the bench starts calls it as its orders say.
//!
//! Invariant: the guest's vCPUs run in the process whose side is [`State::Running`], and in no other.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use twofold_launch::migrate::record::Record;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_migration::commit::{Embedder, Event, Owner, Side, State};
use twofold_migration::postcopy::Incoming;
use twofold_migration::precopy::{Offered, Precopy};
use twofold_migration::ram::GuestRam;
use twofold_migration::receive::Receive;
use twofold_migration::stream::Message;
use twofold_migration::{Answers, Cancel};

use super::guest::Guest;
use super::link::{self, Listener, Receiver};
use super::lists;
use super::meter::Meter;
use super::orders::{Move, Received, Sent};
use super::place::Place;
use super::serve::serve;
use super::settings::{How, Settings};
use super::source::{Source, Withholding};
use super::target::{Switch, Target};
use crate::experiment::host_clock::{Moment, Threads};

/// One of the two processes.
pub struct Node {
    settings: Settings,
    place: Place,
    record: Record,
    side: Side,
    guest: Option<Guest>,
}

/// The bytes of sections that a guest may have: some hundred for each vCPU.
const SECTIONS: u64 = 1 << 20;
/// How long a side in doubt asks the arbiter before the bench gives up.
const DOUBT: Duration = Duration::from_secs(20);

impl Node {
    /// A process without a guest. `host` is its number in the owner record.
    ///
    /// # Errors
    ///
    /// Its memory does not fit.
    pub fn new(settings: Settings, host: u64) -> anyhow::Result<Self> {
        let record = record_in(&settings.directory);
        let side = Side::new(Owner { host, incarnation: random() }, State::START);
        Ok(Self { place: Place::new(&settings)?, settings, record, side, guest: None })
    }

    /// Makes the guest, and its owner record. Its tables are filled; it stands still.
    ///
    /// # Errors
    ///
    /// It does not fit.
    pub fn boot(&mut self) -> anyhow::Result<()> {
        let made = self.place.make(&self.settings, &self.settings.slots(), None)?;
        self.guest = Some(Guest::boot(&self.settings, made)?);
        // Of a guest before this one, which is gone.
        if self.record.path().exists() {
            fs::remove_file(self.record.path())?;
        }
        let owned = self.record.open(self.side.me(), GUEST)?;
        self.side = Side::new(self.side.me(), State::Running { owned });
        Ok(())
    }

    /// The guest that is here.
    ///
    /// # Errors
    ///
    /// None is.
    pub fn guest(&self) -> anyhow::Result<&Guest> {
        self.guest.as_ref().context("the guest is not here")
    }

    /// Listens for the connections of a move.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn listen(&self, order: &Move) -> anyhow::Result<Listener> {
        Listener::new(&self.socket(order)).context("cannot make the socket of a move")
    }

    /// Sends the guest. It runs here before.
    ///
    /// # Errors
    ///
    /// Why it did not move. If it can, it goes on here.
    pub fn send(&mut self, order: &Move, cancel: &Cancel) -> anyhow::Result<Sent> {
        let guest = self.guest.as_ref().context("the guest is not here")?;
        let meter = Meter::start(guest.counts());
        thread::sleep(self.settings.settle);
        let mut sent = {
            let links =
                link::connect(&self.socket(order), self.settings.streams.into()).context("no target listens")?;
            let mut answers = Answers::new(links.answers);
            let tracker = match order.how()? {
                How::Precopy(tracker) => tracker,
                How::Postcopy => Tracker::Manual,
            };
            let mut source = Source::new(guest, &self.record, tracker);
            let ram = GuestRam::new(guest.memory(), LogOptions::new(tracker), guest.slots())?;
            let ram = Withholding::new(ram, order.withheld);
            let precopy = Precopy {
                ram: &ram,
                hello: self.settings.hello(migration(order.number)),
                wanted: self.settings.wanted(),
                limit: self.settings.bandwidth,
                compression: self.settings.compression(),
                postcopy: self.settings.postcopy(order.how()?),
                runtime: &Threads,
                cancel,
            };
            let (begin, served) = (Moment::now(), guest.served());
            let offered = precopy.run(links.streams, Some(&mut answers), &mut self.side, &mut source)?;
            let Offered { sent, broken, postcopy } = offered;
            // The target compares it with its own before the guest enters there. A target that does not get this list
            // says so, and a guest that comes back needs none.
            let list = lists::path(&self.settings, order.number, "source", "switch");
            let (file, base) = self.place.memory_file()?;
            let listed = lists::write(&list, (&file, base), guest.memory(), guest.slots());
            match answers.taken() {
                Ok(now) => self.side.raise(Event::Record(now), &mut source),
                Err(_) => self.side.raise(Event::Cancel, &mut source),
            };
            settle(&mut self.side, &mut source)?;
            if let State::Running { .. } = self.side.state() {
                let why = broken.map_or_else(|| "the target has not taken it".to_owned(), |broken| broken.to_string());
                bail!("the guest was offered, and has come back: {why}");
            }
            listed?;
            let (later, bytes) = match postcopy {
                Some(following) => serve(&ram, following, &mut answers)?,
                None => (0, 0),
            };
            let _ = fs::remove_file(&list);
            let stop = source.stop.context("the guest was not stopped")?;
            let (rounds, pages, bytes) = (sent.rounds, sent.pages + later, sent.bytes + bytes);
            Sent { begin, stop, served, samples: Vec::new(), rounds, pages, later, bytes, slowed: source.slowed }
        };
        sent.samples = meter.stop();
        let guest = self.guest.take().context("the guest is not here")?;
        guest.check()?;
        self.place.end(guest.end()?);
        Ok(sent)
    }

    /// Receives a guest. It runs here after.
    ///
    /// # Errors
    ///
    /// Why it did not come, or cannot run here.
    pub fn receive(&mut self, order: &Move, listener: Listener) -> anyhow::Result<Received> {
        self.place.is_free()?;
        let links = listener.accept(self.settings.streams.into(), order.ends_after).context("no source connects")?;
        let mut target = Target::new(&self.settings, &mut self.place, &self.record, order.number, links.answers);
        let receive = Receive { here: self.settings.capabilities(), sections: SECTIONS, runtime: &Threads };
        let received = receive.run(links.streams, &self.side, &mut target)?;
        let (_, postcopy) = received.take(&mut self.side, &mut target);
        settle(&mut self.side, &mut target)?;
        ensure!(matches!(self.side.state(), State::Running { .. }), "the source has taken the guest back");
        let switch = target.switch.take().context("the guest was not entered")??;
        let meter = Meter::start(target.guest.as_ref().context("no guest was made")?.counts());
        let fetched = match postcopy {
            Some((_, incoming)) => Some(fetch(&self.settings, order, &mut target, incoming)?),
            None => None,
        };
        self.guest = target.guest.take();
        let guest = self.guest()?;
        let Switch { entered, judged, mut compared, served } = switch;
        let (complete, served) = match fetched {
            Some(Fetched { complete, served, later }) => {
                compared.pages += later;
                compared.later -= later;
                (complete, served)
            }
            None => (entered, served),
        };
        let all = self.settings.memory / super::settings::PAGE;
        ensure!(compared.pages == all, "{} of {all} pages were compared", compared.pages);
        thread::sleep(self.settings.settle);
        guest.check()?;
        let (samples, waited) = (meter.stop(), guest.waited());
        Ok(Received { entered, complete, judged, served, samples, compared, waited })
    }

    fn socket(&self, order: &Move) -> PathBuf {
        self.settings.directory.join(format!("move-{}", order.number))
    }
}

/// All absent pages have come.
struct Fetched {
    complete: Moment,
    served: u64,
    /// Pages that were compared as they came.
    later: u64,
}

/// Fetches the absent pages, and has them compared before the source may release its own.
fn fetch(
    settings: &Settings,
    order: &Move,
    target: &mut Target<'_>,
    incoming: Incoming<Receiver>,
) -> anyhow::Result<Fetched> {
    let answers = target.answers.take().context("there is no stream for answers")?;
    let (guest, store) = target.guest.as_ref().zip(target.store.as_ref()).context("no guest was made")?;
    let mut answers = store.fetch(guest.memory(), incoming, answers).inspect_err(|_| guest.stop())?;
    let (complete, served) = (Moment::now(), guest.served());
    let slot = guest.slots().first().context("the guest has no memslots")?.1;
    let here = lists::path(settings, order.number, "target", "later");
    let copied = store.copied();
    lists::write_later(&here, &store.copies_file(), &slot, |page| copied.contains(0, page))?;
    let compared = lists::compare(&settings.program, &target.source_list(), &here)?;
    let _ = fs::remove_file(&here);
    answers.message(&Message::Complete)?;
    Ok(Fetched { complete, served, later: compared.pages })
}

/// Asks the arbiter until the side is not in doubt any more.
fn settle(side: &mut Side, embedder: &mut impl Embedder) -> anyhow::Result<()> {
    let begin = Instant::now();
    while let State::InDoubt { .. } = side.state() {
        ensure!(begin.elapsed() < DOUBT, "in doubt about the guest: the owner record cannot be read");
        thread::sleep(Duration::from_millis(1));
        side.raise(Event::Tick, embedder);
    }
    Ok(())
}

/// The owner record of the guest of both processes.
pub fn record_in(directory: &Path) -> Record {
    Record::on_one_host(&directory.join("owner"))
}

/// The guest's name in the record.
const GUEST: &str = "guest";

/// A number that no other start of this program has, as far as chance goes.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The id of a migration.
fn migration(number: u64) -> [u8; 16] {
    let mut id = [0; 16];
    let (first, second) = id.split_at_mut(8);
    first.copy_from_slice(&random().to_le_bytes());
    second.copy_from_slice(&number.to_le_bytes());
    id
}
