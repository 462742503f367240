// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Address translation instructions: EL2 translates by a guest's stage 1.
//!
//! They walk the guest's own tables. An external abort on that walk is an exception at EL2, not a result (Arm ARM DDI
//! 0487K.a, pseudocode `AArch64.AT`). Here it becomes a result: `PAR_EL1` as if the instruction had reported the
//! abort's status there.

use core::arch::asm;

use crate::exception_table::exception_table_entry;
use crate::{read_sysreg, write_sysreg};

/// `AT S1E1R`: the `PAR_EL1` of a read at EL1.
#[inline(always)]
pub fn s1e1r(address: u64) -> u64 {
    at!("at s1e1r, {address}", address)
}

/// `AT S1E1A`: the same without a check of permissions. Needs FEAT_ATS1A.
pub fn s1e1a(address: u64) -> u64 {
    at!("sys #0, c7, c9, #2, {address}", address)
}

/// Executes one of the instructions, and preserves the guest's `PAR_EL1`.
macro_rules! at {
    ($instruction:literal, $address:expr) => {{
        let saved = read_sysreg!(PAR_EL1);
        let par: u64;
        // SAFETY: a translation changes only PAR_EL1, which is restored below. An abort returns through the exception
        // table, and the landing restores the guest's TPIDR_EL0.
        unsafe {
            asm!(
                "mrs {kept}, tpidr_el0",
                concat!("2: ", $instruction),
                "isb",
                "mrs {par}, par_el1",
                "3:",
                ".pushsection .text.landing, \"ax\"",
                "4:",
                "msr tpidr_el0, {kept}",
                "mrs {par}, esr_el2",
                // PAR_EL1.FST is the syndrome's status code, PAR_EL1.F is 1.
                "ubfiz {par}, {par}, #1, #6",
                "orr {par}, {par}, #1",
                "b 3b",
                ".popsection",
                exception_table_entry!("2b", "4b"),
                address = in(reg) $address,
                kept = out(reg) _,
                par = out(reg) par,
                options(nostack, preserves_flags)
            );
            write_sysreg!(PAR_EL1, saved);
        }
        par
    }};
}
use at;
