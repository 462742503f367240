// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One side of the commit. The labels are those of the module's documentation.

use alloc::vec;
use alloc::vec::Vec;

use super::ownership::{Owner, Ownership, Request};

/// A side's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The side has no guest.
    Idle {
        /// The newest epoch that the side knows of. A message of an older epoch is late, and changes nothing (R5).
        seen: u64,
    },
    /// The side runs the guest.
    Running {
        /// What the record holds.
        owned: Ownership,
    },
    /// The guest stands still, and was not offered (C1).
    Stopped {
        /// What the record holds.
        owned: Ownership,
    },
    /// The guest stands still here, and the side does not know whether it owns the guest (C2, C3, R3).
    InDoubt {
        /// What the record held. The side wants to take the guest from there.
        from: Ownership,
        /// Whether the guest's memory is lost, so that it is booted anew (R3).
        boot: bool,
    },
}

/// What a side learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// The embedder has stopped the guest, to move it.
    Stop,
    /// The embedder sends the end of the stream now, with what the record holds.
    Offer,
    /// The embedder wants the guest to stay here. A target that has received a whole guest has nothing to cancel.
    Cancel,
    /// No message has arrived for a while. An idle side gets this event too, after its start and from time to time.
    Tick,
    /// A whole guest has arrived and was checked, and could run here now. The stream ended with this ownership.
    Received(Ownership),
    /// The record's content, from the arbiter or the other side. It may be old.
    Record(Ownership),
}

/// What a side has to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Run the guest from its memory here.
    Run,
    /// Run the guest from its images: its memory is lost.
    Boot,
    /// Release the guest's memory.
    Release,
    /// Send a request to the arbiter.
    Ask(Request),
    /// Say to the other side what the record holds.
    Announce(Ownership),
}

impl State {
    /// The state of a side that has just started.
    pub const START: Self = Self::Idle { seen: 0 };
}

/// Returns the state of the side `me` after an event, and what it has to do. An event that means nothing in a state
/// changes nothing.
pub fn step(me: Owner, state: State, event: Event) -> (State, Vec<Action>) {
    let take = |from| Action::Ask(Request::Take { from, by: me });
    match (state, event) {
        (State::Running { owned }, Event::Stop) => (State::Stopped { owned }, vec![]),
        (State::Stopped { owned }, Event::Cancel) => (State::Running { owned }, vec![Action::Run]),
        (State::Stopped { owned }, Event::Offer) => (State::InDoubt { from: owned, boot: false }, vec![]),

        (State::InDoubt { from, .. }, Event::Tick | Event::Cancel) => (state, vec![take(from)]),
        (State::InDoubt { from, boot }, Event::Record(now)) if now == from.taken_by(me) => {
            let run = if boot { Action::Boot } else { Action::Run };
            (State::Running { owned: now }, vec![run, Action::Announce(now)])
        }
        (State::InDoubt { from, .. }, Event::Record(now)) if now.epoch > from.epoch => {
            (State::Idle { seen: now.epoch }, vec![Action::Release])
        }

        (State::Idle { seen }, Event::Received(from)) if from.epoch >= seen => {
            (State::InDoubt { from, boot: false }, vec![take(from)])
        }
        (State::Idle { .. }, Event::Received(_)) => (state, vec![Action::Release]),
        (State::Idle { .. }, Event::Tick) => (state, vec![Action::Ask(Request::Read)]),
        (State::Idle { seen }, Event::Record(now)) if now.epoch >= seen => {
            if now.owner.host == me.host && now.owner != me {
                (State::InDoubt { from: now, boot: true }, vec![take(now)])
            } else {
                (State::Idle { seen: now.epoch }, vec![])
            }
        }
        _ => (state, vec![]),
    }
}
