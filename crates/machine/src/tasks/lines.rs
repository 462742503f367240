// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One vCPU's interrupts in virtual time: its timer and the PPI of asynchronous page faults.
//!
//! [`Interrupts`](crate::interrupts::Interrupts) of other virtual machines live in the host's time, and their waits
//! block a thread. Here a wait is a number: the moment of the next event.
//!
//! The guest has one group and one priority, as Linux has, so a handler is not interrupted. If both lines are pending,
//! the timer is taken first: the order that makes the PPI meet another task than the one it is about.

use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt, can_take, would_take};

use super::time::Nanos;

/// PSTATE of a task in user mode, and of the guest's kernel with and without interrupts.
pub mod pstate {
    /// EL0.
    pub const USER: u64 = 0;
    /// EL1.
    pub const KERNEL: u64 = 0b0101;
    /// EL1 with PSTATE.I.
    pub const MASKED: u64 = KERNEL | 1 << 7;
}

/// The interrupts of one vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    /// When the timer fires; `None` if it is off.
    deadline: Option<Nanos>,
    timer: bool,
    ppi: bool,
}

/// An interrupt that the guest takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// The virtual timer.
    Timer,
    /// The PPI of asynchronous page faults.
    Ppi,
}

impl Lines {
    /// Nothing pending, the timer off.
    pub const fn new() -> Self {
        Self { deadline: None, timer: false, ppi: false }
    }

    /// `MSR CNTV_CVAL_EL0`, or the timer off. A timer interrupt that is pending goes: the line follows the timer.
    pub fn set_timer(&mut self, deadline: Option<Nanos>) {
        (self.deadline, self.timer) = (deadline, false);
    }

    /// When the timer fires; `None` if it is off or has fired.
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Makes the timer's line pending if its deadline has come. Returns whether it fired now.
    pub fn fire(&mut self, now: Nanos) -> bool {
        let fires = self.deadline.is_some_and(|deadline| deadline <= now);
        if fires {
            (self.deadline, self.timer) = (None, true);
        }
        fires
    }

    /// Makes the PPI pending, or not pending.
    pub fn set_ppi(&mut self, pending: bool) {
        self.ppi = pending;
    }

    /// Whether the vCPU takes an interrupt as its next step, with this PSTATE.
    pub fn can_take(&self, pstate: u64) -> bool {
        [self.timer, self.ppi].into_iter().any(|pending| can_take(pstate, &INTERFACE, &interrupt(pending)))
    }

    /// Whether the vCPU would take its timer if that fired now.
    pub fn would_take_timer(&self, pstate: u64) -> bool {
        would_take(pstate, &INTERFACE, &interrupt(false))
    }

    /// The interrupt that the guest acknowledges, which is pending no more. `None` if none is.
    pub fn acknowledge(&mut self) -> Option<Line> {
        if self.timer {
            self.timer = false;
            return Some(Line::Timer);
        }
        std::mem::take(&mut self.ppi).then_some(Line::Ppi)
    }
}

/// An interrupt of this guest.
pub fn interrupt(pending: bool) -> Interrupt {
    Interrupt { group: Group::One, enabled: true, pending, active: false, priority: PRIORITY }
}

/// The guest's interface, outside of its handlers. Inside them PSTATE.I is set.
pub const INTERFACE: CpuInterface =
    CpuInterface { enabled: [false, true], mask: 0xf0, running: 0xff, binary_point: [0, 1] };

/// The priority of all interrupts.
const PRIORITY: u8 = 0xa0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_fires_once_at_its_deadline() {
        let mut lines = Lines::new();
        lines.set_timer(Some(Nanos::millis(4)));
        assert!(!lines.fire(Nanos::new(3_999_999)) && !lines.can_take(pstate::USER));
        assert!(lines.fire(Nanos::millis(4)) && !lines.fire(Nanos::millis(5)));
        assert!(lines.can_take(pstate::USER) && !lines.can_take(pstate::MASKED));
        assert_eq!([(); 2].map(|()| lines.acknowledge()), [Some(Line::Timer), None]);
    }

    #[test]
    fn the_timer_comes_before_the_ppi() {
        let mut lines = Lines::new();
        lines.set_ppi(true);
        lines.set_timer(Some(Nanos::ZERO));
        lines.fire(Nanos::ZERO);
        assert_eq!([(); 3].map(|()| lines.acknowledge()), [Some(Line::Timer), Some(Line::Ppi), None]);
    }

    #[test]
    fn a_timer_that_is_set_again_is_not_pending() {
        let mut lines = Lines::new();
        lines.set_timer(Some(Nanos::ZERO));
        lines.fire(Nanos::ZERO);
        lines.set_timer(None);
        assert!(!lines.can_take(pstate::USER) && lines.would_take_timer(pstate::KERNEL));
    }
}
