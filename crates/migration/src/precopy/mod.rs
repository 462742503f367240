// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pre-copy: rounds of pages while the guest runs, then the rest of the stopped guest, then its offer.
//!
//! [`Precopy::run`] does all of it, for any tracker, over one stream or several. The embedder has the vCPUs ([`Host`])
//! and the clock ([`Runtime`]). The steps:
//!
//! * M1: send hello and memslots on each stream, and wait until the target accepts.
//! * M2: start the dirty logs, and get what they have. The first round has all pages.
//! * M3: send a round. Its pages are cut into pieces. Clear each piece, then read and send it (`lane`).
//! * M4: get the dirty pages. Measure the rates, and ask [`plan`] for the next step: M3 with these pages, or M5.
//! * M5: stop the guest. Get the dirty pages once more, and send all that were got since M3, without a clear. Send the
//!   state of vCPUs and devices. With post-copy, say which pages are absent instead of sending them
//!   ([`postcopy`](crate::postcopy)).
//! * M6: the side is in doubt from here on (C2 of [`commit`](crate::commit)). Send the end on each stream.
//!
//! Why no write is lost: take a write to a page, and the last M3 that cleared the page. If the write came before the clear,
//! the page was read after it. If it came after the clear, the page is in the log (P1 and P2 of
//! `twofold_memory::dirty`), so the `get` of M4 or M5 reports it, and M5 sends it: no vCPU runs from there on.
//!
//! Invariant: if anything fails before M6, or is cancelled there, the guest goes on at the source, at full speed, and no
//! log runs. From M6 on the guest stands still, until the arbiter has settled which side owns it.

mod dry_run;
mod error;
mod host;
pub(crate) mod lane;
mod rates;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use embedded_io::{Read, Write};

pub use dry_run::{DryRun, dry_run};
pub use error::{Cause, Failed};
pub use host::{Host, Progress};

use crate::answers::{AnswerError, Answers};
use crate::commit::{Event, Ownership, Side, State};
use crate::pages::PageSet;
use crate::plan::{Measured, Plan, Throttle, Wanted, plan};
use crate::postcopy::{Outgoing, Source};
use crate::ram::SourceRam;
use crate::runtime::{Cancel, Runtime};
use crate::section::Section;
use crate::stream::{Compression, Hello, Message, Writer};
use lane::{Lane, Round, failed, piece};
use rates::Rates;

/// A migration by pre-copy.
pub struct Precopy<'a, M, R> {
    /// The guest's memory.
    pub ram: &'a M,
    /// What the guest was given. The number of streams, and each stream's, are filled in.
    pub hello: Hello,
    /// What the migration is to keep to. [`Wanted::rounds`] are all rounds of the running guest.
    pub wanted: Wanted,
    /// Bytes a second that all streams together may send.
    pub limit: Option<u64>,
    /// Whether pages are compressed.
    pub compression: Compression,
    /// Whether pages may come after the guest has changed hands.
    pub postcopy: Postcopy,
    /// The clock and the threads.
    pub runtime: &'a R,
    /// Ends the migration early.
    pub cancel: &'a Cancel,
}

/// Whether pages are sent after the guest has changed hands ([`postcopy`](crate::postcopy)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Postcopy {
    /// All pages are sent before. The streams have version 1.
    #[default]
    Off,
    /// If pre-copy never ends, the pages that are left then are sent after.
    IfNeeded,
    /// All pages are sent after.
    AtOnce,
}

/// The guest was sent and offered. It stands still here: the side is in doubt until the arbiter has settled it.
#[must_use = "the side is in doubt, until it learns what the owner record holds"]
pub struct Offered<W> {
    /// What was sent.
    pub sent: Sent,
    /// Why a stream's end may not have arrived. Then the target may not have all of the guest, and the source may take
    /// it back.
    pub broken: Option<Failed>,
    /// The pages that are sent if the target has taken the guest, and the stream for them.
    pub postcopy: Option<(Source, Outgoing<W>)>,
}

impl<W> fmt::Debug for Offered<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.postcopy.as_ref().map_or(0, |(source, _)| source.left());
        let mut shown = formatter.debug_struct("Offered");
        shown.field("sent", &self.sent).field("broken", &self.broken).field("left", &left).finish()
    }
}

/// What a migration has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Rounds while the guest ran.
    pub rounds: u64,
    /// Pages, each time that they were sent.
    pub pages: u64,
    /// Pages sent while the guest was stopped.
    pub last_pages: u64,
    /// Bytes of all streams.
    pub bytes: u64,
    /// The time since the start.
    pub time: Duration,
    /// How long the guest has stood still so far.
    pub stopped: Duration,
}

impl<M: SourceRam, R: Runtime> Precopy<'_, M, R> {
    /// Sends the guest over these streams, and offers it. `answers` is the stream from the target; without one, nothing
    /// is waited for: the streams go to files. A sink that is dropped ends its stream.
    ///
    /// # Errors
    ///
    /// [`Failed`]: the guest was not offered, and goes on here.
    pub fn run<W: Write + Send, A: Read, H: Host>(
        &self,
        sinks: Vec<W>,
        mut answers: Option<&mut Answers<A>>,
        side: &mut Side,
        host: &mut H,
    ) -> Result<Offered<W>, Failed> {
        let alone = |cause| Failed { cause, stream: None };
        self.check(sinks.len(), side).map_err(alone)?;
        let lanes = sinks.len();
        let lane = |(number, sink)| {
            let writer = match self.postcopy {
                Postcopy::Off => Writer::new(sink, self.compression),
                Postcopy::IfNeeded | Postcopy::AtOnce => Writer::with_absent(sink, self.compression),
            };
            Lane::new(writer, (number, lanes), self.hello.page_shift)
        };
        let mut lanes: Vec<_> = sinks.into_iter().enumerate().map(lane).collect();
        let mut sent = Sent::default();
        let begin = self.runtime.now();
        let result = self.send(&mut lanes, answers.as_deref_mut(), side, host, &mut sent);
        // On each way out: a log without a migration only costs.
        self.ram.stop();
        let (from, stopped, absent) = match result {
            Ok(offer) => offer,
            Err(failed) => {
                host.throttle(&full_speed(self.hello.vcpus as usize));
                side.raise(Event::Cancel, host);
                self.withdraw(&mut lanes, &failed);
                // The target reads no more than this, so it does not keep the source waiting.
                drop(lanes);
                return Err(refused(failed, answers));
            }
        };
        side.raise(Event::Offer, host);
        self.runtime.each(&mut lanes, |lane| lane.attempt(|lane| Ok(lane.writer.end(from)?)));
        let broken = failed(&mut lanes).err().map(|(stream, cause)| Failed { cause, stream: Some(stream) });
        let now = self.runtime.now();
        sent.bytes = lanes.iter().map(|lane| lane.writer.bytes()).sum();
        (sent.time, sent.stopped) = (now.saturating_sub(begin), now.saturating_sub(stopped));
        let first = lanes.into_iter().next().filter(|_| !absent.is_empty());
        let outgoing = first.map(|lane| Outgoing::new(lane.writer, self.hello.page_shift));
        let postcopy = outgoing.map(|outgoing| (Source::new(self.ram.slots(), absent), outgoing));
        Ok(Offered { sent, broken, postcopy })
    }

    fn check(&self, streams: usize, side: &Side) -> Result<(), Cause> {
        if !(1..=64).contains(&streams) {
            return Err(Cause::Streams(streams));
        }
        check_page_size(&self.hello, self.ram)?;
        match side.state() {
            State::Running { .. } => Ok(()),
            other => Err(Cause::NotRunning(other)),
        }
    }

    /// M1 to M5. Returns under which ownership the guest was stopped, and when, and which pages were not sent.
    fn send<W: Write + Send, A: Read, H: Host>(
        &self,
        lanes: &mut [Lane<W>],
        answers: Option<&mut Answers<A>>,
        side: &mut Side,
        host: &mut H,
        sent: &mut Sent,
    ) -> Result<(Ownership, Duration, PageSet), Failed> {
        let alone = |cause| Failed { cause, stream: None };
        self.each(lanes, |lane| lane.greet(&self.hello, self.ram.slots()))?;
        if let Some(answers) = answers {
            answers.accepted().map_err(|error| alone(error.into()))?;
        }
        sections(lanes, host.images())?;
        let mut pages = PageSet::all(self.ram.slots());
        let ends = if self.postcopy == Postcopy::AtOnce {
            false
        } else {
            self.ram.start(true).map_err(|error| alone(error.into()))?;
            self.get(&mut pages).map_err(alone)?;
            self.rounds(lanes, &mut pages, host, sent)?
        };

        self.go_on().map_err(alone)?;
        let stopped = self.runtime.now();
        host.stop();
        let State::Stopped { owned } = side.raise(Event::Stop, host) else {
            return Err(alone(Cause::NotRunning(side.state())));
        };
        if self.postcopy != Postcopy::AtOnce {
            self.get(&mut pages).map_err(alone)?;
        }
        let none = PageSet::none(self.ram.slots());
        let (now, later) = if ends { (pages, none) } else { self.divide(pages) };
        self.round(lanes, &now, true)?;
        sent.last_pages = now.count();
        sent.pages += sent.last_pages;
        sections(lanes, host.state())?;
        for lane in lanes.iter_mut().take(1) {
            lane.absent(self.ram.slots(), &later).map_err(|cause| Failed { cause, stream: Some(0) })?;
        }
        self.go_on().map_err(alone)?;
        Ok((owned, stopped, later))
    }

    /// Those pages that are sent while the guest is stopped, and those that are absent.
    fn divide(&self, mut pages: PageSet) -> (PageSet, PageSet) {
        let mut now = PageSet::none(self.ram.slots());
        for slot in (0..self.ram.slots().len()).filter(|slot| self.ram.precedes(*slot)) {
            let words = pages.words(slot).to_vec();
            now.change(slot, |all| all.copy_from_slice(&words));
            pages.change(slot, |all| all.fill(0));
        }
        (now, pages)
    }

    /// M3 and M4: rounds until the rest fits. It is in `pages` then. Returns false if it never fits, and is to be sent
    /// after the guest has changed hands.
    fn rounds<W: Write + Send, H: Host>(
        &self,
        lanes: &mut [Lane<W>],
        pages: &mut PageSet,
        host: &mut H,
        sent: &mut Sent,
    ) -> Result<bool, Failed> {
        let alone = |cause| Failed { cause, stream: None };
        let (mut rates, mut ever, mut got) = (Rates::new(), PageSet::none(self.ram.slots()), self.runtime.now());
        // What vCPUs wrote before is no part of the first round.
        host.written(&mut vec![0; self.hello.vcpus as usize]);
        loop {
            let begin = self.runtime.now();
            self.round(lanes, pages, false)?;
            let (count, time) = (pages.count(), self.runtime.now().saturating_sub(begin));
            // Zero pages hardly need the link. The last pages of a guest that writes are others, so these do not count.
            rates.sent(lanes.iter().map(|lane| lane.content).sum(), time);
            (sent.rounds, sent.pages) = (sent.rounds + 1, sent.pages + count);

            pages.clear();
            let asked = self.runtime.now();
            self.get(pages).map_err(alone)?;
            let (since, mut by_vcpu) = (got, vec![0; self.hello.vcpus as usize]);
            got = self.runtime.now();
            let wanted = with_last_get(&self.wanted, got.saturating_sub(asked));
            let by_each = host.written(&mut by_vcpu);
            let left = pages.count();
            rates.written(left, got.saturating_sub(since), by_each.then_some(&by_vcpu));
            add(&mut ever, pages, self.ram.slots().len());

            let measured =
                Measured { bandwidth: rates.bandwidth(), writes: rates.writes(), working_set: ever.count(), left };
            let rounds = u64::from(self.wanted.rounds).saturating_sub(sent.rounds) as u32;
            let step = with_margin(&measured, &Wanted { rounds, ..wanted });
            host.progress(&Progress { round: sent.rounds, pages: count, time, left, plan: &step });
            let throttle = match step {
                Plan::Stop(_) => return Ok(true),
                Plan::Never(_) if self.postcopy == Postcopy::IfNeeded => return Ok(false),
                Plan::Never(forecast) => return Err(alone(Cause::Never(forecast))),
                Plan::Round(_) => full_speed(rates.writes().len()),
                Plan::Throttle(throttle, _) => throttle,
            };
            host.throttle(&throttle);
            rates.slow(&throttle);
        }
    }

    /// Sends a round over all streams.
    fn round<W: Write + Send>(&self, lanes: &mut [Lane<W>], pages: &PageSet, stopped: bool) -> Result<(), Failed> {
        let piece = piece(self.ram.slots(), lanes.len());
        let limit = self.limit.map(|limit| limit / lanes.len() as u64);
        let round = Round { ram: self.ram, pages, stopped, cancel: self.cancel, piece, limit };
        self.each(lanes, |lane| lane.round(&round, self.runtime))
    }

    fn each<W: Write + Send>(
        &self,
        lanes: &mut [Lane<W>],
        work: impl Fn(&mut Lane<W>) -> Result<(), Cause> + Sync,
    ) -> Result<(), Failed> {
        self.go_on().map_err(|cause| Failed { cause, stream: None })?;
        self.runtime.each(lanes, |lane| lane.attempt(&work));
        failed(lanes).map_err(|(stream, cause)| Failed { cause, stream: Some(stream) })
    }

    /// Adds the dirty pages of all memslots.
    fn get(&self, pages: &mut PageSet) -> Result<(), Cause> {
        for slot in 0..self.ram.slots().len() {
            pages.change(slot, |words| self.ram.get(slot, words)).unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), Cause> {
        if self.cancel.is_cancelled() { Err(Cause::Cancelled) } else { Ok(()) }
    }

    /// Says on each stream that the guest stays, as far as streams still work. What is written then decides nothing.
    fn withdraw<W: Write>(&self, lanes: &mut [Lane<W>], failed: &Failed) {
        let message = Message::Withdrawn(alloc::format!("{}", failed.cause));
        for lane in lanes {
            let _ = lane.writer.message(&message);
        }
    }
}

/// Checks that the hello has the memory's page size.
pub(crate) fn check_page_size(hello: &Hello, ram: &impl SourceRam) -> Result<(), Cause> {
    let (hello, ram) = (hello.page_shift, ram.page_shift());
    if hello == ram {
        return Ok(());
    }
    let size = |shift: u8| 1_u64.checked_shl(shift.into()).unwrap_or(0);
    Err(Cause::PageSize { hello: size(hello), ram: size(ram) })
}

/// Returns why a stream could not be written: if the target has refused the guest, that is why.
fn refused<A: Read>(failed: Failed, answers: Option<&mut Answers<A>>) -> Failed {
    let (Some(answers), Cause::Write(_)) = (answers, &failed.cause) else { return failed };
    loop {
        match answers.asked() {
            Ok(_) => {}
            Err(why @ AnswerError::Refused(_)) => return Failed { cause: why.into(), stream: None },
            Err(_) => return failed,
        }
    }
}

/// Sends sections on stream 0.
fn sections<W: Write>(
    lanes: &mut [Lane<W>],
    sections: Result<Vec<Section>, alloc::string::String>,
) -> Result<(), Failed> {
    let failed = |cause| Failed { cause, stream: Some(0) };
    let sections = sections.map_err(|why| failed(Cause::State(why)))?;
    lanes.iter_mut().take(1).try_for_each(|lane| lane.sections(&sections)).map_err(failed)
}

/// Adds the last `get`, for which the stopped guest waits, to what pages do not take. It takes as long as the one before,
/// and the link as long again, at most, for the pages that the guest wrote during that one. A `get` that took most of the
/// downtime was disturbed, or the memory is too large for this downtime; rounds cannot tell, and would not mend the
/// latter. So half of the time is left to pages.
fn with_last_get(wanted: &Wanted, get: Duration) -> Wanted {
    let pages = wanted.downtime.saturating_sub(wanted.fixed);
    Wanted { fixed: wanted.fixed.saturating_add(get.saturating_mul(2).min(pages / 2)), ..*wanted }
}

/// Plans the next step. The guest is stopped when the rest fits. Until then rounds and throttle aim at less, because what
/// was measured of short rounds is not exact.
fn with_margin(measured: &Measured<'_>, wanted: &Wanted) -> Plan {
    let pages = wanted.downtime.saturating_sub(wanted.fixed);
    let less = Wanted { downtime: wanted.downtime.saturating_sub(pages / 4), ..*wanted };
    match plan(measured, wanted) {
        step @ (Plan::Stop(_) | Plan::Never(_)) => step,
        step => match plan(measured, &less) {
            Plan::Stop(_) | Plan::Never(_) => step,
            sooner => sooner,
        },
    }
}

/// Adds pages to those that were ever written: the least that the working set has.
fn add(ever: &mut PageSet, pages: &PageSet, slots: usize) {
    for slot in 0..slots {
        ever.change(slot, |words| words.iter_mut().zip(pages.words(slot)).for_each(|(ever, now)| *ever |= now));
    }
}

/// No throttle.
fn full_speed(numbers: usize) -> Throttle {
    Throttle { slowed: vec![0; numbers], rate: u64::MAX }
}
