// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exceptions that the hypervisor raises in its guest at EL1, as hardware would (Arm ARM D1.3).

use crate::world::Context;
use crate::{read_sysreg, write_sysreg};

/// A synchronous external abort for the access that `esr` (an abort from a lower level) and `far` describe.
pub fn external_abort(context: &mut Context, esr: u64, far: u64) {
    const SYNCHRONOUS_EXTERNAL: u64 = 0b01_0000;
    const WRITE: u64 = 1 << 6;
    const INSTRUCTION_ABORT: u64 = 0x20;
    let class = esr >> 26 & 0x3f;
    // From EL1 itself the class is the one of "the same level", which is one more.
    let class = class + u64::from(exception_level(context) == 1);
    let write = if class & !1 == INSTRUCTION_ABORT { 0 } else { esr & WRITE };
    // SAFETY: FAR_EL1 belongs to the guest, which is not running.
    unsafe { write_sysreg!(FAR_EL1, far) };
    synchronous(context, class, write | SYNCHRONOUS_EXTERNAL);
}

/// An undefined instruction.
pub fn undefined(context: &mut Context) {
    synchronous(context, 0, 0);
}

fn synchronous(context: &mut Context, class: u64, syndrome: u64) {
    const LONG_INSTRUCTION: u64 = 1 << 25;
    const STACK_OF_EL1: u64 = 1;
    let offset = match exception_level(context) {
        1 if context.pstate & STACK_OF_EL1 == 0 => 0x000,
        1 => 0x200,
        _ if context.pstate & AARCH32 == 0 => 0x400,
        _ => 0x600,
    };
    // SAFETY: these registers belong to the guest, which is not running.
    unsafe {
        write_sysreg!(ESR_EL1, class << 26 | LONG_INSTRUCTION | syndrome);
        write_sysreg!(ELR_EL1, context.pc);
        write_sysreg!(SPSR_EL1, context.pstate);
    }
    context.pc = (read_sysreg!(VBAR_EL1) & !0x7ff).wrapping_add(offset);
    context.pstate = pstate_in_handler(context.pstate, read_sysreg!(SCTLR_EL1));
}

/// PSTATE on entry to EL1 (Arm ARM, AArch64.TakeException): flags and DIT stay, TCO is set, PAN and SSBS are what SCTLR_EL1
/// says, all else is clear. Bits of features that the CPU lacks are ignored.
fn pstate_in_handler(before: u64, sctlr: u64) -> u64 {
    const FLAGS: u64 = 0xf << 28;
    const TCO: u64 = 1 << 25;
    const DIT: u64 = 1 << 24;
    const PAN: u64 = 1 << 22;
    const SSBS: u64 = 1 << 12;
    const SPAN: u64 = 1 << 23;
    const DSSBS: u64 = 1 << 44;
    // From AArch32, which only EL0 may use here, DIT is elsewhere.
    let kept = if before & AARCH32 == 0 { FLAGS | DIT | PAN } else { FLAGS | PAN };
    let pan = if sctlr & SPAN == 0 { PAN } else { 0 };
    let ssbs = if sctlr & DSSBS != 0 { SSBS } else { 0 };
    Context::EL1H_MASKED | before & kept | TCO | pan | ssbs
}

/// PSTATE.M\[4\].
const AARCH32: u64 = 1 << 4;

/// 0 or 1.
fn exception_level(context: &Context) -> u64 {
    if context.pstate & AARCH32 != 0 { 0 } else { context.pstate >> 2 & 3 }
}
