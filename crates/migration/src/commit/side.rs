// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A side with its hands: it raises events, and has the embedder do what follows.
//!
//! Invariant: actions are done in their order, and the arbiter's answer is an event like any other. So what the search
//! in `tests/commit` says of [`step`] holds here.

use alloc::collections::VecDeque;

use super::ownership::{Owner, Ownership, Request};
use super::party::{Action, Event, State, step};

/// What the embedder does for a side.
pub trait Embedder {
    /// Asks the arbiter, and returns what the record then holds; `None` if there is no answer. The answer may come
    /// later too, as [`Event::Record`].
    fn ask(&mut self, request: Request) -> Option<Ownership>;

    /// Runs the guest from its memory here.
    fn run(&mut self);

    /// Runs the guest from its images: its memory is lost.
    fn boot(&mut self);

    /// Releases the guest's memory.
    fn release(&mut self);

    /// Says to the other side what the record holds, if there is a link.
    fn announce(&mut self, now: Ownership);
}

/// One side of a commit.
#[derive(Debug)]
pub struct Side {
    me: Owner,
    state: State,
}

impl Side {
    /// A side in a state: [`State::START`], or [`State::Running`] for one that has just made a guest and its record.
    pub const fn new(me: Owner, state: State) -> Self {
        Self { me, state }
    }

    /// The side's name in the record.
    pub const fn me(&self) -> Owner {
        self.me
    }

    /// The side's state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Raises an event, and does what follows. Returns the state after it.
    pub fn raise(&mut self, event: Event, embedder: &mut impl Embedder) -> State {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let (state, actions) = step(self.me, self.state, event);
            self.state = state;
            for action in actions {
                match action {
                    Action::Run => embedder.run(),
                    Action::Boot => embedder.boot(),
                    Action::Release => embedder.release(),
                    Action::Ask(request) => events.extend(embedder.ask(request).map(Event::Record)),
                    Action::Announce(now) => embedder.announce(now),
                }
            }
        }
        self.state
    }
}
