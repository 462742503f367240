// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU's timers: the levels of their lines, and when the next of them is due.
//!
//! The virtual timer is hardware's while the vCPU is loaded, and so is the physical one where the CPU gives it an offset;
//! elsewhere it is emulated ([`timer`]). While the vCPU is not loaded, all are data.
//!
//! Invariant: a vCPU that is blocked has a deadline at the earliest time at which one of its lines rises.

use crate::gic::guest::TimerLines;
use crate::schedule::deadlines::NEVER;
use crate::switch::State;
use crate::timer::{self, Due, PhysicalTimer};

/// What is known of the timers beside their registers.
#[derive(Default)]
pub(super) struct Timers {
    /// The physical timer, unless the guest has the machine's with an offset.
    pub(super) physical: PhysicalTimer,
    /// The level of its line, as the interrupt controller knows it.
    pub(super) level: bool,
    /// No timer was enabled when the vCPU left its last CPU. So none is while it is not loaded, and no line is high.
    are_off: bool,
    /// The vCPU set a deadline when it left its last CPU.
    pub(super) has_deadline: bool,
}

/// What the lines were at a moment.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) lines: TimerLines,
    /// The guest's time then; [`NEVER`] if no timer is enabled.
    now: u64,
}

impl Timers {
    /// Looks at the lines of a vCPU whose registers these are, and notes that the interrupt controller knows their levels.
    #[inline(always)]
    pub(super) fn look(&mut self, registers: &State, offset: u64) -> Look {
        let [virtual_timer, own] = registers.timers().map(|(control, _)| control);
        if timer::is_enabled(virtual_timer | own | self.physical.control()) {
            let (lines, now) = self.look_at_time(registers, offset);
            return Look { lines, now };
        }
        (self.level, self.are_off) = (false, true);
        Look { lines: TimerLines::LOW, now: NEVER }
    }

    /// The lines of a vCPU that was not loaded since the last look.
    #[inline(always)]
    pub(super) fn look_again(&mut self, registers: &State, offset: u64) -> TimerLines {
        if self.are_off { TimerLines::LOW } else { self.look(registers, offset).lines }
    }

    #[inline(never)]
    fn look_at_time(&mut self, registers: &State, offset: u64) -> (TimerLines, u64) {
        self.are_off = false;
        let now = timer::machine_time().wrapping_sub(offset);
        self.level = self.physical.due(now) == Due::Now;
        let [virtual_timer, own] = registers.timers().map(|(control, compare)| timer::due(control, compare, now));
        let physical_timer = self.level || own == Due::Now;
        (TimerLines { virtual_timer: virtual_timer == Due::Now, physical_timer }, now)
    }

    /// The machine's time at which the next line rises after a look, of a vCPU that is about to be blocked. A line that is
    /// high has risen by then.
    #[inline(always)]
    pub(super) fn deadline(&mut self, registers: &State, look: Look, offset: u64) -> Option<u64> {
        if look.now == NEVER {
            return None;
        }
        self.has_deadline = true;
        Some(self.deadline_after(registers, look.now, offset))
    }

    /// As [`deadline`](Self::deadline), for the lines that are low alone: for a vCPU that one which is high does not wake.
    pub(super) fn next_rise(&mut self, registers: &State, look: Look, offset: u64) -> Option<u64> {
        let now = look.now;
        if now == NEVER {
            return None;
        }
        let [virtual_timer, own] = registers.timers().map(|(control, compare)| timer::due(control, compare, now));
        let rises = [virtual_timer, own, self.physical.due(now)].into_iter().filter_map(|due| match due {
            Due::At(time) => Some(timer::of_machine(time, offset)),
            Due::Now | Due::Never => None,
        });
        let first = rises.min();
        self.has_deadline |= first.is_some();
        first
    }

    #[inline(never)]
    fn deadline_after(&self, registers: &State, now: u64, offset: u64) -> u64 {
        let [virtual_timer, own] = registers.timers().map(|(control, compare)| timer::due(control, compare, now));
        let times = [virtual_timer, own, self.physical.due(now)].map(|due| match due {
            Due::At(time) => timer::of_machine(time, offset),
            Due::Now => now.wrapping_add(offset),
            Due::Never => NEVER,
        });
        times.into_iter().min().unwrap_or(NEVER)
    }
}
