// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exception vectors of EL2.
//!
//! * From EL2 itself, or from AArch32: fatal. The entry takes the emergency stack, saves the registers and goes
//!   to [`panic::exception`](crate::panic). It spends `TPIDR_EL0` and `TPIDRRO_EL0`, which are the guest's: the guest
//!   does not run again.
//! * From the guest (a lower level, AArch64): the second half of [`world::enter`](crate::world::enter), which fits
//!   whole into the vector's 32 instructions.
//!
//! Invariant: no vector trusts the stack pointer. While the guest runs it points to its `Context`.

use core::arch::global_asm;

use crate::panic::{self, Fatal, Frame};
use crate::world::{CONTEXT_HOST, CONTEXT_X30, Trap};

global_asm!(
    ".macro save_x2_to_x29",
    "    stp x2, x3, [sp, #16]",
    "    stp x4, x5, [sp, #32]",
    "    stp x6, x7, [sp, #48]",
    "    stp x8, x9, [sp, #64]",
    "    stp x10, x11, [sp, #80]",
    "    stp x12, x13, [sp, #96]",
    "    stp x14, x15, [sp, #112]",
    "    stp x16, x17, [sp, #128]",
    "    stp x18, x19, [sp, #144]",
    "    stp x20, x21, [sp, #160]",
    "    stp x22, x23, [sp, #176]",
    "    stp x24, x25, [sp, #192]",
    "    stp x26, x27, [sp, #208]",
    "    stp x28, x29, [sp, #224]",
    ".endm",
    // A fatal exception.
    ".macro fatal which",
    "    .balign 128",
    "    msr tpidr_el0, x0",
    "    mov x0, sp",
    "    msr tpidrro_el0, x0",
    "    mrs x0, tpidr_el2", // this CPU's `Cpu`, above its emergency stack
    "    sub sp, x0, #{frame_size}",
    "    mrs x0, tpidr_el0",
    "    stp x0, x1, [sp]",
    "    mov x0, \\which",
    "    b fatal_exception",
    ".endm",
    // An exit of the guest: SP is its `Context`.
    ".macro guest which",
    "    .balign 128",
    "    stp x0, x1, [sp]",
    "    save_x2_to_x29",
    "    mrs x0, elr_el2",
    "    mrs x1, spsr_el2",
    "    ldp x2, x3, [sp, #{host}]",
    "    stp x30, x0, [sp, #{x30}]",
    "    str x1, [sp, #{x30} + 16]",
    "    mov sp, x2",
    "    mov x0, \\which",
    "    br x3",
    ".endm",
    ".section .text.vectors, \"ax\"",
    ".balign 2048",
    ".global exception_vectors",
    "exception_vectors:",
    // The current level with SP_EL0, which EL2 does not use, and with SP_EL2.
    ".rept 2",
    "    fatal {fatal_sync}",
    "    fatal {fatal_irq}",
    "    fatal {fatal_fiq}",
    "    fatal {fatal_serror}",
    ".endr",
    "guest {sync}",
    "guest {irq}",
    "guest {fiq}",
    "guest {serror}",
    ".rept 4",
    "    fatal {fatal_aarch32}",
    ".endr",
    ".org exception_vectors + 0x800", // cannot go back: fails if a vector has more than 32 instructions
    "fatal_exception:",
    "    save_x2_to_x29",
    "    mrs x2, tpidrro_el0",
    "    stp x30, x2, [sp, #240]",
    "    mov x1, sp",
    "    b {exception}",
    frame_size = const size_of::<Frame>(),
    host = const CONTEXT_HOST,
    x30 = const CONTEXT_X30,
    fatal_sync = const Fatal::Sync as u64,
    fatal_irq = const Fatal::Irq as u64,
    fatal_fiq = const Fatal::Fiq as u64,
    fatal_serror = const Fatal::SError as u64,
    fatal_aarch32 = const Fatal::LowerAArch32 as u64,
    sync = const Trap::Sync as u64,
    irq = const Trap::Irq as u64,
    fiq = const Trap::Fiq as u64,
    serror = const Trap::SError as u64,
    exception = sym panic::exception,
);
