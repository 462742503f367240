// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The times at which a CPU wakes blocked vCPUs, and looks at the alarms of guests' clocks.
//!
//! A vCPU that waits has its timers in memory, so EL2's timer stands in for them: on the CPU where the vCPU was last,
//! which alone reads and writes its deadlines. A vCPU that runs elsewhere since then leaves its deadline behind. It is
//! then woken once without a reason, which the architecture allows a waiting vCPU.
//!
//! Invariant: [`Deadlines::first`] is the least of all times.

use alloc::vec::Vec;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A timer of the vCPU with this number among the entities.
    Vcpu(usize),
    /// The alarm of the clock of the guest whose first vCPU has this number.
    Alarm(usize),
}

/// One CPU's deadlines.
pub struct Deadlines {
    /// The machine's time for each entity, or [`NEVER`]: of its timers, and behind that of the alarm that was set there.
    times: Vec<u64>,
    first: u64,
}

/// No time.
pub const NEVER: u64 = u64::MAX;

impl Deadlines {
    /// No deadline, for this number of entities.
    #[must_use]
    pub fn new(entities: usize) -> Self {
        Self { times: (0..2 * entities).map(|_| NEVER).collect(), first: NEVER }
    }

    /// The earliest of all; [`NEVER`] if there is none.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Sets a deadline, or removes it by [`NEVER`].
    pub fn set(&mut self, due: Due, time: u64) {
        let Some(place) = self.times.get_mut(due.place()) else { return };
        let old = core::mem::replace(place, time);
        if old == time {
            return;
        }
        if time <= self.first {
            self.first = time;
        } else if old == self.first {
            self.first = self.times.iter().fold(NEVER, |first, time| first.min(*time));
        }
    }

    /// What is due at the first deadline, if that has passed. The caller sets it anew.
    #[must_use]
    pub fn passed(&self, now: u64) -> Option<Due> {
        if now < self.first {
            return None;
        }
        let at = self.times.iter().position(|time| *time == self.first)?;
        Some(if at % 2 == 0 { Due::Vcpu(at / 2) } else { Due::Alarm(at / 2) })
    }
}

impl Due {
    fn place(self) -> usize {
        match self {
            Self::Vcpu(index) => 2 * index,
            Self::Alarm(index) => 2 * index + 1,
        }
    }
}
