// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One row of a table of control registers, and the values that the rows share.

use super::cpu::Cpu;

/// One row of a table.
pub struct Register {
    /// Its name in the architecture.
    pub name: &'static str,
    /// Whether this CPU has it.
    pub exists: fn(&Cpu) -> bool,
    /// Its value.
    pub value: fn(&Cpu, &Confinement) -> u64,
    /// Why it has this value.
    pub why: &'static str,
    /// Writes it. The register must exist.
    pub write: unsafe fn(u64),
    /// Reads it. The register must exist.
    pub read: unsafe fn() -> u64,
}

/// The registers of stage 2 and of time, with the same values on all CPUs of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confinement {
    /// HCR_EL2, without the bits that depend on the CPU (function `hcr`).
    pub hcr: u64,
    /// VTCR_EL2.
    pub vtcr: u64,
    /// VTTBR_EL2.
    pub vttbr: u64,
    /// How far the guest's counters are behind the machine's.
    pub counter_offset: u64,
}

/// A row: name, encoding, condition of existence, value, reason.
macro_rules! register {
    ($name:ident, $encoding:ident, $exists:expr, $value:expr, $why:literal) => {
        $crate::registers::register::Register {
            name: stringify!($name),
            exists: $exists,
            value: $value,
            why: $why,
            // SAFETY: the caller's promise: the register exists. The value is the caller's responsibility.
            write: |value| unsafe { crate::write_sysreg!($encoding, value) },
            read: || crate::read_sysreg!($encoding),
        }
    };
}
pub(crate) use register;

/// Every CPU with EL2 has the register.
pub(crate) const ALWAYS: fn(&Cpu) -> bool = |_| true;
/// The register is cleared.
pub(crate) const CLEAR: fn(&Cpu, &Confinement) -> u64 = |_, _| 0;
