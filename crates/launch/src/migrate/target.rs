// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The side to which a guest comes.
//!
//! A thread receives the guest. The run's own thread starts the machine when the guest's images are there, and lets the
//! receiver have it:
//!
//! | step | the receiver | the run |
//! |---|---|---|
//! | I1 | hands the guest's images over | waits for them ([`Incoming::wait`]) |
//! | I2 | waits for the machine | starts it, and hands its session over ([`Coming::go_on`]) |
//! | I3 | writes pages and state, and asks the record for the guest | waits until the guest runs, or does not come |
//! | I4 | with post-copy, lets the absent pages come ([`fetch`](super::fetch)) | lets the guest run |
//!
//! Invariants: the guest runs here only when the record says that this side has it. A target that does not get the guest ends
//! its machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use thiserror::Error;
use twofold_abi::channel::Command;
use twofold_abi::channel::wire::{CONTENT_MAX, WrittenWord};
use twofold_abi::virt::{MAX_CPUS, memslot};
use twofold_migration::commit::{Embedder, Event, Owner, Ownership, Request, Side, State};
use twofold_migration::ram::RamError;
use twofold_migration::receive::{self, Receive, ReceiveError};
use twofold_migration::sealed::Key;
use twofold_migration::stream::{Capabilities, Compression, Hello, Message, Slot, Writer};
use twofold_migration::{PageSet, Runtime, Section};
use zerocopy::IntoBytes;

use super::carried::Carried;
use super::door::Door;
use super::fetch::{Again, Begin, Fetching};
use super::link::{self, LinkError};
use super::memory::{self, GUEST, SHIFT};
use super::record::{Record, in_doubt};
use super::{ASK_AGAIN, Clock, SECTIONS_MAX, with_head};
use crate::devices::HostDevices;
use crate::guest::MEMORY_MAX;
use crate::owner::{self, OwnerError};
use crate::session::Session;
use crate::snapshot::{BUNDLE, HOST, MODEL, OWNER, name};

/// Called with the machine's session when all of the guest is here, and before its first instruction.
pub type BeforeEntry = Box<dyn FnOnce(&Session) -> Result<(), String> + Send>;

/// A place to which a guest may come.
pub struct Incoming {
    door: Arc<Door>,
    /// This side, as the record names it. No two machines have the same name.
    pub me: Owner,
    /// The record that both sides can reach.
    pub record: Record,
    /// The most bytes of RAM of a guest.
    pub memory: u64,
    /// Whether pages of the guest may come after it has begun here.
    pub postcopy: bool,
    /// For a test that compares the guest's memory.
    pub before_entry: Option<BeforeEntry>,
}

/// Why no guest has come.
#[derive(Debug, Error)]
pub enum IncomingError {
    /// There is no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The guest did not come whole.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The guest came whole, and the other side has it.
    #[error("the guest came, and the record says that another side has it")]
    Lost,
    /// The guest is this side's, and does not go on.
    #[error("the guest is this side's now, and does not go on: {0}")]
    NotStarted(String),
    /// The machine has ended before the record said which side has the guest.
    #[error(
        "the machine has ended while the guest was on its way; if the owner record names this side, the guest is lost, and \
         otherwise it goes on at the other side"
    )]
    Ended,
    /// The machine was not started.
    #[error("no machine was started for the guest")]
    NoMachine,
}

/// A guest that is on its way.
pub struct Coming {
    /// What it was started with.
    pub carried: Carried,
    session: Sender<Arc<Session>>,
    receiver: JoinHandle<Result<Option<Fetching>, IncomingError>>,
}

impl Incoming {
    /// Listens at this address, such as `0.0.0.0:PORT`.
    ///
    /// # Errors
    ///
    /// It is in use, or not this machine's.
    pub fn bind(address: &str, key: Key, record: Record) -> std::io::Result<Self> {
        let door = Door::bind(address, key)?;
        Ok(Self { door, me: owner::this(), record, memory: MEMORY_MAX, postcopy: true, before_entry: None })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The system does not know.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.door.address()
    }

    /// Waits for a source, and for its guest's images (I1).
    ///
    /// # Errors
    ///
    /// [`IncomingError`]: no guest has come. Another one may.
    pub fn wait(&mut self) -> Result<Coming, IncomingError> {
        let link = self.door.wait()?;
        let (images, came) = mpsc::channel();
        let (session, sessions) = mpsc::channel();
        let here = self.capabilities();
        let side = Here {
            me: self.me,
            record: self.record.clone(),
            door: Arc::clone(&self.door),
            memory: self.memory,
            postcopy: self.postcopy,
            before_entry: self.before_entry.take(),
        };
        let receiver = thread::spawn(move || take(link, here, side, Stage { images, sessions }));
        match came.recv() {
            Ok(carried) => Ok(Coming { carried, session, receiver }),
            Err(_) => Err(joined(receiver).err().unwrap_or(IncomingError::NoMachine)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            model: name(MODEL),
            page_shift: SHIFT,
            ipa_bits: 48,
            vcpus: MAX_CPUS,
            // Of RAM alone, `build` knows.
            memory: memory::MEMORY_MAX,
            features: Vec::new(),
        }
    }
}

impl Coming {
    /// Lets the guest have the machine that was started for it, and waits until it runs there (I2, I3). Returns the pages that
    /// have yet to come, if it comes by post-copy.
    ///
    /// # Errors
    ///
    /// [`IncomingError`]: it does not run there.
    pub fn go_on(self, session: &Arc<Session>) -> Result<Option<Fetching>, IncomingError> {
        let Self { session: to, receiver, .. } = self;
        // A receiver that has failed says so below.
        let _ = to.send(Arc::clone(session));
        joined(receiver)
    }
}

fn joined<T>(receiver: JoinHandle<Result<T, IncomingError>>) -> Result<T, IncomingError> {
    receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How the receiver speaks with the run.
struct Stage {
    images: Sender<Carried>,
    sessions: Receiver<Arc<Session>>,
}

/// This side.
struct Here {
    me: Owner,
    record: Record,
    door: Arc<Door>,
    memory: u64,
    postcopy: bool,
    before_entry: Option<BeforeEntry>,
}

/// Receives a guest, and runs it. Returns the pages that have yet to come.
fn take(
    (reader, writer): (link::Reader, link::Writer),
    here: Capabilities,
    Here { me, record, door, memory, postcopy, before_entry }: Here,
    stage: Stage,
) -> Result<Option<Fetching>, IncomingError> {
    let clock = Clock::new();
    let mut side = Side::new(me, State::START);
    let mut host = Host {
        record: &record,
        most: memory,
        stage,
        before_entry,
        postcopy: Offered { here: postcopy, ..Offered::default() },
        answers: Answers::New(writer),
        slots: Vec::new(),
        vcpus: 0,
        images: [const { Vec::new() }; 2],
        memory: None,
        devices: HostDevices::default(),
        offered: None,
        error: None,
    };
    let receive = Receive { here: here.clone(), sections: SECTIONS_MAX, runtime: &clock };
    let received = receive.run(vec![reader], &side, &mut host)?;
    host.check_machine()?;
    let hello = received.hello.clone();
    let (mut state, absent) = received.take(&mut side, &mut host);
    while let State::InDoubt { .. } = state {
        host.check_machine()?;
        let why = host.error.take().unwrap_or_default();
        crate::interactive::note(&in_doubt(&why));
        clock.wait(ASK_AGAIN);
        state = side.raise(Event::Tick, &mut host);
    }
    match (state, host.error) {
        (State::Running { owned }, None) => {
            let (Some((target, incoming)), Some(memory), Some(answers)) =
                (absent, host.memory, host.answers.of_absent())
            else {
                return Ok(None);
            };
            let again = Again { door, here, hello, owned };
            Ok(Some(Fetching::begin(Begin { session: memory.session, target, incoming, answers, again })))
        }
        (State::Running { .. }, Some(why)) => Err(IncomingError::NotStarted(why)),
        _ => Err(IncomingError::Lost),
    }
}

/// What the migration asks of this side.
struct Host<'a> {
    record: &'a Record,
    /// The most bytes of RAM of a guest.
    most: u64,
    stage: Stage,
    before_entry: Option<BeforeEntry>,
    postcopy: Offered,
    answers: Answers,
    slots: Vec<Slot>,
    vcpus: u32,
    /// The bundle, and what is behind the guest's devices, until both are here.
    images: [Vec<u8>; 2],
    memory: Option<Memory>,
    /// What is behind the guest's devices.
    devices: HostDevices,
    /// Whose the images are that the guest writes to.
    offered: Option<Ownership>,
    error: Option<String>,
}

/// Pages that come after the guest has begun.
#[derive(Default)]
struct Offered {
    /// Whether this side takes such a guest.
    here: bool,
    /// Whether the guest that comes may be such.
    there: bool,
    /// The state of its vCPUs and devices. It refers to memory, so it is restored when the absent pages are absent.
    state: Vec<Section>,
}

/// The stream to the source.
enum Answers {
    /// Nothing was said yet.
    New(link::Writer),
    /// It has the version of the source's.
    Begun { writer: Box<Writer<link::Writer>>, absent: bool },
    /// It has no version: it cannot be used.
    None,
}

impl Answers {
    /// Begins the stream, unless it has begun.
    fn begin(&mut self, absent: bool) -> Option<&mut Writer<link::Writer>> {
        if let Self::New(_) = self
            && let Self::New(link) = std::mem::replace(self, Self::None)
        {
            let begin = if absent { Writer::with_absent } else { Writer::new };
            *self = Self::Begun { writer: Box::new(begin(link, Compression::Off)), absent };
        }
        match self {
            Self::Begun { writer, .. } => Some(writer),
            Self::New(_) | Self::None => None,
        }
    }

    /// The stream, if pages may be asked for by it.
    fn of_absent(self) -> Option<Writer<link::Writer>> {
        match self {
            Self::Begun { writer, absent: true } => Some(*writer),
            _ => None,
        }
    }
}

/// The machine that was started for the guest.
struct Memory {
    session: Arc<Session>,
    pages: memory::Target,
}

impl Host<'_> {
    /// Has the machine started (I1, I2).
    fn start(&mut self) -> Result<(), String> {
        let [bundle, host] = std::mem::take(&mut self.images);
        let mut carried = Carried::from_sections(bundle, &host)?;
        carried.postcopy = self.postcopy.there;
        if carried.slots() != self.slots || carried.known().cpus != self.vcpus {
            return Err("the guest's memory and vCPUs are not those of its bundle".to_owned());
        }
        carried.devices.are_taken_over = true;
        carried.devices.check().map_err(|why| why.to_string())?;
        self.devices = carried.devices.clone();
        // The source has made it before.
        self.record.check(&carried.known().name).map_err(|why| format!("at the target, {why}"))?;
        let gone = |_| "no machine was started for the guest".to_owned();
        self.stage.images.send(carried).map_err(|_| "no machine was started for the guest".to_owned())?;
        let session = self.stage.sessions.recv().map_err(gone)?;
        // A hypervisor that could not start has no session.
        session.guests().map_err(|why| why.to_string())?;
        let pages = memory::Target::new(Arc::clone(&session), self.slots.clone());
        self.memory = Some(Memory { session, pages });
        Ok(())
    }

    fn restore(&self, section: &Section) -> Result<(), String> {
        self.command(Command::Restore, &with_head(section))
            .map_err(|why| format!("section {} {}: {why}", section.name, section.instance))
    }

    /// The record says that the guest is this side's: so are its disks.
    fn take_disks(&self) -> Result<(), OwnerError> {
        let Some(offered) = self.offered else { return Ok(()) };
        owner::accept(&self.devices, offered)?;
        // The guest is this side's, and goes on: a lock that is not there puts no memory of it at risk.
        if let Err(why) = owner::hold(&self.devices) {
            crate::interactive::note(&why.to_string());
        }
        Ok(())
    }

    /// Whether the guest's machine is still there.
    fn check_machine(&self) -> Result<(), IncomingError> {
        let is_there = self.memory.as_ref().is_some_and(|memory| !memory.session.has_ended());
        if is_there { Ok(()) } else { Err(IncomingError::Ended) }
    }

    /// Sends a command to the guest's machine.
    fn command(&self, command: Command, content: &[u8]) -> Result<(), String> {
        let Memory { session, .. } = self.memory.as_ref().ok_or("there is no machine")?;
        let request = session.send_with(GUEST, command, content).map_err(|why| why.to_string())?;
        let answer = session.answer(request).map_err(|why| why.to_string())?;
        answer.refusal.map_or(Ok(()), |refusal| Err(refusal.text))
    }
}

impl Embedder for Host<'_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        let Self { record, memory, error, .. } = self;
        // A machine that is gone must not win the guest.
        let is_there = || memory.as_ref().is_some_and(|memory| !memory.session.has_ended());
        record.answer(request, error, &is_there, &mut |why| crate::interactive::note(&in_doubt(why)))
    }

    fn run(&mut self) {
        let compared = match (self.before_entry.take(), &self.memory) {
            (Some(compare), Some(memory)) => compare(&memory.session),
            _ => Ok(()),
        };
        self.error = compared
            .and_then(|()| self.take_disks().map_err(|why| why.to_string()))
            .and_then(|()| self.command(Command::Continue, &[]))
            .err();
    }

    /// A run that ends takes its guest with it, and another run has no images of it.
    fn boot(&mut self) {}

    fn release(&mut self) {
        if self.memory.is_some() {
            // The machine may have ended.
            let _ = self.command(Command::Quit, &[]);
        }
    }

    fn announce(&mut self, now: Ownership) {
        receive::Host::answer(self, &Message::Taken(now));
    }
}

impl receive::Host for Host<'_> {
    type Ram<'a>
        = memory::Place<'a>
    where
        Self: 'a;

    fn build(&mut self, hello: &Hello, slots: &[Slot], absent: bool) -> Result<(), String> {
        self.answers.begin(absent);
        if absent && !self.postcopy.here {
            return Err(
                "pages are to come after the guest has changed hands (--postcopy), and this target does not take \
                        such a guest (--no-postcopy)"
                    .to_owned(),
            );
        }
        let ram: u64 =
            slots.iter().filter(|slot| slot.number == u16::from(memslot::RAM)).map(|slot| slot.pages << SHIFT).sum();
        if ram > self.most {
            return Err(format!(
                "the guest has {} MiB of RAM, and this target at most {} MiB",
                ram >> 20,
                self.most >> 20
            ));
        }
        self.postcopy.there = absent;
        (self.slots, self.vcpus) = (slots.to_vec(), hello.vcpus);
        Ok(())
    }

    fn section(&mut self, section: Section) -> Result<(), String> {
        if self.memory.is_none() {
            let place = [BUNDLE, HOST].iter().position(|image| section.name == name(image));
            let place = place.ok_or_else(|| format!("a section {} before the pages", section.name))?;
            self.images[place] = section.bytes;
            // The last one.
            return if place == 1 { self.start() } else { Ok(()) };
        }
        if section.name == name(OWNER) {
            self.offered = owner::from_bytes(&section.bytes);
            return self.offered.map(drop).ok_or_else(|| "the owner of the guest's disks is none".to_owned());
        }
        if self.postcopy.there {
            self.postcopy.state.push(section);
            return Ok(());
        }
        self.restore(&section)
    }

    fn ram(&self) -> Result<memory::Place<'_>, RamError> {
        Ok(memory::Place(self.memory.as_ref().map(|memory| &memory.pages)))
    }

    fn absent(&mut self, absent: &PageSet) -> Result<(), String> {
        let Memory { pages, .. } = self.memory.as_ref().ok_or("there is no machine")?;
        pages.finish().map_err(|why| why.to_string())?;
        for (index, slot) in self.slots.iter().enumerate() {
            let words = absent.words(index).iter().enumerate().filter(|(_, mask)| **mask != 0);
            let rows: Vec<_> = words
                .map(|(word, mask)| WrittenWord { first_page: (word as u64 * 64).into(), mask: (*mask).into() })
                .collect();
            for rows in rows.chunks(CONTENT_MAX / size_of::<WrittenWord>()) {
                self.command(Command::Absent(slot.number as u8), rows.as_bytes())?;
            }
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<(), String> {
        let Memory { pages, .. } = self.memory.as_ref().ok_or("there is no machine")?;
        pages.finish().map_err(|why| why.to_string())?;
        match self.offered {
            Some(offered) => owner::is_offered(&self.devices, offered).map_err(|why| why.to_string())?,
            None if self.devices.written_files().next().is_some() => {
                return Err("the source did not say to which epoch of its disks the guest belongs".to_owned());
            }
            None => {}
        }
        std::mem::take(&mut self.postcopy.state).iter().try_for_each(|section| self.restore(section))
    }

    fn answer(&mut self, message: &Message) {
        if let Some(answers) = self.answers.begin(false) {
            // A message that is lost decides nothing.
            let _ = answers.message(message);
        }
    }
}
