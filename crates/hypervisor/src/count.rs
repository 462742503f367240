// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Computes the count between two readings of a counter, or reports why there cannot be one.

use thiserror::Error;

/// A counter that cannot have counted the instructions between two readings.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the counter of instructions at EL2 went from {before} to {now}: it was stopped, reset, or read too late")]
pub struct Impossible {
    before: u64,
    now: u64,
}

/// The count between two readings of a counter with the bits of `mask`. At least one instruction was executed in
/// between, and fewer than half of the counter's range.
#[inline(always)]
pub fn counted(before: u64, now: u64, mask: u64) -> Result<u64, Impossible> {
    let count = now.wrapping_sub(before) & mask;
    if count.wrapping_sub(1) < mask / 2 { Ok(count) } else { Err(Impossible { before, now }) }
}
