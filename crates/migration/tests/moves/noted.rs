// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A source whose memory's log, pages and store a test sets, on a clock that only waits, reads and bytes move. What it
//! does is noted.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use embedded_io::{ErrorKind, ErrorType, Write};
use twofold_memory::swap::Peeked;
use twofold_migration::commit::{Embedder, Ownership, Request, Side, State};
use twofold_migration::plan::{Plan, Throttle, Wanted};
use twofold_migration::precopy::{Cause, Failed, Host, Postcopy, Precopy, Progress, Sent};
use twofold_migration::ram::{Away, PageRead, RamError, SourceRam};
use twofold_migration::snapshot::{NO_ANSWERS, Stopped, save};
use twofold_migration::stream::{Capabilities, Compression, Hello, Reader, Record, Slot};
use twofold_migration::{Cancel, Runtime, Section};

use crate::guest::{PAGE, capabilities, hello};
use crate::moved::first;

/// A page, by its memslot's index and its number.
pub type Page = (usize, u64);

/// A clear: the memslot, the first word and the words, and the bytes that were sent before it.
type Clear = (usize, usize, Vec<u64>, u64);

/// A clock, and what happened on it.
#[derive(Default)]
pub struct Clock {
    pub now: AtomicU64,
    /// Nanoseconds for a byte.
    pub byte: u64,
    /// Bytes that all streams have sent.
    pub sent: AtomicU64,
    /// Each wait, with the bytes that were sent before it.
    pub waits: Mutex<Vec<(Duration, u64)>>,
    pub flushes: Mutex<Vec<Duration>>,
}

impl Clock {
    fn pass(&self, nanoseconds: u64) {
        self.now.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.waits.lock().unwrap().push((time, self.sent.load(Ordering::Relaxed)));
        self.pass(time.as_nanos() as u64);
    }
}

/// A stream's sink.
pub struct Sink<'t> {
    clock: &'t Clock,
    bytes: &'t mut Vec<u8>,
    /// Bytes that it takes.
    room: usize,
}

impl ErrorType for Sink<'_> {
    type Error = ErrorKind;
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        if self.bytes.len() + bytes.len() > self.room {
            return Err(ErrorKind::ConnectionReset);
        }
        self.clock.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.clock.pass(bytes.len() as u64 * self.clock.byte);
        self.bytes.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.clock.flushes.lock().unwrap().push(self.clock.now());
        Ok(())
    }
}

/// A guest's memory.
#[derive(Default)]
pub struct Memory<'t> {
    pub slots: Vec<Slot>,
    pub clock: Clock,
    /// Pages that are not zero.
    pub full: BTreeSet<Page>,
    /// Pages in the store, and after how many nanoseconds they come.
    pub stored: BTreeMap<Page, u64>,
    /// What each report of the log has.
    pub written: Vec<Vec<Page>>,
    pub reports: AtomicUsize,
    /// Nanoseconds that a report of a memslot takes.
    pub get: u64,
    /// With what each start of the log was called.
    pub starts: Mutex<Vec<bool>>,
    /// The memslots whose pages are sent before the guest changes hands.
    pub precedes: Vec<usize>,
    /// Nanoseconds that a read takes.
    pub read: u64,
    pub cleared: Mutex<Vec<Clear>>,
    pub reads: AtomicU64,
    /// Pages that were asked for and did not come yet, and the most of them at a time.
    pub away: Mutex<(usize, usize)>,
    /// Called before each look at a page that was asked for, and before each read.
    pub hook: Option<&'t (dyn Fn() + Sync)>,
}

/// A page that was asked for, and when it comes.
pub struct Asked<'t>(&'t Memory<'t>, Page, u64);

impl Memory<'_> {
    /// Memslots with these numbers of pages.
    pub fn new(pages: &[u64]) -> Self {
        let slot = |(index, &pages): (usize, &u64)| Slot {
            number: 7 + index as u16,
            read_only: false,
            first: (index as u64) << 20,
            pages,
        };
        Self { slots: pages.iter().enumerate().map(slot).collect(), ..Self::default() }
    }

    fn fill(&self, page: Page, bytes: &mut [u8]) {
        bytes.fill(u8::from(self.full.contains(&page)));
    }
}

impl Away for Asked<'_> {
    fn look(&mut self, bytes: &mut [u8]) -> Peeked {
        self.0.hook.inspect(|hook| hook());
        if self.0.clock.now.load(Ordering::Relaxed) < self.2 {
            return Peeked::Later;
        }
        self.0.fill(self.1, bytes);
        Peeked::Read
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.away.lock().unwrap().0 -= 1;
    }
}

/// The memory of a test.
pub struct Ram<'t>(pub &'t Memory<'t>);

impl<'t> SourceRam for Ram<'t> {
    type Away = Asked<'t>;

    fn slots(&self) -> &[Slot] {
        &self.0.slots
    }

    fn page_shift(&self) -> u8 {
        12
    }

    fn start(&self, all: bool) -> Result<(), RamError> {
        self.0.starts.lock().unwrap().push(all);
        Ok(())
    }

    fn get(&self, slot: usize, dirty: &mut [u64]) -> Result<(), RamError> {
        let report = self.0.reports.fetch_add(1, Ordering::Relaxed) / self.0.slots.len();
        for (_, page) in self.0.written.get(report).into_iter().flatten().filter(|(at, _)| *at == slot) {
            dirty[*page as usize / 64] |= 1 << (page % 64);
        }
        self.0.clock.pass(self.0.get);
        Ok(())
    }

    fn clear(&self, slot: usize, first: usize, pages: &[u64]) -> Result<(), RamError> {
        let sent = self.0.clock.sent.load(Ordering::Relaxed);
        self.0.cleared.lock().unwrap().push((slot, first, pages.to_vec(), sent));
        Ok(())
    }

    fn stop(&self) {}

    fn precedes(&self, slot: usize) -> bool {
        self.0.precedes.contains(&slot)
    }

    fn read(&self, slot: usize, page: u64, bytes: &mut [u8]) -> Result<PageRead<Asked<'t>>, RamError> {
        self.0.hook.inspect(|hook| hook());
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        self.0.clock.pass(self.0.read);
        if let Some(takes) = self.0.stored.get(&(slot, page)) {
            let (away, most) = &mut *self.0.away.lock().unwrap();
            *away += 1;
            *most = (*most).max(*away);
            let at = self.0.clock.now.load(Ordering::Relaxed) + takes;
            return Ok(PageRead::Later(Asked(self.0, (slot, page), at)));
        }
        self.0.fill((slot, page), bytes);
        Ok(PageRead::Done)
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(2)
    }
}

/// An embedder that does no more than it has to.
#[derive(Default)]
pub struct Plain {
    /// What each round did: its pages, its time, and the plan after it.
    pub rounds: Vec<(u64, Duration, Plan)>,
    pub throttles: Vec<Vec<u16>>,
    pub stops: usize,
    /// What is sent of the stopped guest.
    pub state: Vec<Section>,
    /// Why that cannot be saved.
    pub unsaved: Option<String>,
}

impl Embedder for Plain {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {}

    fn boot(&mut self) {
        panic!("the source has not crashed");
    }

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl Host for Plain {
    fn stop(&mut self) {
        self.stops += 1;
    }

    fn throttle(&mut self, throttle: &Throttle) {
        self.throttles.push(throttle.slowed.clone());
    }

    fn state(&mut self) -> Result<Vec<Section>, String> {
        self.unsaved.take().map_or(Ok(self.state.clone()), Err)
    }

    fn progress(&mut self, round: &Progress<'_>) {
        self.rounds.push((round.pages, round.time, round.plan.clone()));
    }
}

/// Rounds go on until no page is left.
pub const ALL: Wanted = Wanted { downtime: SECOND, fixed: SECOND, rounds: 30, throttle: 0, forced: false };
pub const SECOND: Duration = Duration::from_secs(1);
static NEVER: Cancel = Cancel::new();

/// A move, and what became of it.
pub struct Sends<'t> {
    pub memory: &'t Memory<'t>,
    pub streams: usize,
    pub wanted: Wanted,
    pub limit: Option<u64>,
    pub postcopy: Postcopy,
    pub cancel: &'t Cancel,
    /// Bytes that each stream takes.
    pub room: usize,
    pub page_shift: u8,
    pub host: RefCell<Plain>,
}

impl<'t> Sends<'t> {
    pub fn new(memory: &'t Memory<'t>, streams: usize) -> Self {
        let (limit, postcopy, cancel, host) = (None, Postcopy::Off, &NEVER, RefCell::default());
        let (room, page_shift) = (usize::MAX, 12);
        Self { memory, streams, wanted: ALL, limit, postcopy, cancel, room, page_shift, host }
    }

    fn hello(&self) -> Hello {
        let memory = self.memory.slots.iter().map(|slot| slot.pages * PAGE).sum();
        Hello { memory, page_shift: self.page_shift, ..hello(2) }
    }

    /// Returns the bytes of a snapshot.
    pub fn save(&self) -> Result<Vec<u8>, Cause> {
        let ram = &Ram(self.memory);
        let guest = Stopped { ram, hello: self.hello(), images: &[], state: &[], owned: first() };
        let mut bytes = Vec::new();
        save(&guest, &mut bytes, Compression::Off, &self.memory.clock).map(|_| bytes)
    }

    /// Returns what was sent, and the bytes of each stream.
    pub fn go(&self) -> (Result<Sent, Failed>, Vec<Vec<u8>>) {
        let mut bytes = vec![Vec::new(); self.streams];
        let sinks = bytes.iter_mut().map(|bytes| Sink { clock: &self.memory.clock, bytes, room: self.room }).collect();
        let precopy = Precopy {
            ram: &Ram(self.memory),
            hello: self.hello(),
            wanted: self.wanted,
            limit: self.limit,
            compression: Compression::Off,
            postcopy: self.postcopy,
            runtime: &self.memory.clock,
            cancel: self.cancel,
        };
        let mut side = Side::new(first().owner, State::Running { owned: first() });
        let offered = precopy.run(sinks, NO_ANSWERS, &mut side, &mut *self.host.borrow_mut());
        (offered.map(|offered| offered.sent), bytes)
    }
}

/// Returns a line for each record of a stream's rounds and absent pages. A page's line has its first byte.
pub fn lines(stream: &[u8]) -> Vec<String> {
    let (mut reader, mut lines) = (Reader::new(stream, Capabilities { memory: 1 << 40, ..capabilities() }), Vec::new());
    while let Some(record) = reader.next().unwrap() {
        lines.push(match record {
            Record::Round { number, .. } => format!("round {number}"),
            Record::Page { slot, page, bytes } => format!("{slot}: {page} has {}", bytes[0]),
            Record::ZeroPages { slot, page, count } => format!("{slot}: {page}+{count}"),
            Record::Absent { slot, page, words } => {
                format!("{slot}: {page} absent {:?}", words.iter().map(|word| word.get()).collect::<Vec<_>>())
            }
            _ => continue,
        });
    }
    lines
}
