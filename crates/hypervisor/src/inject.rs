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
    unsafe { write_sysreg!(far_el1, far) };
    synchronous(context, class, write | SYNCHRONOUS_EXTERNAL);
}

/// An undefined instruction.
pub fn undefined(context: &mut Context) {
    synchronous(context, 0, 0);
}

fn synchronous(context: &mut Context, class: u64, syndrome: u64) {
    const LONG_INSTRUCTION: u64 = 1 << 25;
    const STACK_OF_EL1: u64 = 1;
    const AARCH32: u64 = 1 << 4;
    const EL1H_MASKED: u64 = 0x3c5;
    const PAN: u64 = 1 << 22;
    const SPAN: u64 = 1 << 23;
    let offset = match exception_level(context) {
        1 if context.pstate & STACK_OF_EL1 == 0 => 0x000,
        1 => 0x200,
        _ if context.pstate & AARCH32 == 0 => 0x400,
        _ => 0x600,
    };
    // SCTLR_EL1.SPAN clear asks for privileged access never on entry; without FEAT_PAN the bit is ignored.
    let pan = if read_sysreg!(sctlr_el1) & SPAN == 0 { PAN } else { context.pstate & PAN };
    // SAFETY: these registers belong to the guest, which is not running.
    unsafe {
        write_sysreg!(esr_el1, class << 26 | LONG_INSTRUCTION | syndrome);
        write_sysreg!(elr_el1, context.pc);
        write_sysreg!(spsr_el1, context.pstate);
    }
    context.pc = read_sysreg!(vbar_el1) + offset;
    context.pstate = EL1H_MASKED | pan;
}

/// 0 or 1.
fn exception_level(context: &Context) -> u64 {
    const AARCH32: u64 = 1 << 4;
    if context.pstate & AARCH32 != 0 { 0 } else { context.pstate >> 2 & 3 }
}
