// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of an entry: its bits, and the permissions that a change adds or removes.
//!
//! Invariant: this is written from the manual (Arm ARM DDI 0487K.a, D8.3), and not from the engine, whose errors it has
//! to find. So is the format of entries ([`Format`]).

use crate::walk::Format;

const READ: u64 = 1 << 6;
pub(crate) const WRITE: u64 = 1 << 7;
pub(crate) const ACCESSED: u64 = 1 << 10;
pub(crate) const DIRTY_BY_HARDWARE: u64 = 1 << 51;
const EXECUTE_NEVER: u64 = 3 << 53;

/// Whether two valid entries map, or lead to, the same: such a change needs no break (Arm ARM DDI 0487K.a, D8.16.1).
pub(super) fn is_same_mapping(format: Format, old: u64, new: u64, level: u8) -> bool {
    format.shape(old, level) == format.shape(new, level)
        && format.has_address_of(old, new)
        && (old ^ new) & format.memory() == 0
}

/// Whether the old leaf allowed a guest something, or hardware to grant it, that the new entry does not.
pub(super) fn gave_more(old: u64, new: u64) -> bool {
    let lost = |bits: u64| old & bits & !new != 0;
    new & 1 == 0 || lost(READ) || lost(WRITE) || lost(DIRTY_BY_HARDWARE) || !executes_all(old, new)
}

/// Whether the new leaf allows something that the old one did not.
pub(super) fn gave_less(old: u64, new: u64) -> bool {
    new & !old & (READ | WRITE) != 0 || !executes_all(new, old)
}

/// Whether `other` allows every execution that `one` allows.
fn executes_all(one: u64, other: u64) -> bool {
    let at = |raw: u64| match (raw & EXECUTE_NEVER) >> 53 {
        0b00 => 0b11,
        0b01 => 0b01,
        0b11 => 0b10,
        _ => 0b00,
    };
    at(one) & !at(other) == 0
}
