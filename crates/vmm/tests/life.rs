// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a guest, by all sequences of commands and events, against a model that counts the guest's time tick by tick.

use twofold_abi::channel::GuestState;
use twofold_vmm::life::{Life, NotNow, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Stop,
    Continue,
    Reset,
    Quit,
    VcpusLeft,
    HasBegun,
    CannotBegin,
    ResetsItself,
    EndsItself,
    Fails,
}

const EVENTS: [Event; 10] = [
    Event::Stop,
    Event::Continue,
    Event::Reset,
    Event::Quit,
    Event::VcpusLeft,
    Event::HasBegun,
    Event::CannotBegin,
    Event::ResetsItself,
    Event::EndsItself,
    Event::Fails,
];
const LENGTH: usize = 6;

/// Facts, each on its own, where the code has one state.
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    /// How it has ended.
    ended: Option<GuestState>,
    /// A reset is under way.
    is_anew: bool,
    /// A launcher wants it to stand still.
    is_held: bool,
    /// It was seen that no vCPU runs, since it is held.
    is_out: bool,
    now: u64,
    /// The guest's counter, and the ticks without one.
    counter: u64,
    still: u64,
}

impl Model {
    fn tick(&mut self) {
        self.now += 1;
        if self.is_out {
            self.still += 1;
        } else {
            self.counter += 1;
        }
    }

    /// Whether the event has an effect.
    fn happens(&mut self, event: Event) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let executes = !self.is_anew && !self.is_out;
        let happens = match event {
            Event::Stop => !self.is_held,
            Event::Continue => self.is_out && !self.is_anew,
            Event::Reset => !self.is_anew,
            Event::Quit => true,
            Event::VcpusLeft => self.is_held && executes,
            Event::HasBegun | Event::CannotBegin => self.is_anew,
            Event::ResetsItself | Event::EndsItself | Event::Fails => executes,
        };
        if happens {
            match event {
                Event::Stop => self.is_held = true,
                Event::Continue => (self.is_held, self.is_out) = (false, false),
                Event::Reset | Event::ResetsItself => self.is_anew = true,
                Event::VcpusLeft => self.is_out = true,
                Event::HasBegun => (self.is_anew, self.is_out) = (false, self.is_held),
                Event::Quit | Event::EndsItself => self.ended = Some(GuestState::Off),
                Event::CannotBegin | Event::Fails => self.ended = Some(GuestState::Failed),
            }
        }
        happens
    }

    fn shown(&self) -> GuestState {
        match *self {
            Self { ended: Some(state), .. } => state,
            Self { is_anew: true, .. } => GuestState::Reset,
            Self { is_out: true, .. } => GuestState::Stopped,
            _ => GuestState::Running,
        }
    }
}

fn happens(life: &mut Life, event: Event, now: u64) -> bool {
    let before = life.state();
    let command = |result: Result<(), NotNow>| match result {
        Ok(()) => true,
        Err(NotNow(state)) => {
            assert_eq!(state, before);
            false
        }
    };
    match event {
        Event::Stop => command(life.stop()),
        Event::Continue => command(life.go_on(now)),
        Event::Reset => command(life.reset()),
        Event::Quit => command(life.quit()),
        Event::VcpusLeft => life.vcpus_left(now),
        Event::HasBegun => {
            let runs = life.has_begun(now);
            assert!(runs.is_none_or(|runs| runs == life.may_run()), "{before:?}: {runs:?}");
            runs.is_some()
        }
        Event::CannotBegin => life.cannot_begin(),
        Event::ResetsItself => life.changes_itself(None),
        Event::EndsItself => life.changes_itself(Some(State::Off)),
        Event::Fails => life.changes_itself(Some(State::Failed)),
    }
}

/// The machine's time at which the guest begins.
const START: u64 = 1000;

fn go(life: &Life, model: &Model, path: &mut Vec<Event>) {
    if path.len() == LENGTH {
        return;
    }
    for event in EVENTS {
        let (mut life, mut model) = (life.clone(), *model);
        path.push(event);
        // The pieces of time are of different lengths, so that no two of them are taken for each other.
        (0..1 << path.len()).for_each(|_| model.tick());
        let now = START + model.now;
        let before = (life.state(), life.offset());
        let happened = happens(&mut life, event, now);
        assert_eq!(happened, model.happens(event), "{path:?} from {before:?}");
        assert_eq!(life.shown(), model.shown(), "{path:?}");
        assert!(!life.is_incoming(), "{path:?}");
        assert_eq!(life.may_run(), model.shown() == GuestState::Running && !model.is_held, "{path:?}");
        let is_stopping = model.is_held && (!model.is_out || model.is_anew) && model.ended.is_none();
        assert_eq!(life.is_stopping(), is_stopping, "{path:?}");
        if model.ended.is_none() {
            assert_eq!(life.counter(now), model.counter, "{path:?}");
            assert_eq!(life.stood_still(now), model.still, "{path:?}");
        }
        if !happened {
            assert_eq!((life.state(), life.offset()), before, "{path:?}");
        }
        if life.may_run() {
            assert_eq!(now - life.offset(), model.counter, "{path:?}");
        }
        if before.0 == State::Running || life.state() != State::Running {
            assert_eq!(
                life.offset(),
                before.1,
                "{path:?}: the offset changes before a guest runs, and at no other time"
            );
        }
        go(&life, &model, path);
        path.pop();
    }
}

#[test]
fn all_sequences_agree_with_the_model() {
    go(&Life::new(START), &Model::default(), &mut Vec::new());
}

#[test]
fn a_guest_from_elsewhere_is_stopped_and_its_counter_goes_on() {
    for (counter, at) in [(1_000, 5_000), (7_000, 5_000), (0, 0), (u64::MAX >> 1, 3)] {
        let mut life = Life::incoming(at - at.min(1));
        assert!(life.is_incoming() && !life.may_run() && life.shown() == GuestState::Stopped);
        assert_eq!(life.counter(at), 0);
        assert!(life.set_counter(counter, at));
        assert_eq!((life.counter(at), life.counter(at + 9)), (counter, counter), "it stands still");
        life.go_on(at + 10).unwrap();
        assert_eq!((life.counter(at + 10), life.counter(at + 17)), (counter, counter + 7));
        assert_eq!(life.offset(), (at + 10).wrapping_sub(counter));
        // It has run here.
        assert!(!life.is_incoming() && !life.set_counter(0, at + 17));
        life.stop().unwrap();
        assert!(life.vcpus_left(at + 20) && !life.is_incoming() && !life.set_counter(0, at + 21));
        assert_eq!(life.counter(at + 21), counter + 10);
    }
}

#[test]
fn a_guest_from_elsewhere_that_starts_anew_has_no_state_to_replace() {
    let mut life = Life::incoming(5);
    life.reset().unwrap();
    assert!(!life.is_incoming() && !life.set_counter(9, 6));
    assert_eq!(life.counter(6), 0);
}

#[test]
fn a_refusal_says_what_the_guest_does() {
    let mut life = Life::new(0);
    life.stop().unwrap();
    assert_eq!(life.stop().unwrap_err().to_string(), "the guest is about to stop");
    assert!(life.vcpus_left(7));
    assert_eq!(life.stop().unwrap_err().to_string(), "the guest is stopped");
    life.go_on(9).unwrap();
    assert_eq!(life.go_on(9).unwrap_err(), NotNow(State::Running));
}
