// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `wild=ADDRESS`: a load from an address with neither RAM nor a device.
//!
//! Success is the external abort, which `exceptions.rs` recognizes; returning from [`run`] is the failure.

use core::arch::asm;

use crate::{exceptions, mmu};

/// Why [`run`] returned.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the load from {address:#x} gave {value:#x}")]
    Loaded { address: u64, value: u8 },
    #[error("{0:#x} is beyond the addresses that the guest maps")]
    TooHigh(u64),
}

/// Loads the byte at `address`. The abort ends the program; a return is a failure.
pub fn run(address: u64) -> Failure {
    if address >= mmu::ADDRESS_END {
        return Failure::TooHigh(address);
    }
    exceptions::expect_external_abort(address);
    let value: u32;
    // SAFETY: a load changes no memory, and if the address is RAM after all, no reference is made from it. The barrier
    // keeps a late abort from being attributed to a later access.
    unsafe {
        asm!("ldrb {:w}, [{}]", "dsb sy", out(reg) value, in(reg) address,
            options(nostack, readonly, preserves_flags));
    }
    Failure::Loaded { address, value: value as u8 }
}
