// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entry of the image: `start.s` with its constants.
//!
//! The loader starts the image like Linux: at EL1 with the MMU off, at any multiple of 4 KiB, x0 = DTB. Rust code runs
//! only after relocation, with `.bss` zeroed, the MMU on, and exceptions reportable.

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
