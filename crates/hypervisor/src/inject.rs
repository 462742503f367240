// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exceptions that the hypervisor raises in its guest at EL1, as hardware would (Arm ARM DDI 0487K.a, D1.3).

use crate::context::Context;
use crate::sysreg::id_field;
use crate::{read_sysreg, write_sysreg};

/// Raises a synchronous external abort for the access that `esr` (an abort from a lower level) and `far` describe. If
/// the abort is for a walk of stage 1, `walk` is the level of the guest's own table, because the level in `esr` is
/// stage 2's.
pub fn external_abort(context: &mut Context, esr: u64, far: u64, walk: Option<i8>) {
    const STATUS: u64 = 0x3f;
    const SYNCHRONOUS_EXTERNAL: u64 = 0b01_0000;
    // The status for level 0; that of level -1 is one less.
    const ON_A_WALK: u64 = 0b01_0100;
    // WnR, and CM: for cache maintenance WnR is set as well.
    const DATA_ACCESS: u64 = 1 << 6 | 1 << 8;
    const FAR_NOT_VALID: u64 = 1 << 10;
    const INSTRUCTION_ABORT: u64 = 0x20;
    let class = esr >> 26 & 0x3f;
    // For an exception from EL1 itself the class is that of "the same level", which is one more.
    let class = class + u64::from(exception_level(context) == 1);
    let access = if class & !1 == INSTRUCTION_ABORT { 0 } else { esr & DATA_ACCESS };
    // FnV is defined for this status only, in the guest's syndrome as in EL2's.
    let far_not_valid = if esr & STATUS == SYNCHRONOUS_EXTERNAL { esr & FAR_NOT_VALID } else { 0 };
    let syndrome = match walk {
        Some(level) => ON_A_WALK.wrapping_add_signed(level.into()),
        None => far_not_valid | SYNCHRONOUS_EXTERNAL,
    };
    // SAFETY: FAR_EL1 belongs to the guest, which is not running.
    unsafe { write_sysreg!(FAR_EL1, far) };
    let offset = if external_aborts_are_serrors() { SERROR } else { SYNCHRONOUS };
    take(context, offset, class, access | syndrome);
}

/// Raises the exception for an undefined instruction.
pub fn undefined(context: &mut Context) {
    take(context, SYNCHRONOUS, 0, 0);
}

/// Takes an exception to EL1, through the vector at `kind` in the group of the interrupted code.
fn take(context: &mut Context, kind: u64, class: u64, syndrome: u64) {
    const LONG_INSTRUCTION: u64 = 1 << 25;
    const STACK_OF_EL1: u64 = 1;
    let group = match exception_level(context) {
        1 if context.pstate & STACK_OF_EL1 == 0 => 0x000,
        1 => 0x200,
        _ if context.pstate & AARCH32 == 0 => 0x400,
        _ => 0x600,
    };
    let pstate = pstate_in_handler(context.pstate);
    // SAFETY: these registers belong to the guest, which is not running.
    unsafe {
        write_sysreg!(ESR_EL1, class << 26 | LONG_INSTRUCTION | syndrome);
        write_sysreg!(ELR_EL1, context.pc);
        write_sysreg!(SPSR_EL1, context.pstate);
    }
    context.pc = (read_sysreg!(VBAR_EL1) & !0x7ff).wrapping_add(group + kind);
    context.pstate = pstate;
}

/// PSTATE on entry to EL1 (Arm ARM DDI 0487K.a, pseudocode `AArch64.TakeException`). Flags and DIT are kept, and TCO is
/// set. PAN, SSBS and ALLINT follow SCTLR_EL1. For an exception from EL1 itself, EXLOCK follows GCSCR_EL1. All other
/// bits are clear. A CPU ignores the bits of features that it lacks, except ALLINT and EXLOCK, so those are set only
/// with FEAT_NMI and FEAT_GCS.
fn pstate_in_handler(before: u64) -> u64 {
    const FLAGS: u64 = 0xf << 28;
    const TCO: u64 = 1 << 25;
    // The same bit after AArch32: SPSR_EL2 holds DIT here, not at CPSR's place.
    const DIT: u64 = 1 << 24;
    const PAN: u64 = 1 << 22;
    const SSBS: u64 = 1 << 12;
    const ALLINT: u64 = 1 << 13;
    const EXLOCK: u64 = 1 << 34;
    const SPAN: u64 = 1 << 23;
    const DSSBS: u64 = 1 << 44;
    const SPINTMASK: u64 = 1 << 62;
    const EXLOCKEN: u64 = 1 << 6;
    let sctlr = read_sysreg!(SCTLR_EL1);
    let pfr1 = read_sysreg!(ID_AA64PFR1_EL1);
    let (nmi, gcs) = (id_field(pfr1, 36) != 0, id_field(pfr1, 44) != 0);
    let bit = |condition: bool, bit: u64| u64::from(condition) * bit;
    let exlock = gcs && level_of(before) == 1 && read_sysreg!(S3_0_C2_C5_0) & EXLOCKEN != 0; // GCSCR_EL1
    Context::EL1H_MASKED
        | before & (FLAGS | DIT | PAN)
        | TCO
        | bit(sctlr & SPAN == 0, PAN)
        | bit(sctlr & DSSBS != 0, SSBS)
        | bit(nmi && sctlr & SPINTMASK == 0, ALLINT)
        | bit(exlock, EXLOCK)
}

/// Whether the guest takes synchronous external aborts by the SError vector (FEAT_DoubleFault2, SCTLR2_EL1.EASE).
fn external_aborts_are_serrors() -> bool {
    const EASE: u64 = 1 << 5;
    let double_fault_2 = id_field(read_sysreg!(ID_AA64PFR1_EL1), 56) != 0;
    let sctlr2 = id_field(read_sysreg!(S3_0_C0_C7_3), 4) != 0; // ID_AA64MMFR3_EL1
    double_fault_2 && sctlr2 && read_sysreg!(S3_0_C1_C0_3) & EASE != 0 // SCTLR2_EL1
}

/// The first vector of a group.
const SYNCHRONOUS: u64 = 0x000;
/// The last vector of a group.
const SERROR: u64 = 0x180;

/// PSTATE.M\[4\].
const AARCH32: u64 = 1 << 4;

fn exception_level(context: &Context) -> u64 {
    level_of(context.pstate)
}

/// 0 or 1. AArch32 runs only at EL0, where these bits of its mode are clear.
fn level_of(pstate: u64) -> u64 {
    pstate >> 2 & 3
}
