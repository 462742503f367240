// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words that one guest keeps and another guest must never find: made by `watch`, searched by `hostile` and `sysregs`.

use twofold_abi::canary;

/// A secret of this number: no two numbers of 32 bits have the same.
pub const fn secret(number: u64) -> u64 {
    // An odd factor: the lower half is another one for each number.
    (canary::GUEST as u64) << 32 | number.wrapping_mul(0x9e37_79b9) & u32::MAX as u64
}

/// Whether half of this word is a pattern of another owner: a guest's secret, or what RAM held before the start.
pub const fn is_foreign(word: u64) -> bool {
    is_pattern(word as u32) || is_pattern((word >> 32) as u32)
}

const fn is_pattern(half: u32) -> bool {
    half == canary::GUEST || half == canary::MACHINE
}
