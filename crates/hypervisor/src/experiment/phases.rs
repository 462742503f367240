// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The phases of an experiment, as its guest marks them ([`twofold_abi::vendor::PHASE`]), and the figures of each.
//!
//! Invariant: the figures of a phase cover all work at EL2 between two marks of the guest, from the vector of each exit
//! to the next entry, but not the marks themselves. A phase adds no counting of its own, and nothing is written before
//! the guest has ended, so phases do not change the cost that they measure.

use alloc::vec::Vec;

use twofold_abi::{control as channel, vendor};

use super::baselines::Baselines;
use super::log_calls::LogCalls;
use super::observed_guest::ObservedGuest;
use crate::control;
use crate::stats::{self, Meter, Purpose};

/// The phases that the guest marked.
pub struct Phases {
    now: Option<Phase>,
    /// At most [`vendor::PHASES_MAX`]; the room is allocated at the start.
    past: Vec<Phase>,
}

/// A phase, and the counts at its start; once it has ended, its figures.
struct Phase {
    /// An index of [`vendor::PHASES`].
    name: usize,
    spent: Spent,
}

#[derive(Clone, Copy)]
struct Spent {
    /// Without calls that mark phases.
    instructions: u64,
    /// Pages that logs reported.
    pages: u64,
    /// Blocks that were coalesced.
    blocks: u64,
    /// In the order of [`stats::for_each_event`].
    events: [u64; EVENTS],
}

/// Room for the events that are counted.
const EVENTS: usize = 32;

impl Default for Phases {
    /// No phase yet, and room for the most that there may be.
    fn default() -> Self {
        Self { now: None, past: Vec::with_capacity(vendor::PHASES_MAX) }
    }
}

impl Phases {
    /// Answers the call with these arguments (x0 and x1). Returns `None` if it is not a phase call. An error names a
    /// phase in which a count fell.
    pub fn call(
        &mut self,
        guest: &impl ObservedGuest,
        meter: &mut Meter,
        log: &LogCalls,
        [function, name]: [u64; 2],
    ) -> Option<Result<i64, &'static str>> {
        if function != u64::from(vendor::PHASE) {
            return None;
        }
        meter.is_for(Purpose::Phase);
        if let Some(Phase { name, spent }) = self.now.take() {
            match Spent::by(guest, log).since(&spent) {
                Some(spent) => self.past.push(Phase { name, spent }),
                None => return Some(Err(vendor::PHASES[name])),
            }
        }
        if name == vendor::NO_PHASE {
            return Some(Ok(vendor::SUCCESS));
        }
        if name >= vendor::PHASES.len() as u64 || self.past.len() == vendor::PHASES_MAX {
            return Some(Ok(vendor::INVALID_PARAMETER));
        }
        self.now = Some(Phase { name: name as usize, spent: Spent::by(guest, log) });
        Some(Ok(vendor::SUCCESS))
    }

    /// Writes the figures of each phase to the control channel.
    pub fn report(&self, guest: &impl ObservedGuest) {
        let mut numbers = [0; vendor::PHASES.len()];
        for Phase { name, spent } in &self.past {
            numbers[*name] += 1;
            let (name, number) = (vendor::PHASES[*name], numbers[*name]);
            let write = |group: &str, what: &str, value: u64| {
                if value != 0 {
                    let dot = if what.is_empty() { "" } else { "." };
                    control::line(channel::STAT, format_args!("phase.{name}.{number}.{group}{dot}{what} {value}"));
                }
            };
            control::line(channel::STAT, format_args!("phase.{name}.{number}.instructions {}", spent.instructions));
            write("pages", "", spent.pages);
            write("blocks", "", spent.blocks);
            let mut events = spent.events.iter();
            for_each_event(guest, |group, what, _| {
                write(group, what, *events.next().expect("the events are the same"))
            });
        }
    }
}

impl Spent {
    /// The counts up to this exit.
    fn by(guest: &impl ObservedGuest, log: &LogCalls) -> Self {
        let mut events = [0; EVENTS];
        let mut places = events.iter_mut();
        for_each_event(guest, |_, _, value| *places.next().expect("there is room for all events") = value);
        let instructions = guest.stats().map(|stats| stats.instructions_but(Purpose::Phase)).sum();
        Self { instructions, pages: log.pages_reported(), blocks: log.blocks_coalesced(), events }
    }

    /// The difference to `before`; `None` if a count fell.
    fn since(&self, before: &Self) -> Option<Self> {
        let mut events = [0; EVENTS];
        for (event, (now, before)) in events.iter_mut().zip(self.events.iter().zip(&before.events)) {
            *event = now.checked_sub(*before)?;
        }
        Some(Self {
            instructions: self.instructions.checked_sub(before.instructions)?,
            pages: self.pages.checked_sub(before.pages)?,
            blocks: self.blocks.checked_sub(before.blocks)?,
            events,
        })
    }
}

fn for_each_event(guest: &impl ObservedGuest, mut each: impl FnMut(&str, &str, u64)) {
    let memory = guest.memory();
    Baselines::for_each_event(memory, &mut each);
    stats::for_each_event(guest.stats(), &memory.counts(), memory.stage2().platform().counts(), &mut each);
}
