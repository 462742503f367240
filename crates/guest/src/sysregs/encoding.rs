// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The encodings of system instructions: op0, op1, CRn, CRm and op2, 16 bits in all.

use core::fmt;

/// The number of encodings.
pub const ENCODINGS: u64 = 1 << 16;

/// One encoding: op0 is in the upper two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding(u16);

impl Encoding {
    /// The encoding with this number, modulo [`ENCODINGS`].
    pub const fn of(number: u64) -> Self {
        Self(number as u16)
    }

    /// The instruction that reads (MRS, SYSL) into x0.
    pub const fn read(self) -> u32 {
        const READS: u32 = 1 << 21;
        SYSTEM | READS | (self.0 as u32) << 5
    }

    /// The instruction that writes (MSR, SYS) x0. Hints, barriers and MSR of an immediate have no register operand.
    pub const fn write(self) -> u32 {
        const NO_REGISTER: u32 = 31;
        SYSTEM | (self.0 as u32) << 5 | if self.op0() == 0 { NO_REGISTER } else { 0 }
    }

    /// Why this encoding is not executed; `None` if it is.
    pub const fn skipped(self) -> Option<&'static str> {
        match self.fields() {
            [0, 3, 2, 0, 2] => Some("WFE: it may sleep for ever"),
            [0, 3, 2, 0, 3] => Some("WFI: it sleeps for ever where nothing interrupts"),
            [0, 3, 1, 0, 0] => Some("WFET: it may sleep for ever"),
            [0, 3, 1, 0, 1] => Some("WFIT: it may sleep for ever"),
            _ => None,
        }
    }

    /// Whether this value must not be written here. It would leave a vCPU that can fetch neither its next instruction
    /// nor its vectors, so nothing in the guest could restart it.
    pub const fn skips_value(self, value: u64) -> bool {
        const MMU: u64 = 1;
        const WRITABLE_NOT_EXECUTABLE: u64 = 1 << 19;
        const BIG_ENDIAN: u64 = 1 << 25;
        matches!(self.fields(), [3, 0, 1, 0, 0])
            && value & MMU != 0
            && value & (WRITABLE_NOT_EXECUTABLE | BIG_ENDIAN) != 0
    }

    const fn op0(self) -> u16 {
        self.0 >> 14
    }

    const fn fields(self) -> [u16; 5] {
        [self.op0(), self.0 >> 11 & 7, self.0 >> 7 & 15, self.0 >> 3 & 15, self.0 & 7]
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [op0, op1, crn, crm, op2] = self.fields();
        write!(formatter, "S{op0}_{op1}_C{crn}_C{crm}_{op2}")
    }
}

/// The fixed bits of this class of instructions.
const SYSTEM: u32 = 0xd500_0000;
