// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two sides, an arbiter, and a network that loses, delays, repeats and reorders.
//!
//! A message stays in the network when it is delivered, so it may come again, at any later time, to any later
//! incarnation. A message that never comes is lost.

use std::collections::BTreeSet;

use stateright::{Model, Property};
use twofold_migration::commit::{Action, Event, Owner, Ownership, Request, State, arbitrate, step};

/// What is explored: a protocol, and how often what may happen.
#[derive(Clone)]
pub struct Commit {
    /// How often a guest is stopped to be moved, by either side.
    pub moves: u8,
    /// How often a side crashes.
    pub crashes: u8,
    pub step: fn(Owner, State, Event) -> (State, Vec<Action>),
    pub arbitrate: fn(&mut Ownership, Request) -> Ownership,
    /// Whether a side that starts again is another owner.
    pub incarnations: bool,
    /// Whether the stream ends as soon as the guest is stopped, and not with the offer.
    pub ends_early: bool,
}

impl Default for Commit {
    fn default() -> Self {
        Self { moves: 2, crashes: 1, step, arbitrate, incarnations: true, ends_early: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub sides: [Side; 2],
    pub record: Ownership,
    network: BTreeSet<Envelope>,
    moves: u8,
    crashes: u8,
    /// Counts the stops and boots of the guest: the version of its memory.
    version: u8,
    /// Whether a side ran the guest from memory that was not the guest's last.
    hollow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    up: bool,
    me: Owner,
    pub state: State,
    /// The version of the guest's memory here.
    memory: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Envelope {
    /// All of the guest, by a stream, with its memory's version.
    Stream(usize, Ownership, u8),
    /// A side's request.
    Ask(usize, Request),
    /// What the record held when the arbiter answered a side, or when the other side had it.
    Record(usize, Ownership),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happens {
    Comes(Envelope),
    Tick(usize),
    Stop(usize),
    Offer(usize),
    Cancel(usize),
    Crash(usize),
    Start(usize),
}

impl Happens {
    /// Whether it happens when links and sides are back.
    pub fn is_good(self) -> bool {
        !matches!(self, Self::Stop(_) | Self::Cancel(_) | Self::Crash(_))
    }
}

impl World {
    pub fn runners(&self) -> usize {
        self.sides.iter().filter(|side| matches!(side.state, State::Running { .. })).count()
    }

    /// Returns the same sides and record, with nothing in the network, and nothing that is to fail.
    pub fn calm(&self) -> Self {
        let mut calm = self.clone();
        calm.network.clear();
        (calm.moves, calm.crashes, calm.version, calm.hollow) = (0, 0, 0, false);
        for side in &mut calm.sides {
            side.memory = None;
        }
        calm
    }

    /// Sends the end of a stream with all of the guest, which is stopped.
    fn end_stream(&mut self, at: usize) {
        if let State::Stopped { owned } = self.sides[at].state {
            self.network.insert(Envelope::Stream(1 - at, owned, self.version));
        }
    }

    fn raise(&mut self, commit: &Commit, at: usize, event: Event) {
        let side = &mut self.sides[at];
        let (state, actions) = (commit.step)(side.me, side.state, event);
        side.state = state;
        for action in actions {
            let side = &mut self.sides[at];
            match action {
                Action::Run => self.hollow |= side.memory != Some(self.version),
                Action::Boot => {
                    self.version += 1;
                    side.memory = Some(self.version);
                }
                Action::Release => side.memory = None,
                Action::Ask(request) => drop(self.network.insert(Envelope::Ask(at, request))),
                Action::Announce(now) => drop(self.network.insert(Envelope::Record(1 - at, now))),
            }
        }
    }

    fn deliver(&mut self, commit: &Commit, envelope: Envelope) {
        match envelope {
            Envelope::Ask(from, request) => {
                let now = (commit.arbitrate)(&mut self.record, request);
                self.network.insert(Envelope::Record(from, now));
            }
            Envelope::Record(to, now) => self.raise(commit, to, Event::Record(now)),
            // A side that has a guest does not let another in.
            Envelope::Stream(to, from, version) => {
                if matches!(self.sides[to].state, State::Idle { .. }) {
                    self.sides[to].memory = Some(version);
                    self.raise(commit, to, Event::Received(from));
                }
            }
        }
    }
}

impl Model for Commit {
    type State = World;
    type Action = Happens;

    fn init_states(&self) -> Vec<World> {
        let [first, second] = [0, 1].map(|host| Owner { host, incarnation: 0 });
        let record = Ownership { owner: first, epoch: 0 };
        let source = Side { up: true, me: first, state: State::Running { owned: record }, memory: Some(0) };
        let target = Side { up: true, me: second, state: State::START, memory: None };
        let (moves, crashes, network) = (self.moves, self.crashes, BTreeSet::new());
        vec![World { sides: [source, target], record, network, moves, crashes, version: 0, hollow: false }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Happens>) {
        let up = |to: usize| world.sides[to].up;
        for &envelope in &world.network {
            let arrives = match envelope {
                Envelope::Stream(to, ..) | Envelope::Record(to, _) => up(to),
                Envelope::Ask(..) => true,
            };
            if arrives {
                actions.push(Happens::Comes(envelope));
            }
        }
        for at in [0, 1] {
            if !up(at) {
                actions.push(Happens::Start(at));
                continue;
            }
            actions.extend([Happens::Tick(at), Happens::Cancel(at)]);
            match world.sides[at].state {
                State::Running { .. } if world.moves > 0 => actions.push(Happens::Stop(at)),
                State::Stopped { .. } => actions.push(Happens::Offer(at)),
                _ => {}
            }
            if world.crashes > 0 {
                actions.push(Happens::Crash(at));
            }
        }
    }

    fn next_state(&self, world: &World, action: Happens) -> Option<World> {
        let mut next = world.clone();
        match action {
            Happens::Comes(envelope) => next.deliver(self, envelope),
            Happens::Tick(at) => next.raise(self, at, Event::Tick),
            Happens::Offer(at) => {
                next.end_stream(at);
                next.raise(self, at, Event::Offer);
            }
            Happens::Cancel(at) => next.raise(self, at, Event::Cancel),
            Happens::Stop(at) => {
                (next.moves, next.version) = (next.moves - 1, next.version + 1);
                next.sides[at].memory = Some(next.version);
                next.raise(self, at, Event::Stop);
                if self.ends_early {
                    next.end_stream(at);
                }
            }
            Happens::Crash(at) => {
                next.crashes -= 1;
                let side = &mut next.sides[at];
                (side.up, side.state, side.memory) = (false, State::START, None);
            }
            Happens::Start(at) => {
                let side = &mut next.sides[at];
                side.up = true;
                side.me.incarnation += u64::from(self.incarnations);
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE, |_: &Self, world: &World| world.runners() <= 1),
            Property::always(OWNER, |_, world: &World| {
                world.sides.iter().all(|side| match side.state {
                    State::Running { owned } => owned == world.record && owned.owner == side.me,
                    _ => true,
                })
            }),
            Property::always(WHOLE, |_, world: &World| !world.hollow),
            Property::always(KEPT, |commit: &Self, world: &World| {
                let boots = |side: &Side| matches!(side.state, State::InDoubt { boot: true, .. });
                world.crashes < commit.crashes || !world.sides.iter().any(boots)
            }),
        ]
    }
}

/// The properties of each state.
pub const ONE: &str = "at most one side runs";
pub const OWNER: &str = "a side that runs owns the record";
pub const WHOLE: &str = "a guest runs from its last memory, or boots";
pub const KEPT: &str = "without a crash no memory is lost";
