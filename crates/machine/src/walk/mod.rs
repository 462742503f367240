// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table walks of the 4 KiB granule as hardware does them, written from the manual (Arm ARM D8.2, D8.3) and not from
//! the engine: all they know is the values of registers, and what is in memory.
//!
//! Invariant: a walk keeps nothing between calls. Each descriptor comes from its caller, who decides which of the
//! values that were ever there is seen, and each update goes through its caller's compare-and-exchange.
#![allow(dead_code, reason = "who calls the walks is still to come")]

pub(crate) mod stage1;
pub(crate) mod stage2;
pub(crate) mod syndrome;

use core::ops::Deref;

pub(crate) use twofold_stage2::fault::AccessKind;

/// An access as the tables judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// What the guest's instruction does.
    pub(crate) kind: AccessKind,
    /// Where it is executed.
    pub(crate) el: El,
    /// Whose access it is.
    pub(crate) purpose: Purpose,
}

/// The guest's exception levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum El {
    /// User mode.
    El0,
    /// The guest's kernel.
    El1,
}

/// What an access to guest memory is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The instruction's own access.
    Own,
    /// Hardware reads a stage-1 descriptor on its behalf.
    Stage1Walk,
    /// Hardware updates a stage-1 descriptor on its behalf.
    Stage1Update,
}

/// The kinds of fault that a walk ends with. The numbers are the syndrome's (xFSC\[5:2\]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// An address in a register or descriptor is wider than the output size.
    AddressSize = 0,
    /// Nothing is mapped.
    Translation = 1,
    /// The access flag is clear, and hardware does not set it.
    AccessFlag = 2,
    /// The entry does not allow it.
    Permission = 3,
}

/// A setting that the architecture reserves, or that the walks here do not model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value:#x}: {why}")]
pub(crate) struct Unmodelled {
    /// The register or descriptor.
    pub(crate) what: &'static str,
    /// Its value.
    pub(crate) value: u64,
    /// What is wrong with it.
    pub(crate) why: &'static str,
}

/// The table descriptors that a walk went through, from the root on: at most those of levels 0 to 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables<E> {
    entries: [E; 3],
    count: usize,
}

impl Access {
    /// An instruction's own access.
    pub(crate) const fn new(kind: AccessKind, el: El) -> Self {
        Self { kind, el, purpose: Purpose::Own }
    }

    /// The same, made for `purpose`.
    pub(crate) const fn with(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    /// Whether memory is read. An update of a descriptor reads and writes.
    const fn reads(self) -> bool {
        !matches!((self.purpose, self.kind), (Purpose::Own, AccessKind::Write | AccessKind::Execute))
    }

    /// Whether memory is written.
    const fn writes(self) -> bool {
        matches!((self.purpose, self.kind), (Purpose::Own, AccessKind::Write) | (Purpose::Stage1Update, _))
    }

    /// Whether an instruction is fetched.
    const fn executes(self) -> bool {
        matches!((self.purpose, self.kind), (Purpose::Own, AccessKind::Execute))
    }
}

impl<E> Tables<E> {
    fn push(&mut self, entry: E) {
        self.entries[self.count] = entry;
        self.count += 1;
    }
}

impl<E> Deref for Tables<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.entries[..self.count]
    }
}

/// Bytes that a descriptor found at `level` covers.
pub(crate) const fn span(level: u8) -> u64 {
    1 << span_shift(level)
}

const fn span_shift(level: u8) -> u32 {
    39 - 9 * level as u32
}

/// The access flag, in leaves of both stages.
const ACCESSED: u64 = 1 << 10;
/// DBM, in leaves of both stages.
const DIRTY_BY_HARDWARE: u64 = 1 << 51;

/// What a descriptor is, by its last two bits and its level (Arm ARM D8.3.1, D8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Invalid,
    Table,
    Leaf,
}

impl Shape {
    const fn of(raw: u64, level: u8) -> Self {
        match (raw & 3, level) {
            (0b11, 0..=2) => Self::Table,
            (0b11, _) | (0b01, 1 | 2) => Self::Leaf,
            // Without FEAT_LPA2 level 0 has no blocks, and a page is never 0b01.
            _ => Self::Invalid,
        }
    }
}

/// The next table, or a leaf's output: bits 47 to 12, of a block those that are not reserved.
const fn address(raw: u64, level: u8) -> u64 {
    let bits = raw & 0x0000_ffff_ffff_f000;
    match Shape::of(raw, level) {
        Shape::Leaf => bits & !(span(level) - 1),
        _ => bits,
    }
}

/// Bytes from the start of a table below the root to its descriptor for `address`.
const fn offset(address: u64, level: u8) -> u64 {
    (address >> span_shift(level) & 511) * 8
}

/// Bits of an address by the number that PS and IPS give; those beyond 48 need FEAT_LPA.
const fn output_bits(field: u64) -> Option<u32> {
    const BITS: [u32; 6] = [32, 36, 40, 42, 44, 48];
    if field < 6 { Some(BITS[field as usize]) } else { None }
}

fn require(holds: bool, what: &'static str, value: u64, why: &'static str) -> Result<(), Unmodelled> {
    if holds { Ok(()) } else { Err(Unmodelled { what, value, why }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_by_level() {
        for (bits, level, shape) in [
            (0b00, 0, Shape::Invalid),
            (0b01, 0, Shape::Invalid),
            (0b11, 0, Shape::Table),
            (0b10, 1, Shape::Invalid),
            (0b01, 1, Shape::Leaf),
            (0b11, 1, Shape::Table),
            (0b01, 2, Shape::Leaf),
            (0b11, 2, Shape::Table),
            (0b00, 3, Shape::Invalid),
            (0b01, 3, Shape::Invalid),
            (0b10, 3, Shape::Invalid),
            (0b11, 3, Shape::Leaf),
        ] {
            assert_eq!(Shape::of(0x4000_0000 | bits, level), shape, "{bits:#b} at level {level}");
        }
    }

    #[test]
    fn spans_of_the_4k_granule() {
        assert_eq!([0, 1, 2, 3].map(span), [512 << 30, 1 << 30, 2 << 20, 4 << 10]);
    }

    #[test]
    fn a_block_has_no_low_address_bits() {
        assert_eq!(address(0x0000_8000_403f_f001, 2), 0x0000_8000_4020_0000);
        assert_eq!(address(0x0000_8000_403f_f003, 2), 0x0000_8000_403f_f000, "a table");
        assert_eq!(address(0xffff_8000_403f_ffff, 3), 0x0000_8000_403f_f000, "a page");
    }

    #[test]
    fn what_an_access_needs() {
        use AccessKind::{Execute, Read, Write};
        use Purpose::{Own, Stage1Update, Stage1Walk};
        for (kind, purpose, needs) in [
            (Read, Own, [true, false, false]),
            (Write, Own, [false, true, false]),
            (Execute, Own, [false, false, true]),
            (Execute, Stage1Walk, [true, false, false]),
            (Write, Stage1Walk, [true, false, false]),
            (Read, Stage1Update, [true, true, false]),
            (Execute, Stage1Update, [true, true, false]),
        ] {
            let access = Access::new(kind, El::El0).with(purpose);
            assert_eq!([access.reads(), access.writes(), access.executes()], needs, "{access:?}");
        }
    }
}
