// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exception vectors of EL2.
//!
//! * From EL2 itself, or from AArch32: fatal, except for an instruction of the [exception
//!   table](crate::exception_table). The entry switches to the emergency stack, saves the registers and calls
//!   [`panic::exception`](crate::panic), which returns if the instruction is in the table. The entry overwrites
//!   `TPIDR_EL0`, which is the guest's.
//! * From the guest (a lower level, AArch64): the second half of [`world::enter`](crate::world::enter), which fits into
//!   the vector's 32 instructions.
//!
//! Invariant: no vector trusts the stack pointer. While the guest runs, it points to the guest's `Context`.

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
    // An exception that is fatal unless the exception table has a landing for it. The frame is below this CPU's `Cpu`,
    // on the emergency stack.
    ".macro fatal which",
    "    .balign 128",
    "    msr tpidr_el0, x0",
    "    mrs x0, tpidr_el2",
    "    stur x1, [x0, #8 - {frame_size}]",
    "    mov x1, sp",
    "    sub sp, x0, #{frame_size}",
    "    mrs x0, tpidr_el0",
    "    str x0, [sp]",
    "    str x1, [sp, #248]",
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
    ".org exception_vectors + 0x800", // cannot move back: fails if a vector has more than 32 instructions
    "fatal_exception:",
    "    save_x2_to_x29",
    "    str x30, [sp, #240]",
    "    mov x1, sp",
    "    bl {exception}",
    // `panic::exception` returned, with ELR_EL2 at a landing: restore all registers, SP included.
    "    mov x0, sp",
    "    ldp x30, x1, [x0, #240]",
    "    mov sp, x1",
    "    ldp x2, x3, [x0, #16]",
    "    ldp x4, x5, [x0, #32]",
    "    ldp x6, x7, [x0, #48]",
    "    ldp x8, x9, [x0, #64]",
    "    ldp x10, x11, [x0, #80]",
    "    ldp x12, x13, [x0, #96]",
    "    ldp x14, x15, [x0, #112]",
    "    ldp x16, x17, [x0, #128]",
    "    ldp x18, x19, [x0, #144]",
    "    ldp x20, x21, [x0, #160]",
    "    ldp x22, x23, [x0, #176]",
    "    ldp x24, x25, [x0, #192]",
    "    ldp x26, x27, [x0, #208]",
    "    ldp x28, x29, [x0, #224]",
    "    ldp x0, x1, [x0]",
    "    eret",
    // No speculation past the ERET.
    "    dsb nsh",
    "    isb",
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
