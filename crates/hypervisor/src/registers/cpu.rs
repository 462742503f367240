// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ID registers that announce a CPU's control registers.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::read_sysreg;
use crate::sysreg::id_field;

/// The ID registers of one CPU that announce its control registers.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each field is the register of that name")]
pub struct Cpu {
    pub midr: u64,
    pub mpidr: u64,
    pub id_aa64pfr0: u64,
    pub id_aa64pfr1: u64,
    pub id_aa64dfr0: u64,
    pub id_aa64isar1: u64,
    pub id_aa64isar2: u64,
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
    /// The CPUs of this machine ignore CNTPOFF_EL2.
    pub ignores_offset: bool,
}

/// CNTPOFF_EL2 was found to have no effect: what is [read](Cpu::read) from then on says so.
pub static IGNORES_OFFSET: AtomicBool = AtomicBool::new(false);

impl Cpu {
    /// The ID registers of this CPU.
    pub fn read() -> Self {
        let mut cpu = Self {
            midr: read_sysreg!(MIDR_EL1),
            mpidr: read_sysreg!(MPIDR_EL1),
            id_aa64pfr0: read_sysreg!(ID_AA64PFR0_EL1),
            id_aa64pfr1: read_sysreg!(ID_AA64PFR1_EL1),
            id_aa64dfr0: read_sysreg!(ID_AA64DFR0_EL1),
            id_aa64isar1: read_sysreg!(ID_AA64ISAR1_EL1),
            id_aa64isar2: read_sysreg!(S3_0_C0_C6_2),
            id_aa64mmfr0: read_sysreg!(ID_AA64MMFR0_EL1),
            id_aa64mmfr1: read_sysreg!(ID_AA64MMFR1_EL1),
            // On a CPU that is older than these registers, their encodings read 0.
            id_aa64mmfr3: read_sysreg!(S3_0_C0_C7_3),
            id_aa64mmfr4: read_sysreg!(S3_0_C0_C7_4),
            ignores_offset: IGNORES_OFFSET.load(Ordering::Relaxed),
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

    /// FEAT_SME.
    pub fn has_sme(&self) -> bool {
        id_field(self.id_aa64pfr1, 24) != 0
    }

    /// FEAT_MTE2: allocation tags in memory.
    pub fn has_tags(&self) -> bool {
        id_field(self.id_aa64pfr1, 8) >= 2
    }

    /// FEAT_NMI.
    pub fn has_nmi(&self) -> bool {
        id_field(self.id_aa64pfr1, 36) != 0
    }

    /// FEAT_PAuth, by any algorithm.
    pub fn has_pauth(&self) -> bool {
        let by_isar1 = [4, 8, 24, 28].iter().any(|low| id_field(self.id_aa64isar1, *low) != 0);
        by_isar1 || [8, 12].iter().any(|low| id_field(self.id_aa64isar2, *low) != 0)
    }

    /// SCXTNUM_EL0 and SCXTNUM_EL1: FEAT_CSV2_2, or FEAT_CSV2_1p2.
    pub fn has_scxtnum(&self) -> bool {
        id_field(self.id_aa64pfr0, 56) >= 2 || id_field(self.id_aa64pfr1, 32) >= 2
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

    /// FEAT_ECV with CNTPOFF_EL2, which works.
    pub fn has_physical_offset(&self) -> bool {
        id_field(self.id_aa64mmfr0, 60) >= 2 && !self.ignores_offset
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

    /// FEAT_S1PIE.
    pub fn has_s1pie(&self) -> bool {
        id_field(self.id_aa64mmfr3, 8) != 0
    }

    /// FEAT_S1POE.
    pub fn has_s1poe(&self) -> bool {
        id_field(self.id_aa64mmfr3, 16) != 0
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
