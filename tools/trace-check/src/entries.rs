// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bits of a stage-2 descriptor (Arm ARM DDI 0487K.a, D8.3; 4 KiB granule).

use std::fmt;
use std::ops::Range;

/// The bits of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const ACCESS_FLAG: u64 = 1 << 10;
const READ: u64 = 1 << 6;
const WRITE: u64 = 1 << 7;
const NO_TRANSLATION: u64 = 1 << 16;
const DBM: u64 = 1 << 51;
const EXECUTE_NEVER_SHIFT: u32 = 53;
/// The fields of a leaf that may change without a break (Arm ARM DDI 0487K.a, D8.16.1): S2AP, AF, DBM, XN, and the bits
/// that hardware ignores.
const FREE: u64 = READ | WRITE | ACCESS_FLAG | DBM | 3 << EXECUTE_NEVER_SHIFT | 0x1ff << 55;

/// Returns the number of bytes that an entry of `level` covers.
pub fn span_of(level: u32) -> u64 {
    1 << (12 + 9 * (3 - level))
}

impl Entry {
    pub fn is_valid(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns the address of the table that the entry points to; `None` for a leaf or an invalid entry.
    pub fn table_at(self, level: u32) -> Option<u64> {
        (level < 3 && self.0 & 3 == 3).then_some(self.0 & ADDRESS)
    }

    /// Returns the memory that the entry maps; `None` for a table descriptor or an invalid entry.
    pub fn output_at(self, level: u32) -> Option<Range<u64>> {
        let is_leaf = self.is_valid() && self.table_at(level).is_none();
        let start = self.0 & ADDRESS & !(span_of(level) - 1);
        is_leaf.then(|| start..start + span_of(level))
    }

    /// Returns the flaw of a valid entry at `level`, if it has one. `physical_bits`: the size of a physical address.
    pub fn flaw(self, level: u32, physical_bits: u32) -> Option<String> {
        let is_table = self.table_at(level).is_some();
        // Bit 16 of a block is nT.
        let address = self.0 & ADDRESS & if is_table || level == 3 { !0 } else { !NO_TRANSLATION };
        if !is_table && level == 0 {
            Some("a block at level 0 is reserved".to_owned())
        } else if level == 3 && self.0 & 3 == 1 {
            Some("at level 3, bits 1:0 of 0b01 are reserved".to_owned())
        } else if !is_table && address & (span_of(level) - 1) != 0 {
            Some(format!("{address:#x} is not aligned to the {:#x} bytes of a leaf of level {level}", span_of(level)))
        } else if address >> physical_bits != 0 {
            Some(format!("{address:#x} has more than the {physical_bits} bits of a physical address"))
        } else {
            None
        }
    }

    /// Returns whether a change from one valid entry to the other needs break-before-make.
    pub fn needs_break_before(self, new: Self, level: u32) -> bool {
        let fixed = match (self.table_at(level), new.table_at(level)) {
            (Some(_), Some(_)) => ADDRESS,
            _ => !FREE,
        };
        (self.0 ^ new.0) & fixed != 0
    }

    /// Returns whether a TLB that holds this leaf allows an access that `new` does not: a read, a write, a write that
    /// hardware does not record, or an execution at EL0 or EL1 (FEAT_XNX; without it, bit 53 is zero).
    pub fn allows_more_than(self, new: Self) -> bool {
        // XN[1:0]: 0b00 allows both levels, 0b01 EL0, 0b10 none, 0b11 EL1.
        let executes = |entry: Self| [0b11, 0b01, 0b00, 0b10][(entry.0 >> EXECUTE_NEVER_SHIFT & 3) as usize];
        self.0 & !new.0 & (READ | WRITE | DBM) != 0 || executes(self) & !executes(new) != 0
    }

    /// Returns whether hardware records writes in the entry, if VTCR_EL2.HD is set.
    pub fn is_tracked(self) -> bool {
        self.is_valid() && self.0 & DBM != 0
    }

    /// Returns the bits that hardware may set at any time.
    fn records(self) -> u64 {
        match (self.is_valid(), self.0 & DBM != 0) {
            (false, _) => 0,
            (true, false) => ACCESS_FLAG,
            (true, true) => ACCESS_FLAG | WRITE,
        }
    }

    /// Returns whether two values of an entry differ in a bit that hardware does not set.
    pub fn differs_beyond_records(self, other: Self) -> bool {
        (self.0 ^ other.0) & !self.records() != 0
    }

    /// Returns whether hardware may change the entry to `new`.
    pub fn may_be_recorded_as(self, new: Self) -> bool {
        let set = self.0 ^ new.0;
        set != 0 && set & !self.records() == 0 && set & new.0 == set
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
