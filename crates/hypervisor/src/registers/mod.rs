// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system registers that limit a guest's access to EL2, to other guests and to the machine.
//!
//! | file | contents |
//! |---|---|
//! | [`el2`] | the control registers of EL2: the value of each, when it exists, and why |
//! | [`el1`] | the guest's own registers that could hold a value of firmware or of an earlier vCPU |
//! | [`left`] | the registers of EL2 that are not in the table, each with the reason |
//! | [`shut`] | emulated accesses to the registers of features that are shut |
//!
//! Invariant: no control register of EL2 keeps the firmware's value, unless [`left`] says why that is harmless. A test
//! compares both lists with the register list of another crate.
//!
//! A register of an optional feature is written only if the ID registers announce that feature. Otherwise the write is
//! UNDEFINED.

use twofold_stage2::Features;

use crate::read_sysreg;
use crate::sysreg::{id_field, isb};

pub mod el1;
pub mod el2;
pub mod left;
pub mod shut;

/// Sets the controls of EL2 for running a guest on this CPU, and the guest's registers that reset leaves UNKNOWN.
/// The guest may use FP, SIMD, SVE, SME, the PMU's counters, debug registers, timers and the GIC's CPU interface.
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

/// One row of a table.
pub struct Register {
    /// Its name in the architecture.
    pub name: &'static str,
    /// Whether this CPU has it.
    pub exists: fn(&Cpu) -> bool,
    /// Its value.
    pub value: fn(&Cpu, &Confinement) -> u64,
    /// Why it has this value.
    pub why: &'static str,
    /// Writes it. The register must exist.
    pub write: unsafe fn(u64),
    /// Reads it. The register must exist.
    pub read: unsafe fn() -> u64,
}

/// The registers of stage 2, with the same values on all CPUs of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Confinement {
    /// HCR_EL2, without the bits that depend on the CPU: [`hcr`].
    pub hcr: u64,
    /// VTCR_EL2.
    pub vtcr: u64,
    /// VTTBR_EL2.
    pub vttbr: u64,
}

/// The ID registers of one CPU that announce its control registers.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each field is the register of that name")]
pub struct Cpu {
    pub midr: u64,
    pub mpidr: u64,
    pub id_aa64pfr0: u64,
    pub id_aa64pfr1: u64,
    pub id_aa64dfr0: u64,
    pub id_aa64mmfr0: u64,
    pub id_aa64mmfr1: u64,
    pub id_aa64mmfr3: u64,
    pub id_aa64mmfr4: u64,
    /// 0 without a PMU.
    pub pmcr: u64,
    /// 0 without FEAT_SPE.
    pub pmbidr: u64,
    /// 0 without FEAT_TRBE.
    pub trbidr: u64,
    /// 0 without FEAT_MPAM.
    pub mpamidr: u64,
}

impl Cpu {
    /// The ID registers of this CPU.
    pub fn read() -> Self {
        let mut cpu = Self {
            midr: read_sysreg!(MIDR_EL1),
            mpidr: read_sysreg!(MPIDR_EL1),
            id_aa64pfr0: read_sysreg!(ID_AA64PFR0_EL1),
            id_aa64pfr1: read_sysreg!(ID_AA64PFR1_EL1),
            id_aa64dfr0: read_sysreg!(ID_AA64DFR0_EL1),
            id_aa64mmfr0: read_sysreg!(ID_AA64MMFR0_EL1),
            id_aa64mmfr1: read_sysreg!(ID_AA64MMFR1_EL1),
            // On a CPU that is older than these registers, their encodings read 0.
            id_aa64mmfr3: read_sysreg!(S3_0_C0_C7_3),
            id_aa64mmfr4: read_sysreg!(S3_0_C0_C7_4),
            ..Self::default()
        };
        if cpu.has_pmu() {
            cpu.pmcr = read_sysreg!(PMCR_EL0);
        }
        if cpu.announces_spe() {
            cpu.pmbidr = read_sysreg!(S3_0_C9_C10_7);
        }
        if cpu.announces_trbe() {
            cpu.trbidr = read_sysreg!(S3_0_C9_C11_7);
        }
        if cpu.has_mpam() {
            cpu.mpamidr = read_sysreg!(S3_0_C10_C4_4);
        }
        cpu
    }

    /// FEAT_SVE.
    pub fn has_sve(&self) -> bool {
        id_field(self.id_aa64pfr0, 32) != 0
    }

    /// FEAT_SME.
    pub fn has_sme(&self) -> bool {
        id_field(self.id_aa64pfr1, 24) != 0
    }

    /// System registers for the GIC's CPU interface.
    pub fn has_gic_registers(&self) -> bool {
        id_field(self.id_aa64pfr0, 24) != 0
    }

    /// FEAT_RAS.
    pub fn has_ras(&self) -> bool {
        id_field(self.id_aa64pfr0, 28) != 0
    }

    /// FEAT_AMUv1.
    pub fn has_amu(&self) -> bool {
        id_field(self.id_aa64pfr0, 44) != 0
    }

    /// FEAT_MPAM.
    pub fn has_mpam(&self) -> bool {
        id_field(self.id_aa64pfr0, 40) != 0 || id_field(self.id_aa64pfr1, 16) != 0
    }

    /// FEAT_GCS.
    pub fn has_gcs(&self) -> bool {
        id_field(self.id_aa64pfr1, 44) != 0
    }

    /// FEAT_PMUv3; 0xf is a PMU that the architecture does not describe.
    pub fn has_pmu(&self) -> bool {
        matches!(id_field(self.id_aa64dfr0, 8), 1..0xf)
    }

    /// A trace unit that is reached by system registers.
    pub fn has_trace_registers(&self) -> bool {
        id_field(self.id_aa64dfr0, 4) != 0
    }

    /// FEAT_TRF.
    pub fn has_trace_filter(&self) -> bool {
        id_field(self.id_aa64dfr0, 40) != 0
    }

    /// FEAT_SPE with a buffer that EL3 has left to EL2 (PMBIDR_EL1.P is clear).
    pub fn has_spe(&self) -> bool {
        self.announces_spe() && self.pmbidr & BUFFER_IS_EL3S == 0
    }

    /// FEAT_TRBE with a buffer that EL3 has left to EL2 (TRBIDR_EL1.P is clear).
    pub fn has_trbe(&self) -> bool {
        self.announces_trbe() && self.trbidr & BUFFER_IS_EL3S == 0
    }

    /// FEAT_BRBE.
    pub fn has_brbe(&self) -> bool {
        id_field(self.id_aa64dfr0, 52) != 0
    }

    /// FEAT_FGT.
    pub fn has_fgt(&self) -> bool {
        id_field(self.id_aa64mmfr0, 56) != 0
    }

    /// FEAT_FGT2.
    pub fn has_fgt2(&self) -> bool {
        id_field(self.id_aa64mmfr0, 56) >= 2
    }

    /// FEAT_ECV with CNTPOFF_EL2.
    pub fn has_physical_offset(&self) -> bool {
        id_field(self.id_aa64mmfr0, 60) >= 2
    }

    /// FEAT_VHE.
    pub fn has_vhe(&self) -> bool {
        id_field(self.id_aa64mmfr1, 8) != 0
    }

    /// FEAT_LOR.
    pub fn has_lor(&self) -> bool {
        id_field(self.id_aa64mmfr1, 16) != 0
    }

    /// FEAT_HCX.
    pub fn has_hcx(&self) -> bool {
        id_field(self.id_aa64mmfr1, 40) != 0
    }

    /// FEAT_TCR2.
    pub fn has_tcr2(&self) -> bool {
        id_field(self.id_aa64mmfr3, 0) != 0
    }

    /// FEAT_SCTLR2.
    pub fn has_sctlr2(&self) -> bool {
        id_field(self.id_aa64mmfr3, 4) != 0
    }

    /// FEAT_HACDBS.
    pub fn has_hacdbs(&self) -> bool {
        id_field(self.id_aa64mmfr4, 12) != 0
    }

    fn announces_spe(&self) -> bool {
        id_field(self.id_aa64dfr0, 32) != 0
    }

    fn announces_trbe(&self) -> bool {
        id_field(self.id_aa64dfr0, 44) != 0
    }
}

/// PMBIDR_EL1.P and TRBIDR_EL1.P: EL3 owns the buffer, and an access to its registers would trap to EL3.
const BUFFER_IS_EL3S: u64 = 1 << 4;

/// HCR_EL2 for the guest: AArch64, its memory behind stage 2, SMC and IMPLEMENTATION DEFINED registers trapped (on some
/// cores those read caches), set/way cache operations upgraded to clean. The features that the guest may use by itself
/// do not trap (pointer authentication, SCXTNUM, allocation tags). PTW stays clear: with it, stage-1 tables in device
/// memory would fault for ever.
pub const fn hcr(features: &Features) -> u64 {
    const VM: u64 = 1 << 0;
    const SWIO: u64 = 1 << 1;
    const TSC: u64 = 1 << 19;
    const TIDCP: u64 = 1 << 20;
    const RW: u64 = 1 << 31;
    const APK: u64 = 1 << 40;
    const API: u64 = 1 << 41;
    const FWB: u64 = 1 << 46;
    const EN_SCXT: u64 = 1 << 53;
    const ATA: u64 = 1 << 56;
    let fwb = if features.forced_write_back { FWB } else { 0 };
    VM | SWIO | TSC | TIDCP | RW | APK | API | EN_SCXT | ATA | fwb
}

/// A row: name, encoding, condition of existence, value, reason.
macro_rules! register {
    ($name:ident, $encoding:ident, $exists:expr, $value:expr, $why:literal) => {
        $crate::registers::Register {
            name: stringify!($name),
            exists: $exists,
            value: $value,
            why: $why,
            // SAFETY: the caller's promise: the register exists. The value is the caller's responsibility.
            write: |value| unsafe { crate::write_sysreg!($encoding, value) },
            read: || crate::read_sysreg!($encoding),
        }
    };
}
pub(crate) use register;

/// Every CPU with EL2 has the register.
pub(crate) const ALWAYS: fn(&Cpu) -> bool = |_| true;
/// The register is cleared.
pub(crate) const CLEAR: fn(&Cpu, &Confinement) -> u64 = |_, _| 0;
