// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entry of the image: `start.s` with its constants.
//!
//! Started as Linux is: at EL1 with the MMU off, the image anywhere on a 4 KiB boundary, x0 = DTB. Rust code
//! runs only once the relocations are applied, `.bss` is zero, the MMU is on, and exceptions can be reported.

use core::arch::global_asm;

use crate::{mmu, psci};

global_asm!(
    include_str!("start.s"),
    table = sym mmu::TABLE,
    device = const mmu::DEVICE,
    normal = const mmu::NORMAL,
    address_bits = const mmu::ADDRESS_BITS,
    mair = const mmu::MAIR,
    tcr = const mmu::TCR,
    sctlr = const mmu::SCTLR,
    main = sym crate::main,
    system_reset = const psci::SYSTEM_RESET,
);

unsafe extern "C" {
    static image_end: u8;
}

/// The first address after the image, its bss and its stack: a multiple of 4 KiB.
pub fn end_of_image() -> u64 {
    (&raw const image_end).addr() as u64
}
