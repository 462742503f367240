// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether CNTPOFF_EL2 does what ID_AA64MMFR0_EL1.ECV announces.
//!
//! QEMU 10.0 announces the offset, and ignores it on a machine without EL3, as if SCR_EL3.ECVEn were clear. A guest would
//! read the machine's counter. So such a CPU counts as one without an offset: the physical counter and timer trap.

use core::sync::atomic::Ordering;

use crate::registers::cpu::{self, Cpu};
use crate::sysreg::isb;
use crate::{read_sysreg, write_sysreg};

/// Looks, and has [`Cpu::has_physical_offset`] say no from now on if the offset is ignored.
///
/// # Safety
/// No vCPU may be loaded on this CPU, and no other CPU may run a guest.
pub unsafe fn survey() {
    // SAFETY: promised by the caller.
    if Cpu::read().has_physical_offset() && !unsafe { is_applied() } {
        cpu::IGNORES_OFFSET.store(true, Ordering::Relaxed);
    }
}

/// Seen through the offset, the counter is beyond the timer's compare value; without it, it is not for decades.
///
/// # Safety
/// The CPU must have FEAT_ECV, and no vCPU may be loaded on it.
unsafe fn is_applied() -> bool {
    const ECV: u64 = 1 << 12;
    const ENABLED_AND_MASKED: u64 = 0b11;
    const STATUS: u64 = 1 << 2;
    let before = read_sysreg!(CNTHCTL_EL2);
    // SAFETY: by the caller, no guest uses these registers of the timer, whose interrupt is masked. Both controls are as
    // before afterwards, and the timer is off.
    unsafe {
        write_sysreg!(CNTHCTL_EL2, before | ECV);
        write_sysreg!(S3_4_C14_C0_6, 0u64.wrapping_sub(1 << 62)); // CNTPOFF_EL2
        write_sysreg!(CNTP_CVAL_EL0, 1u64 << 61);
        write_sysreg!(CNTP_CTL_EL0, ENABLED_AND_MASKED);
    }
    isb();
    let control = read_sysreg!(CNTP_CTL_EL0);
    // SAFETY: as above.
    unsafe {
        write_sysreg!(CNTP_CTL_EL0, 0u64);
        write_sysreg!(S3_4_C14_C0_6, 0u64);
        write_sysreg!(CNTHCTL_EL2, before);
    }
    isb();
    control & STATUS != 0
}
