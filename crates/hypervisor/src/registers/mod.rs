// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system registers that limit a guest's access to EL2, to other guests and to the machine.
//!
//! | file | contents |
//! |---|---|
//! | [`el2`] | the control registers of EL2: the value of each, when it exists, and why |
//! | [`el1`] | the guest's own registers that could hold a value of firmware or of an earlier vCPU |
//! | [`left`] | the registers of EL2 that are not in the table, each with the reason |
//! | [`register`](mod@register) | one row of these tables |
//! | [`cpu`] | the ID registers that announce which of these registers a CPU has |
//! | [`access`] | a trapped access |
//! | [`shut`] | registers that trap, and are not UNDEFINED |
//!
//! Invariant: no control register of EL2 keeps the firmware's value, unless [`left`] says why that is harmless. A test
//! compares both lists with the register list of another crate.
//!
//! A register of an optional feature is written only if the ID registers announce that feature. Otherwise the write is
//! UNDEFINED.

use twofold_stage2::Features;

use crate::sysreg::isb;

pub mod access;
pub mod cpu;
pub mod el1;
pub mod el2;
pub mod left;
pub mod register;
pub mod shut;

pub use cpu::Cpu;
pub use register::{Confinement, Register};

/// Sets the controls of EL2 for running a guest on this CPU, and the guest's registers that reset leaves UNKNOWN.
/// The guest may use FP, SIMD, debug registers and the virtual timer. What [`guest_cpu`](crate::guest_cpu) hides traps.
///
/// # Safety
/// No guest may have run on this CPU since it was switched on. `guest.hcr` must be a value under which EL2 itself works
/// (E2H=0, TGE=0).
pub unsafe fn set_for(guest: &Confinement) {
    let cpu = Cpu::read();
    for register in el2::TABLE.iter().chain(el1::TABLE).filter(|register| (register.exists)(&cpu)) {
        // SAFETY: by `exists` the register is there. No value in the tables changes the meaning of EL2's own code and
        // memory, except that of HCR_EL2, for which the caller is responsible.
        unsafe { (register.write)((register.value)(&cpu, guest)) };
        // Some registers are trapped until an earlier one in the table takes effect.
        isb();
    }
}

/// HCR_EL2 for the guest: AArch64, its memory behind stage 2, physical interrupts taken to EL2 and the virtual interface
/// for the guest, SMC and IMPLEMENTATION DEFINED registers trapped (on some cores those read caches), set/way cache
/// operations upgraded to clean, ID registers trapped. The features that the guest may use by itself do not trap (pointer
/// authentication, SCXTNUM). PTW stays clear: with it, stage-1 tables in device memory would fault for ever. ATA stays
/// clear: the guest neither reads nor writes allocation tags, which would outlast it in its frames.
pub const fn hcr(features: &Features) -> u64 {
    const VM: u64 = 1 << 0;
    const SWIO: u64 = 1 << 1;
    const FMO: u64 = 1 << 3;
    const IMO: u64 = 1 << 4;
    const TSC: u64 = 1 << 19;
    const TID3: u64 = 1 << 18;
    const TIDCP: u64 = 1 << 20;
    const RW: u64 = 1 << 31;
    const APK: u64 = 1 << 40;
    const API: u64 = 1 << 41;
    const FWB: u64 = 1 << 46;
    const EN_SCXT: u64 = 1 << 53;
    let fwb = if features.forced_write_back { FWB } else { 0 };
    VM | SWIO | FMO | IMO | TID3 | TSC | TIDCP | RW | APK | API | EN_SCXT | fwb
}
