// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch into the guest and back.
//!
//! While the guest runs, `SP_EL2` points to its [`Context`], so the exit path (in [`vectors`](crate::vectors)) can save
//! registers without a spare one. EL2's own registers are not saved one by one: [`enter`] declares them overwritten, so
//! the compiler keeps the few that matter. A round trip takes 49 instructions: 25 up to and including the ERET, 24 from
//! the vector on.
//!
//! Only the general registers, ELR_EL2 and SPSR_EL2 are switched. FP/SIMD registers and EL1's system registers stay in
//! the hardware, because EL2 uses none of them. Where vCPUs take turns on a CPU, [`switch`](crate::switch) switches
//! them.
//!
//! Invariant: while a guest runs, SP_EL2 is the address of its `Context`, which `enter` borrows during that time.

use core::arch::asm;
use core::mem::offset_of;

pub use crate::context::Context;

/// The kind of exception that ended the guest's run. ESR_EL2, FAR_EL2 and HPFAR_EL2 have the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Trap {
    /// A synchronous exception: an instruction or an access that traps.
    Sync = 0,
    /// A physical IRQ, still pending.
    Irq = 1,
    /// A physical FIQ, still pending.
    Fiq = 2,
    /// A physical SError.
    SError = 3,
}

/// Runs the guest until its next exit.
///
/// # Safety
/// The CPU must be set up for the guest: [`registers::set_for`](crate::registers::set_for) ran, and HCR_EL2, VTTBR_EL2
/// and VTCR_EL2 confine the guest to its own memory and devices. `context` must not put PSTATE at EL2.
#[inline]
pub unsafe fn enter(context: &mut Context) -> Trap {
    let trap: u64;
    // SAFETY: the caller's promise. The guest runs on the context's registers. The exit path (in `vectors`) saves them
    // into the context, restores SP, and continues after the ERET. Every register that Rust may use is declared
    // overwritten, except two that cannot be; those are kept on the stack.
    unsafe {
        asm!(
            "stp x19, x29, [sp, #-16]!",
            "mov x1, sp",
            "adr x2, 2f",
            "stp x1, x2, [x0, #{host}]",
            "ldp x1, x2, [x0, #{x30} + 8]",
            "mov sp, x0",
            "msr elr_el2, x1",
            "msr spsr_el2, x2",
            "ldp x2, x3, [sp, #16]",
            "ldp x4, x5, [sp, #32]",
            "ldp x6, x7, [sp, #48]",
            "ldp x8, x9, [sp, #64]",
            "ldp x10, x11, [sp, #80]",
            "ldp x12, x13, [sp, #96]",
            "ldp x14, x15, [sp, #112]",
            "ldp x16, x17, [sp, #128]",
            "ldp x18, x19, [sp, #144]",
            "ldp x20, x21, [sp, #160]",
            "ldp x22, x23, [sp, #176]",
            "ldp x24, x25, [sp, #192]",
            "ldp x26, x27, [sp, #208]",
            "ldp x28, x29, [sp, #224]",
            "ldr x30, [sp, #{x30}]",
            "ldp x0, x1, [sp]",
            "eret",
            // Never executed, but stops speculation past the ERET.
            "dsb nsh",
            "isb",
            "2:",
            "ldp x19, x29, [sp], #16",
            x30 = const CONTEXT_X30,
            host = const CONTEXT_HOST,
            inout("x0") &raw mut *context => trap,
            out("x1") _, out("x2") _, out("x3") _, out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _,
            out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _, out("x15") _,
            out("x16") _, out("x17") _, out("x18") _, out("x20") _, out("x21") _, out("x22") _, out("x23") _,
            out("x24") _, out("x25") _, out("x26") _, out("x27") _, out("x28") _, out("x30") _,
        );
    }
    match trap {
        0 => Trap::Sync,
        1 => Trap::Irq,
        2 => Trap::Fiq,
        _ => Trap::SError,
    }
}

pub(crate) const CONTEXT_X30: usize = offset_of!(Context, x) + 30 * 8;
pub(crate) const CONTEXT_HOST: usize = offset_of!(Context, host);
