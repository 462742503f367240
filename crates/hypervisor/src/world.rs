// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch into the guest and back.
//!
//! While the guest runs `SP_EL2` points to its [`Context`], so the way out (in [`vectors`](crate::vectors)) can save
//! without a spare register. EL2's own registers are not saved as such: [`enter`] tells the compiler that they
//! are gone, and it keeps the few that matter. A round trip is 49 instructions: 25 up to and with the ERET, 24 from the
//! vector on.
//!
//! Only the general registers, ELR_EL2 and SPSR_EL2 are switched. FP/SIMD registers and EL1's system registers
//! stay in the hardware: EL2 uses none of them, and a CPU runs one vCPU only.
//!
//! Invariant: while a guest runs, SP_EL2 is the address of its `Context`, which `enter` borrows for that long.

use core::arch::asm;
use core::mem::offset_of;

pub use crate::context::Context;

/// What brought the guest back to EL2. Details are in ESR_EL2, FAR_EL2 and HPFAR_EL2.
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

/// Runs the guest until it comes back.
///
/// # Safety
/// The CPU must be set up for it: [`registers::set_for`](crate::registers::set_for) ran, and HCR_EL2, VTTBR_EL2 and VTCR_EL2
/// confine the guest to memory and devices that are its own. `context` must not put PSTATE at EL2.
#[inline]
pub unsafe fn enter(context: &mut Context) -> Trap {
    let trap: u64;
    // SAFETY: the caller's promise. The guest runs on the context's registers; the way out (in `vectors`) puts what they
    // are then into the context, restores SP, and goes on behind the ERET. Every register that Rust may use is
    // named as overwritten, but for two that cannot be and are kept on the stack.
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
            // Never reached, and no speculation past the ERET either.
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
