// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From two readings of a counter to what it counted in between, or to the reason why that cannot be.

use thiserror::Error;

/// A counter that did not count what was executed between two readings.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the counter of instructions at EL2 went from {before} to {now}: it was stopped, set back, or read too late")]
pub struct Impossible {
    before: u64,
    now: u64,
}

/// What a counter with the bits of `mask` counted from one reading to the next. Something was executed in between, and less
/// than half of what the counter can hold.
#[inline(always)]
pub fn counted(before: u64, now: u64, mask: u64) -> Result<u64, Impossible> {
    let count = now.wrapping_sub(before) & mask;
    if count.wrapping_sub(1) < mask / 2 { Ok(count) } else { Err(Impossible { before, now }) }
}
