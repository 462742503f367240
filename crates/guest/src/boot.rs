// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entry of the image: `start.s` with its constants.
//!
//! The loader starts the image like Linux: at EL1 with the MMU off, at any multiple of 4 KiB, x0 = DTB. Rust code runs
//! only after relocation, with `.bss` zeroed, the MMU on, and exceptions reportable.

use core::arch::{asm, global_asm};

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

/// Clears the part of the first vCPU's stack that is not in use.
pub fn clear_unused_stack() {
    // SAFETY: the stack is from `bss_end` on (`link.ld`), and nothing below the stack pointer is in use. Both are
    // multiples of 16.
    unsafe {
        asm!(
            "adrp {bottom}, bss_end",
            "add {bottom}, {bottom}, :lo12:bss_end",
            "mov {top}, sp",
            "1: stp xzr, xzr, [{bottom}], #16",
            "cmp {bottom}, {top}",
            "b.lo 1b",
            bottom = out(reg) _,
            top = out(reg) _,
        );
    }
}
