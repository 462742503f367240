// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target: a guest comes over one stream or several, and is checked before this side asks for it.
//!
//! [`Receive::run`] does all of it up to the commit:
//!
//! * T1: read hello and memslots of each stream. Compare them with what this target has, and with each other (`join`).
//! * T2: have the embedder build the machine ([`Host::build`]), and accept.
//! * T3: read each stream to the end of a round, and store the pages. All streams end a round before any goes on.
//!   Before the first round and after each, hand over the sections that came. The memory may have a store and fewer frames than pages: then
//!   pages that came leave to that store, by the embedder's write-out task, while others come. A stream whose page waits
//!   for a frame is not read on meanwhile, so the source waits, too.
//! * T4: all streams have ended with the same offer. The embedder checks that the guest could run.
//!
//! [`Received::take`] then is C3 of [`commit`](crate::commit): this side is in doubt, and asks the arbiter.
//!
//! Invariants:
//!
//! * A [`Received`] exists only if all of the guest came: each page in the first round, and every round in every stream.
//!   With absent pages ([`postcopy`](crate::postcopy)): each page in a round, or as an absent one.
//! * If anything fails before that, what came is released, the source gets the reason, and this side is idle as before.
//!   The guest is the source's.

mod error;
mod host;
mod join;
mod lane;
mod phase;

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

use embedded_io::Read;

pub use error::{JoinError, ReceiveError};
pub use host::Host;

use crate::commit::{Event, Ownership, Side, State};
use crate::pages::PageSet;
use crate::postcopy::{Incoming, Target};
use crate::runtime::Runtime;
use crate::stream::wire::WHOLE;
use crate::stream::{Capabilities, Hello, Message, Slot};
use join::{Joined, Seen};
use lane::Lane;
use phase::Phase;

/// A target that takes guests.
pub struct Receive<'a, R> {
    /// What this target has.
    pub here: Capabilities,
    /// The most bytes that all sections of a guest may have together.
    pub sections: u64,
    /// The threads.
    pub runtime: &'a R,
}

/// A guest that came whole. The source has offered it, and may have taken it back meanwhile: only the arbiter knows.
#[must_use = "a guest that came is taken, or released"]
pub struct Received<S> {
    /// Which guest it is.
    pub hello: Hello,
    /// Its memslots.
    pub slots: Vec<Slot>,
    /// Under which ownership it was stopped and offered.
    pub from: Ownership,
    /// The pages that are absent, and the stream by which they come.
    pub postcopy: Option<(Target, Incoming<S>)>,
}

impl<S> fmt::Debug for Received<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let absent = self.postcopy.as_ref().map_or(0, |(target, _)| target.absent().count());
        let mut shown = formatter.debug_struct("Received");
        shown.field("hello", &self.hello).field("from", &self.from).field("absent", &absent).finish()
    }
}

impl<S> Received<S> {
    /// Asks the arbiter for the guest (C3), and runs it if this side wins (C4). If the state is
    /// [`State::InDoubt`] then, the arbiter has not answered: raise [`Event::Tick`] from time to time. The pages that are
    /// absent, if any, come by the stream that is returned.
    pub fn take(self, side: &mut Side, host: &mut impl Host) -> (State, Option<(Target, Incoming<S>)>) {
        (side.raise(Event::Received(self.from), host), self.postcopy)
    }
}

impl<R: Runtime> Receive<'_, R> {
    /// Receives a guest by these streams, which may come in any order.
    ///
    /// # Errors
    ///
    /// What is wrong with it. The source gets the reason, as far as it still listens.
    pub fn run<S: Read + Send, H: Host>(
        &self,
        sources: Vec<S>,
        side: &Side,
        host: &mut H,
    ) -> Result<Received<S>, ReceiveError> {
        let mut built = false;
        self.receive(sources, side, host, &mut built).inspect_err(|error| {
            if built {
                host.release();
            }
            host.answer(&Message::Refused(error.to_string()));
        })
    }

    fn receive<S: Read + Send, H: Host>(
        &self,
        sources: Vec<S>,
        side: &Side,
        host: &mut H,
        built: &mut bool,
    ) -> Result<Received<S>, ReceiveError> {
        if !matches!(side.state(), State::Idle { .. }) {
            return Err(ReceiveError::Busy(side.state()));
        }
        let Heads { mut lanes, hello, slots } = self.heads(sources)?;
        let absent = lanes.first().is_some_and(|lane| lane.version() > WHOLE);
        host.build(&hello, &slots, absent).map_err(ReceiveError::Host)?;
        *built = true;
        // A target that cannot have this memory says so before the source sends it.
        host.ram()?;
        host.answer(&Message::Accepted);
        let all = (!absent).then_some(hello.memory >> hello.page_shift);
        let mut seen = Seen::new(&slots, lanes.len() > 1, absent);
        loop {
            seen.begin();
            let ram = host.ram()?;
            self.runtime.each(&mut lanes, |lane| lane.phase = Some(lane.read(&ram, &seen, self.runtime)));
            drop(ram);
            let joined = join::phases(&phases(&mut lanes)?, all)?;
            for section in lanes.iter_mut().flat_map(|lane| lane.sections.drain(..)) {
                host.section(section).map_err(ReceiveError::Host)?;
            }
            if let Joined::End(from) = joined {
                let lane = lanes.remove(0);
                let absent = lane.absent.clone().unwrap_or(PageSet::none(&slots));
                seen.never_came(&slots, &absent)?;
                if !absent.is_empty() {
                    host.absent(&absent).map_err(ReceiveError::Host)?;
                }
                host.ready().map_err(ReceiveError::Host)?;
                let target = (!absent.is_empty()).then(|| Target::new(&slots, absent));
                let postcopy = target.map(|target| (target, Incoming::new(lane.into_reader(), &slots)));
                return Ok(Received { hello, slots, from, postcopy });
            }
        }
    }

    /// T1.
    fn heads<S: Read + Send>(&self, sources: Vec<S>) -> Result<Heads<S>, ReceiveError> {
        let lane = |(place, source)| Lane::new(source, place, &self.here, self.sections);
        let mut lanes: Vec<_> = sources.into_iter().enumerate().map(lane).collect();
        self.runtime.each(&mut lanes, |lane| {
            // The phase is replaced by the first that is read.
            lane.phase = lane.greet().err().map(Err);
        });
        lanes.iter_mut().find_map(|lane| lane.phase.take()).transpose()?;
        lanes.sort_by_key(Lane::number);
        let version = lanes.first().map_or(WHOLE, Lane::version);
        let other = lanes.iter().find(|lane| lane.version() != version);
        other.map_or(Ok(()), |lane| Err(JoinError::Differs { stream: lane.number(), what: "version" }))?;
        let heads: Vec<_> =
            lanes.iter().filter_map(|lane| lane.head.as_ref()).map(|(hello, slots)| (hello, &**slots)).collect();
        join::heads(&heads)?;
        let (hello, slots) = (heads[0].0.clone(), heads[0].1.to_vec());
        Ok(Heads { lanes, hello, slots })
    }
}

/// Streams of one migration, and the guest that they carry.
struct Heads<S> {
    lanes: Vec<Lane<S>>,
    hello: Hello,
    slots: Vec<Slot>,
}

/// Returns what all streams have come to, or the first error.
fn phases<S: Read>(lanes: &mut [Lane<S>]) -> Result<Vec<Phase>, ReceiveError> {
    // A stream that was withdrawn says more than those that end because of it.
    let withdrawn = |lane: &Lane<S>| matches!(lane.phase, Some(Err(ReceiveError::Withdrawn(_))));
    if let Some(lane) = lanes.iter_mut().find(|lane| withdrawn(lane)) {
        lane.phase.take().transpose()?;
    }
    lanes.iter_mut().filter_map(|lane| lane.phase.take()).collect()
}
