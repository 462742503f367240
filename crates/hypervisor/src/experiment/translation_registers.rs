// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trapped writes of the guest to its translation registers (HCR_EL2.TVM), in images with the feature `oracle` or
//! `record`.
//!
//! The GIC is the guest's, so no timer interrupt enters EL2. These traps do: each change of process is one, whatever
//! the guest is doing.

use crate::world::Context;
use crate::write_sysreg;

/// HCR_EL2.TVM: the guest's writes to its translation registers trap.
pub const TVM: u64 = 1 << 26;

/// Whether this exit is a write to TTBR1_EL1, which holds the ASID: Linux makes one such write at each change of
/// process.
pub fn is_change_of_process(esr: u64) -> bool {
    const SYSTEM_REGISTER: u64 = 0x18;
    esr >> 26 & 0x3f == SYSTEM_REGISTER && esr & WITHOUT_RT == TTBR1
}

/// Emulates a trapped write to one of the guest's translation registers. Returns whether the exit was one.
pub fn write(esr: u64, context: &mut Context) -> bool {
    let register = (esr >> 5 & 0x1f) as usize;
    let value = context.x.get(register).copied().unwrap_or(0);
    // SAFETY: the registers are the guest's own, which it writes by itself if nothing traps; EL2 uses none of them.
    unsafe {
        match esr & WITHOUT_RT {
            SCTLR => write_sysreg!(SCTLR_EL1, value),
            TTBR0 => write_sysreg!(TTBR0_EL1, value),
            TTBR1 => write_sysreg!(TTBR1_EL1, value),
            TCR => write_sysreg!(TCR_EL1, value),
            AFSR0 => write_sysreg!(AFSR0_EL1, value),
            AFSR1 => write_sysreg!(AFSR1_EL1, value),
            ESR => write_sysreg!(ESR_EL1, value),
            FAR => write_sysreg!(FAR_EL1, value),
            MAIR => write_sysreg!(MAIR_EL1, value),
            AMAIR => write_sysreg!(AMAIR_EL1, value),
            CONTEXTIDR => write_sysreg!(CONTEXTIDR_EL1, value),
            _ => return false,
        }
    }
    context.skip();
    true
}

/// Op0, Op2, Op1, CRn, CRm, and the direction: the syndrome without Rt.
const fn write_to(crn: u64, crm: u64, op2: u64) -> u64 {
    3 << 20 | op2 << 17 | crn << 10 | crm << 1
}

const WITHOUT_RT: u64 = 0x3f_fc1f;
const SCTLR: u64 = write_to(1, 0, 0);
const TTBR0: u64 = write_to(2, 0, 0);
const TTBR1: u64 = write_to(2, 0, 1);
const TCR: u64 = write_to(2, 0, 2);
const AFSR0: u64 = write_to(5, 1, 0);
const AFSR1: u64 = write_to(5, 1, 1);
const ESR: u64 = write_to(5, 2, 0);
const FAR: u64 = write_to(6, 0, 0);
const MAIR: u64 = write_to(10, 2, 0);
const AMAIR: u64 = write_to(10, 3, 0);
const CONTEXTIDR: u64 = write_to(13, 0, 1);
