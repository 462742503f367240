// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's time: its counters start at 0 when it starts, and no register of it shows the machine's.
//!
//! The virtual timer is the guest's own; CNTVOFF_EL2 gives it its offset, and its interrupt reaches the guest through a
//! list register. The physical counter and timer have the same offset by CNTPOFF_EL2 where the CPU has that. Elsewhere
//! they trap (CNTHCTL_EL2), and this module emulates them with EL2's timer.
//!
//! Invariant: while a CPU runs a vCPU or waits, its EL2 timer is set to the first of what is yet to come there: the end of
//! the slice, the vCPU's emulated timer, or a deadline (`schedule::deadlines`). It is off if nothing is to come. A time that
//! never comes would not do: with QEMU's `-icount sleep=off`, the time of an idle machine jumps to its first timer.

use crate::registers::access::Access;
use crate::{read_sysreg, write_sysreg};

/// The emulated physical timer of a vCPU. All times are the guest's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalTimer {
    /// CNTP_CVAL_EL0.
    compare: u64,
    /// CNTP_CTL_EL0 without ISTATUS.
    control: u64,
}

/// A register of the physical counter or timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Register {
    Counter,
    Value,
    Control,
    Compare,
}

/// What is to be done for a vCPU's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Its interrupt is asserted.
    Now,
    /// It fires at this time of the guest.
    At(u64),
    /// It is off or masked.
    Never,
}

/// CNTP_CTL_EL0.
const ENABLE: u64 = 1 << 0;
const MASK: u64 = 1 << 1;
const STATUS: u64 = 1 << 2;

impl PhysicalTimer {
    /// The timer with these values, of a guest that comes from elsewhere. `None` if the control has other bits than a guest
    /// can set.
    #[must_use]
    pub fn with(compare: u64, control: u64) -> Option<Self> {
        (control & !(ENABLE | MASK) == 0).then_some(Self { compare, control })
    }

    /// CNTP_CVAL_EL0.
    #[must_use]
    pub fn compare(&self) -> u64 {
        self.compare
    }

    /// Emulates a trapped access at the guest's time `now`. Returns `None` if it is not one of these registers, otherwise
    /// whether the timer has changed.
    pub fn access(&mut self, access: &Access, x: &mut [u64; 31], now: u64) -> Option<bool> {
        let register = match access.encoding {
            // CNTPCT_EL0 and CNTPCTSS_EL0.
            [3, 3, 14, 0, 1 | 5] => Register::Counter,
            [3, 3, 14, 2, 0] => Register::Value,
            [3, 3, 14, 2, 1] => Register::Control,
            [3, 3, 14, 2, 2] => Register::Compare,
            _ => return None,
        };
        if access.is_read {
            let value = self.read(register, now);
            if let Some(x) = x.get_mut(access.rt) {
                *x = value;
            }
            return Some(false);
        }
        self.write(register, x.get(access.rt).copied().unwrap_or(0), now)
    }

    /// CNTP_CTL_EL0 without ISTATUS.
    #[must_use]
    pub fn control(&self) -> u64 {
        self.control
    }

    /// What is to be done at the guest's time `now`.
    #[must_use]
    pub fn due(&self, now: u64) -> Due {
        due(self.control, self.compare, now)
    }

    /// The guest's time at which its line rises, of a timer whose line is at this level as far as the interrupt controller
    /// knows. `None` if the line is high or the timer is off.
    ///
    /// The time may have passed: a timer can end after the controller was informed and before this call. EL2's timer, set to
    /// the time that has passed, then interrupts at once, and the controller is informed. So the level alone decides here.
    /// A second look at the time would find that the timer has ended, leave EL2's timer off, and lose the interrupt.
    #[must_use]
    #[inline(always)]
    pub fn rise(&self, level: bool) -> Option<u64> {
        (is_on(self.control) && !level).then_some(self.compare)
    }

    fn read(&self, register: Register, now: u64) -> u64 {
        match register {
            Register::Counter => now,
            Register::Compare => self.compare,
            // 32 bits, zero-extended.
            Register::Value => self.compare.wrapping_sub(now) & u64::from(u32::MAX),
            Register::Control if self.control & ENABLE != 0 && now >= self.compare => self.control | STATUS,
            Register::Control => self.control,
        }
    }

    fn write(&mut self, register: Register, value: u64, now: u64) -> Option<bool> {
        match register {
            // The counter is read-only: a write is UNDEFINED, as for a register that does not exist.
            Register::Counter => return None,
            Register::Compare => self.compare = value,
            Register::Value => self.compare = now.wrapping_add_signed((value as i32).into()),
            Register::Control => self.control = value & (ENABLE | MASK),
        }
        Some(true)
    }
}

/// Whether a timer with this control, or one of several, is on, perhaps masked.
#[must_use]
pub fn is_enabled(controls: u64) -> bool {
    controls & ENABLE != 0
}

/// Whether a timer with this control is on and not masked.
#[must_use]
pub fn is_on(control: u64) -> bool {
    control & (ENABLE | MASK) == ENABLE
}

/// What is to be done at the guest's time `now` for a timer with this control and compare value.
#[must_use]
pub fn due(control: u64, compare: u64, now: u64) -> Due {
    if !is_on(control) {
        Due::Never
    } else if now >= compare {
        Due::Now
    } else {
        Due::At(compare)
    }
}

/// The machine's time at the guest's time `time`, whose counters are `offset` behind the machine's. A guest that comes from
/// a machine which ran for longer is ahead: the offset is negative then, as CNTVOFF_EL2 has it.
#[must_use]
#[inline(always)]
pub fn of_machine(time: u64, offset: u64) -> u64 {
    time.saturating_add_signed(offset.cast_signed())
}

/// The machine's counter.
#[must_use]
pub fn machine_time() -> u64 {
    // An earlier instruction must not see a later time.
    crate::sysreg::isb();
    read_sysreg!(CNTPCT_EL0)
}

/// Sets EL2's timer to the machine's time `at`, or turns it off at [`u64::MAX`].
pub fn arm(at: u64) {
    arm_for_entry(at);
    crate::sysreg::isb();
}

/// As [`arm`], before the guest is entered: the ERET is as good as an ISB.
pub fn arm_for_entry(at: u64) {
    // SAFETY: EL2's timer is EL2's, and its interrupt is expected.
    unsafe {
        write_sysreg!(CNTHP_CVAL_EL2, at);
        write_sysreg!(CNTHP_CTL_EL2, if at == u64::MAX { 0 } else { ENABLE });
    }
}
