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
}

impl Timers {
    /// The levels of the lines, for a vCPU whose registers these are. Notes that the interrupt controller knows them.
    pub(super) fn lines(&mut self, registers: &State, offset: u64) -> TimerLines {
        let now = timer::machine_time().wrapping_sub(offset);
        self.level = self.physical.due(now) == Due::Now;
        let [virtual_timer, own] = registers.timers().map(|(control, compare)| timer::due(control, compare, now));
        TimerLines { virtual_timer: virtual_timer == Due::Now, physical_timer: self.level || own == Due::Now }
    }

    /// The machine's time at which the next line rises; [`NEVER`] if none does.
    pub(super) fn deadline(&self, registers: &State, offset: u64) -> u64 {
        let now = timer::machine_time().wrapping_sub(offset);
        let [virtual_timer, own] = registers.timers().map(|(control, compare)| timer::due(control, compare, now));
        let times = [virtual_timer, own, self.physical.due(now)].map(|due| match due {
            Due::At(time) => time.saturating_add(offset),
            // It has risen since `lines` looked, perhaps: then the deadline has passed.
            Due::Now => now.wrapping_add(offset),
            Due::Never => NEVER,
        });
        times.into_iter().min().unwrap_or(NEVER)
    }
}
