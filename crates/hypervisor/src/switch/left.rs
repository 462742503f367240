// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of EL1 and EL0 that the switch does not carry, and why.

/// Registers with the same reason.
pub struct Left {
    /// Their names in the architecture. A lower-case n stands for a number.
    pub names: &'static [&'static str],
    /// Why they are not switched.
    pub why: &'static str,
}

/// All of them.
pub const LEFT: &[Left] = &[
    Left {
        names: &["DAIF", "DIT", "PAN", "UAO", "SSBS", "NZCV", "SPSEL", "CURRENTEL", "TCO", "ALLINT", "PM"],
        why: "PSTATE, which the exit leaves in SPSR_EL2 and `world` switches",
    },
    Left {
        names: &[
            "MIDR_EL1",
            "MPIDR_EL1",
            "REVIDR_EL1",
            "AIDR_EL1",
            "CCSIDR_EL1",
            "CCSIDR2_EL1",
            "CLIDR_EL1",
            "CTR_EL0",
            "DCZID_EL0",
            "ISR_EL1",
            "CNTFRQ_EL0",
            "CNTPCT_EL0",
            "CNTVCT_EL0",
            "CNTPCTSS_EL0",
            "CNTVCTSS_EL0",
            "RNDR",
            "RNDRRS",
            "RVBAR_EL1",
            "RMR_EL1",
        ],
        why: "read-only at EL1: hardware's, or set by VPIDR_EL2, VMPIDR_EL2 and CNTVOFF_EL2",
    },
    Left {
        names: &[
            "ID_AAnPFR0_EL1",
            "ID_AAnPFR1_EL1",
            "ID_AAnPFR2_EL1",
            "ID_AAnDFR0_EL1",
            "ID_AAnDFR1_EL1",
            "ID_AAnISAR0_EL1",
            "ID_AAnISAR1_EL1",
            "ID_AAnISAR2_EL1",
            "ID_AAnISAR3_EL1",
            "ID_AAnMMFR0_EL1",
            "ID_AAnMMFR1_EL1",
            "ID_AAnMMFR2_EL1",
            "ID_AAnMMFR3_EL1",
            "ID_AAnMMFR4_EL1",
            "ID_AAnSMFR0_EL1",
            "ID_AAnZFR0_EL1",
            "ID_AAnFPFR0_EL1",
        ],
        why: "read-only, and HCR_EL2.TID3 traps them: `guest_cpu` answers",
    },
    Left { names: &["CNTP_TVAL_EL0", "CNTV_TVAL_EL0"], why: "a view of CNTP_CVAL_EL0 and CNTV_CVAL_EL0" },
    Left {
        names: &["CNTPS_CTL_EL1", "CNTPS_CVAL_EL1", "CNTPS_TVAL_EL1"],
        why: "the Secure timer: EL1 in the Non-secure state has no access",
    },
    Left {
        names: &[
            "ICC_APnRn_EL1",
            "ICC_ASGI1R_EL1",
            "ICC_BPR0_EL1",
            "ICC_BPR1_EL1",
            "ICC_CTLR_EL1",
            "ICC_DIR_EL1",
            "ICC_EOIR0_EL1",
            "ICC_EOIR1_EL1",
            "ICC_HPPIR0_EL1",
            "ICC_HPPIR1_EL1",
            "ICC_IAR0_EL1",
            "ICC_IAR1_EL1",
            "ICC_IGRPEN0_EL1",
            "ICC_IGRPEN1_EL1",
            "ICC_NMIAR1_EL1",
            "ICC_PMR_EL1",
            "ICC_RPR_EL1",
            "ICC_SGI0R_EL1",
            "ICC_SGI1R_EL1",
        ],
        why: "with HCR_EL2.IMO and FMO an access of the guest reaches the virtual interface, whose state is in \
              ICH_VMCR_EL2, ICH_AP0Rn_EL2, ICH_AP1Rn_EL2 and the list registers; the model of the guest's interrupt \
              controller carries that state (`gic::guest`). SGIs trap",
    },
    Left {
        names: &["SVCR", "SMCR_EL1", "ZCR_EL1", "SMIDR_EL1"],
        why: "SVE and SME are hidden: CPTR_EL2.TZ and TSM trap them, HCR_EL2.TID1 the ID register",
    },
    Left {
        names: &["GCR_EL1", "RGSR_EL1", "TFSR_EL1", "TFSRE0_EL1", "GMID_EL1"],
        why: "allocation tags are hidden: HCR_EL2.ATA is clear, so they trap; HCR_EL2.TID5 traps the ID register",
    },
    Left {
        names: &["GCSCR_EL1", "GCSCRE0_EL1", "GCSPR_EL1", "GCSPR_EL0"],
        why: "guarded control stacks are hidden: HCRX_EL2.GCSEn and HFGRTR_EL2.nGCS_EL0 and 1 are clear, so they trap",
    },
    Left {
        names: &[
            "FPMR",
            "ACCDATA_EL1",
            "PFAR_EL1",
            "S2POR_EL1",
            "MAIR2_EL1",
            "AMAIR2_EL1",
            "RCWMASK_EL1",
            "RCWSMASK_EL1",
        ],
        why: "of hidden features: the bits of HCRX_EL2, HFGRTR_EL2 and HFGRTR2_EL2 that open them are clear, so they trap",
    },
    Left {
        names: &[
            "AMCFGR_EL0",
            "AMCG1IDR_EL0",
            "AMCGCR_EL0",
            "AMCNTENCLR0_EL0",
            "AMCNTENCLR1_EL0",
            "AMCNTENSET0_EL0",
            "AMCNTENSET1_EL0",
            "AMCR_EL0",
            "AMEVCNTR0n_EL0",
            "AMEVCNTR1n_EL0",
            "AMEVTYPER0n_EL0",
            "AMEVTYPER1n_EL0",
            "AMUSERENR_EL0",
        ],
        why: "activity monitors are hidden: CPTR_EL2.TAM traps them",
    },
    Left {
        names: &[
            "PMCR_EL0",
            "PMCNTENSET_EL0",
            "PMCNTENCLR_EL0",
            "PMOVSCLR_EL0",
            "PMOVSSET_EL0",
            "PMSELR_EL0",
            "PMCCNTR_EL0",
            "PMCCFILTR_EL0",
            "PMXEVTYPER_EL0",
            "PMXEVCNTR_EL0",
            "PMUSERENR_EL0",
            "PMINTENSET_EL1",
            "PMINTENCLR_EL1",
            "PMSWINC_EL0",
            "PMCEID0_EL0",
            "PMCEID1_EL0",
            "PMMIR_EL1",
            "PMEVCNTRn_EL0",
            "PMEVTYPERn_EL0",
        ],
        why: "the PMU is hidden: MDCR_EL2.TPM and TPMCR trap it",
    },
    Left { names: &["TRFCR_EL1"], why: "trace is hidden: MDCR_EL2.TTRF traps it" },
    Left {
        names: &["MPAM0_EL1", "MPAM1_EL1", "MPAMSM_EL1", "MPAMIDR_EL1"],
        why: "MPAM is hidden: MPAM2_EL2 and MPAMHCR_EL2 trap it, and CPTR_EL2.TSM what SME adds",
    },
    Left {
        names: &[
            "ERRIDR_EL1",
            "ERRSELR_EL1",
            "ERXADDR_EL1",
            "ERXCTLR_EL1",
            "ERXFR_EL1",
            "ERXMISCn_EL1",
            "ERXSTATUS_EL1",
            "ERXPFGCDN_EL1",
            "ERXPFGCTL_EL1",
            "ERXPFGF_EL1",
        ],
        why: "error records are the machine's: HCR_EL2.TERR traps them",
    },
    Left { names: &["LORC_EL1", "LOREA_EL1", "LORN_EL1", "LORSA_EL1", "LORID_EL1"], why: "HCR_EL2.TLOR traps them" },
    Left {
        names: &[
            "MDCCINT_EL1",
            "MDCCSR_EL0",
            "MDRAR_EL1",
            "OSDLR_EL1",
            "OSDTRRX_EL1",
            "OSDTRTX_EL1",
            "OSECCR_EL1",
            "DBGDTR_EL0",
            "DBGDTRRX_EL0",
            "DBGDTRTX_EL0",
            "DBGPRCR_EL1",
            "DBGCLAIMSET_EL1",
            "DBGCLAIMCLR_EL1",
            "DBGAUTHSTATUS_EL1",
            "OSLSR_EL1",
        ],
        why: "every debug register traps, and `debug` answers: these are the machine's, or a view of OSLAR_EL1",
    },
];

/// The row that has a register; `None` if no row has it.
pub fn row(name: &str) -> Option<&'static Left> {
    LEFT.iter().find(|left| left.names.iter().any(|known| is(name, known)))
}

/// Whether `known`, in which each n may stand for a number, is this name.
fn is(name: &str, known: &str) -> bool {
    if name == known {
        return true;
    }
    let Some((start, end)) = known.split_once('n') else { return false };
    let Some(rest) = name.strip_prefix(start) else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    (1..=digits).any(|used| is(&rest[used..], end))
}
