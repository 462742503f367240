// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Arm's PrimeCells have in common: 32-bit registers on a bus without byte strobes, and eight ID registers.
//!
//! A guest's access has a width and an offset, a PrimeCell has registers of one word each. The rules here make one of
//! the other, and they are total: an access of any width at any offset has a result.
//!
//! * A read returns the bytes of the register that holds its offset, from that offset on. It has the effects of a read
//!   of the whole register, because the bus has no strobes. What lies behind the register's end reads as 0.
//! * A write at a register's first byte writes the register; missing high bytes are 0. A write at another byte is
//!   ignored.
//! * An access of 64 bits is one of the low word, then one of the high word.

use crate::access::Width;

/// The offset of the first of the eight ID registers.
const ID: u64 = 0xfe0;

/// An ID register: `peripheral` has PeriphID0 to PeriphID3.
pub(crate) fn id(peripheral: [u8; 4], register: u64) -> u32 {
    const CELL: [u8; 4] = [0x0d, 0xf0, 0x05, 0xb1];
    let index = register.wrapping_sub(ID) / 4;
    let byte = match index {
        0..=3 => peripheral[index as usize % 4],
        4..=7 => CELL[index as usize % 4],
        _ => 0,
    };
    u32::from(byte)
}

/// Reads by `register`, which returns the register at an offset.
pub(crate) fn read(offset: u64, width: Width, mut register: impl FnMut(u64) -> u32) -> u64 {
    let first = offset & !3;
    let low = u64::from(register(first)) >> (8 * (offset % 4));
    match width {
        Width::Double => low | u64::from(register(first.wrapping_add(4))) << 32,
        _ => low & width.mask(),
    }
}

/// Writes by `register`, which takes an offset and the register's new content.
pub(crate) fn write(offset: u64, width: Width, value: u64, mut register: impl FnMut(u64, u32)) {
    if !offset.is_multiple_of(4) {
        return;
    }
    register(offset, (value & width.mask()) as u32);
    if width == Width::Double {
        register(offset.wrapping_add(4), (value >> 32) as u32);
    }
}
