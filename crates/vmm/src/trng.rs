// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers for a guest (the TRNG Firmware Interface, Arm DEN0098, version 1.0).
//!
//! The source is the embedder's, 64 bits at a time. Invariant: a call returns as many bits as it asks for, or none; the
//! registers hold nothing else, in particular no bit of an answer that was not completed.

/// Whether a call belongs to this interface: its 16 numbers, with 32 or 64-bit arguments.
pub fn is_call(function: u32) -> bool {
    matches!(function & !CALL_64, 0x8400_0050..=0x8400_005f)
}

/// Answers a call with this argument: x0 to x3. `random` returns 64 bits, or `None` if the source has none now.
pub fn call(function: u32, argument: u64, mut random: impl FnMut() -> Option<u64>) -> [u64; 4] {
    match function {
        VERSION => [1 << 16, 0, 0, 0],
        FEATURES => match argument as u32 {
            VERSION | FEATURES | GET_UUID | RND_32 | RND_64 => [SUCCESS, 0, 0, 0],
            _ => failed(NOT_SUPPORTED),
        },
        GET_UUID => UUID.map(u64::from),
        RND_32 => take(argument, 32, &mut random),
        RND_64 => take(argument, 64, &mut random),
        _ => failed(NOT_SUPPORTED),
    }
}

/// Identifies this source, at random; its first word is not an error's.
const UUID: [u32; 4] = [0x2f6b_91d4, 0x84a3_4c1e, 0x9c07_5b62, 0x1ed8_73fa];
const CALL_64: u32 = 1 << 30;
const VERSION: u32 = 0x8400_0050;
const FEATURES: u32 = 0x8400_0051;
const GET_UUID: u32 = 0x8400_0052;
const RND_32: u32 = 0x8400_0053;
const RND_64: u32 = RND_32 | CALL_64;
const SUCCESS: u64 = 0;
const NOT_SUPPORTED: i64 = -1;
const INVALID_PARAMETERS: i64 = -2;
const NO_ENTROPY: i64 = -3;

/// Up to three registers of `width` bits: the lowest bits are in x3, and what was not asked for is 0.
fn take(bits: u64, width: u32, random: &mut impl FnMut() -> Option<u64>) -> [u64; 4] {
    let width = u64::from(width);
    if bits == 0 || bits > 3 * width {
        return failed(INVALID_PARAMETERS);
    }
    let mut values = [SUCCESS, 0, 0, 0];
    let mut left = bits;
    for value in values[1..].iter_mut().rev() {
        let here = left.min(width);
        if here == 0 {
            break;
        }
        let Some(word) = random() else { return failed(NO_ENTROPY) };
        *value = word & u64::MAX >> (64 - here);
        left -= here;
    }
    values
}

fn failed(error: i64) -> [u64; 4] {
    [error as u64, 0, 0, 0]
}
