// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a guest: whether its vCPUs may run, what commands and the guest itself change, and the guest's time.
//!
//! A state machine: a command or an event goes in with the machine's time, and the embedder carries out what comes out. A
//! guest has one [`Life`] behind one lock.
//!
//! | from | event | to |
//! |---|---|---|
//! | running | command stop | stopping: its vCPUs leave their CPUs |
//! | stopping | [`Life::vcpus_left`] | stopped |
//! | stopped | command continue | running |
//! | running | it resets itself, or command reset | anew |
//! | stopping, stopped | the same | anew, then stopped |
//! | anew | command stop | anew, then stopped |
//! | anew | [`Life::has_begun`] | running |
//! | anew, then stopped | the same | stopped, before the first instruction |
//! | running, stopping | it ends itself | off |
//! | any but off and failed | command quit | off |
//! | running, stopping, anew | it cannot go on | failed |
//!
//! A guest that comes from elsewhere begins as *stopped*.
//!
//! Each other command is refused, and each other event has no effect. So of several that end or reset a guest, the first
//! counts.
//!
//! # Time
//!
//! The guest's counters are behind the machine's by [`Life::offset`]. They stand still while the guest is stopped: from
//! [`Life::vcpus_left`] (or from [`Life::has_begun`], for a stop during a reset) up to the command to continue, which adds
//! what has passed to the offset. A reset changes nothing in this: the counters go on.
//!
//! Invariants: the vCPUs may run in the state *running* alone. The offset changes only from *stopped* to *running*, so
//! never while a vCPU runs; and a counter never goes back.

use thiserror::Error;
use twofold_abi::channel::GuestState;

/// The life of one guest.
#[derive(Clone, Debug)]
pub struct Life {
    state: State,
    offset: u64,
    /// The machine's time from which on the counters stand still.
    still_since: Option<u64>,
    /// For how long the counters stood still before.
    stood_still: u64,
    /// It comes from elsewhere, and has not run here.
    is_incoming: bool,
}

/// What a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its vCPUs may run.
    Running,
    /// Its vCPUs are about to leave their CPUs.
    Stopping,
    /// No vCPU runs.
    Stopped,
    /// It starts anew. No vCPU runs, or is about to leave its CPU.
    Anew {
        /// It is stopped before its first instruction.
        then_stopped: bool,
    },
    /// It has switched itself off, or was ended by a command.
    Off,
    /// It could not go on.
    Failed,
}

/// A command does not fit the guest's state. It had no effect.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the guest {}", match .0 {
    State::Running => "runs",
    State::Stopping => "is about to stop",
    State::Stopped => "is stopped",
    State::Anew { then_stopped: false } => "starts anew",
    State::Anew { then_stopped: true } => "starts anew, and is about to stop",
    State::Off => "is off",
    State::Failed => "has failed",
})]
pub struct NotNow(pub State);

impl Life {
    /// A guest that runs, and whose counters begin now.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self { state: State::Running, offset: now, still_since: None, stood_still: 0, is_incoming: false }
    }

    /// A guest that comes from elsewhere: it is stopped, and its counters are 0 until [`set_counter`](Self::set_counter).
    #[must_use]
    pub fn incoming(now: u64) -> Self {
        Self { state: State::Stopped, still_since: Some(now), is_incoming: true, ..Self::new(now) }
    }

    /// Whether the guest comes from elsewhere, and has not run here: its state may be replaced.
    #[must_use]
    pub fn is_incoming(&self) -> bool {
        self.is_incoming && self.state == State::Stopped
    }

    /// The counters that the guest had where it was stopped. Returns whether it comes from elsewhere; else nothing changes.
    pub fn set_counter(&mut self, counter: u64, now: u64) -> bool {
        if self.is_incoming() {
            // The machine's counter may be below the guest's: an offset wraps, as CNTVOFF_EL2 does.
            self.offset = now.wrapping_sub(counter);
            self.still_since = Some(now);
        }
        self.is_incoming()
    }

    /// What the guest does.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The same for a launcher. A guest that is about to stop still runs.
    #[must_use]
    pub fn shown(&self) -> GuestState {
        match self.state {
            State::Running | State::Stopping => GuestState::Running,
            State::Stopped => GuestState::Stopped,
            State::Anew { .. } => GuestState::Reset,
            State::Off => GuestState::Off,
            State::Failed => GuestState::Failed,
        }
    }

    /// Whether the guest's vCPUs may run.
    #[must_use]
    pub fn may_run(&self) -> bool {
        self.state == State::Running
    }

    /// Whether a command to stop is under way.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        matches!(self.state, State::Stopping | State::Anew { then_stopped: true })
    }

    /// Whether it starts anew.
    #[must_use]
    pub fn is_anew(&self) -> bool {
        matches!(self.state, State::Anew { .. })
    }

    /// How far the guest's counters are behind the machine's whenever a vCPU runs.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// For how long the guest's counters have stood still.
    #[must_use]
    pub fn stood_still(&self, now: u64) -> u64 {
        self.stood_still + self.still_since.map_or(0, |since| now.saturating_sub(since))
    }

    /// The guest's counters.
    #[must_use]
    pub fn counter(&self, now: u64) -> u64 {
        self.still_since.unwrap_or(now).wrapping_sub(self.offset)
    }

    /// The command to stop. The embedder makes the vCPUs leave, and reports it by [`vcpus_left`](Self::vcpus_left).
    pub fn stop(&mut self) -> Result<(), NotNow> {
        self.state = match self.state {
            State::Running => State::Stopping,
            State::Anew { then_stopped: false } => State::Anew { then_stopped: true },
            other => return Err(NotNow(other)),
        };
        Ok(())
    }

    /// No vCPU runs since [`stop`](Self::stop), and none will. Returns whether the guest is stopped by that.
    pub fn vcpus_left(&mut self, now: u64) -> bool {
        let is_stopping = self.state == State::Stopping;
        if is_stopping {
            self.stand_still(now);
        }
        is_stopping
    }

    /// The command to continue. The embedder wakes all vCPUs.
    pub fn go_on(&mut self, now: u64) -> Result<(), NotNow> {
        match self.state {
            State::Stopped => {
                self.run(now);
                Ok(())
            }
            other => Err(NotNow(other)),
        }
    }

    /// The command to reset. The embedder starts the guest anew, and reports it by [`has_begun`](Self::has_begun).
    pub fn reset(&mut self) -> Result<(), NotNow> {
        let then_stopped = match self.state {
            State::Running => false,
            State::Stopping | State::Stopped => true,
            other => return Err(NotNow(other)),
        };
        self.state = State::Anew { then_stopped };
        Ok(())
    }

    /// The guest resets itself, or ends itself where `end` is a state. Returns whether that counts.
    pub fn changes_itself(&mut self, end: Option<State>) -> bool {
        let may = matches!(self.state, State::Running | State::Stopping);
        if may {
            self.state = end.unwrap_or(State::Anew { then_stopped: self.state == State::Stopping });
        }
        may
    }

    /// The guest that started anew is ready for its first instruction. Returns whether it runs; `None`: it was ended
    /// meanwhile.
    pub fn has_begun(&mut self, now: u64) -> Option<bool> {
        let State::Anew { then_stopped } = self.state else { return None };
        if then_stopped {
            self.stand_still(now);
        } else {
            self.run(now);
        }
        Some(!then_stopped)
    }

    /// The guest cannot be started anew. Returns whether that counts.
    pub fn cannot_begin(&mut self) -> bool {
        let is_anew = self.is_anew();
        if is_anew {
            self.state = State::Failed;
        }
        is_anew
    }

    /// The command to quit.
    pub fn quit(&mut self) -> Result<(), NotNow> {
        if matches!(self.state, State::Off | State::Failed) {
            return Err(NotNow(self.state));
        }
        self.state = State::Off;
        Ok(())
    }

    fn stand_still(&mut self, now: u64) {
        self.state = State::Stopped;
        self.still_since = self.still_since.or(Some(now));
    }

    fn run(&mut self, now: u64) {
        self.state = State::Running;
        let still = self.still_since.take().map_or(0, |since| now.saturating_sub(since));
        self.stood_still += still;
        self.offset = self.offset.wrapping_add(still);
        self.is_incoming = false;
    }
}
