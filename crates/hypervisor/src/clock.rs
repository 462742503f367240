// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wall time: the machine's PL031, read once, and the machine's counter since then.

use core::ptr;

use crate::board::Board;
use crate::{read_sysreg, timer};

/// Wall time in seconds since 1970; since the start of the clock on a machine without a PL031.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Wall time at `start`.
    base: u64,
    /// The machine's counter when the clock was read.
    start: u64,
    /// Counts in a second; not 0.
    frequency: u64,
}

impl Clock {
    /// Reads the machine's clock.
    #[must_use]
    pub fn read(board: &Board) -> Self {
        let base = board.rtc.as_ref().map_or(0, |rtc| {
            let data = ptr::with_exposed_provenance::<u32>(rtc.start as usize);
            // SAFETY: the device tree has a PL031 there, which `el2_mmu` maps as Device memory. Its first register is
            // the time, and reading it changes nothing.
            u64::from(unsafe { data.read_volatile() })
        });
        Self { base, start: timer::machine_time(), frequency: read_sysreg!(CNTFRQ_EL0).max(1) }
    }

    /// Wall time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.base + (timer::machine_time() - self.start) / self.frequency
    }

    /// The machine's counter at the start of this second; as late as possible if the counter cannot say it.
    #[must_use]
    pub fn counter_at(&self, seconds: u64) -> u64 {
        seconds.saturating_sub(self.base).saturating_mul(self.frequency).saturating_add(self.start)
    }
}
