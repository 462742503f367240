// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of EL2 that [`el2`](super::el2) does not set, and why each may hold any value while a guest runs.

/// Registers with the same reason.
pub struct Left {
    /// Their names in the architecture.
    pub names: &'static [&'static str],
    /// Why they are not set for a guest.
    pub why: &'static str,
}

/// All of them.
pub const LEFT: &[Left] = &[
    Left {
        names: &["SCTLR_EL2", "TCR_EL2", "MAIR_EL2", "TTBR0_EL2", "VBAR_EL2", "TPIDR_EL2", "SP_EL2"],
        why: "EL2's own regime, vectors and stack: `boot.s` and `el2_mmu` set them before any guest",
    },
    Left {
        names: &["SCTLR2_EL2", "TCR2_EL2", "GCSCR_EL2"],
        why: "EL2's own regime: `boot.s` clears them, where they exist, before its MMU is on",
    },
    Left {
        names: &["PIR_EL2", "PIRE0_EL2", "POR_EL2", "AMAIR_EL2", "GCSPR_EL2"],
        why: "EL2's own regime: without the controls in TCR2_EL2 and GCSCR_EL2 they have no effect, or an \
              IMPLEMENTATION DEFINED one that does not concern a guest",
    },
    Left {
        names: &["TTBR1_EL2", "CONTEXTIDR_EL2", "SCXTNUM_EL2"],
        why: "used only with HCR_EL2.E2H, or only by EL2: EL2 uses none of them",
    },
    Left {
        names: &[
            "ESR_EL2",
            "ELR_EL2",
            "SPSR_EL2",
            "FAR_EL2",
            "HPFAR_EL2",
            "PFAR_EL2",
            "AFSR0_EL2",
            "AFSR1_EL2",
            "TFSR_EL2",
            "ICH_VTR_EL2",
            "ICH_MISR_EL2",
            "ICH_EISR_EL2",
            "ICH_ELRSR_EL2",
            "RVBAR_EL2",
        ],
        why: "syndrome, status and addresses: hardware writes them, and they control nothing",
    },
    Left {
        names: &["ACTLR_EL2", "HACR_EL2"],
        why: "IMPLEMENTATION DEFINED: no value is right for every CPU. What they could open to a guest is IMPLEMENTATION \
              DEFINED itself, and HCR_EL2.TIDCP traps all of that",
    },
    Left {
        names: &["ZCR_EL2", "SMCR_EL2"],
        why: "the vector lengths of SVE and SME, which CPTR_EL2.TZ and TSM trap at EL2 too",
    },
    Left {
        names: &["VSESR_EL2", "VDISR_EL2"],
        why: "the syndrome of a virtual SError, which HCR_EL2.VSE would raise: it is clear, and so is AMO",
    },
    Left { names: &["VNCR_EL2"], why: "the page of nested virtualization, which HCR_EL2.NV2 would use: it is clear" },
    Left {
        names: &["S2PIR_EL2", "S2POR_EL1", "HDBSSBR_EL2", "HDBSSPROD_EL2"],
        why: "used only with VTCR_EL2.S2PIE, S2POE and HDBSS, which are clear",
    },
    Left { names: &["HACDBSCONS_EL2"], why: "the index into a list of dirty pages, which HACDBSBR_EL2 turns off" },
    Left {
        names: &[
            "VSTCR_EL2",
            "VSTTBR_EL2",
            "SDER32_EL2",
            "CNTHPS_CTL_EL2",
            "CNTHPS_CVAL_EL2",
            "CNTHPS_TVAL_EL2",
            "CNTHVS_CTL_EL2",
            "CNTHVS_CVAL_EL2",
            "CNTHVS_TVAL_EL2",
        ],
        why: "of Secure EL2: UNDEFINED in the Non-secure state, which this EL2 is in",
    },
    Left {
        names: &["CNTHP_CVAL_EL2", "CNTHP_TVAL_EL2", "CNTHV_CVAL_EL2", "CNTHV_TVAL_EL2"],
        why: "the time of timers that CNTHP_CTL_EL2 and CNTHV_CTL_EL2 disable; `timer` sets the first with its control",
    },
    Left {
        names: &["ICH_VMCR_EL2", "ICH_LRn_EL2", "ICH_AP0Rn_EL2", "ICH_AP1Rn_EL2"],
        why: "of the GIC's virtual interface: `gic::interface` clears them before ICH_HCR_EL2.En turns it on",
    },
    Left {
        names: &[
            "MPAMVPM0_EL2",
            "MPAMVPM1_EL2",
            "MPAMVPM2_EL2",
            "MPAMVPM3_EL2",
            "MPAMVPM4_EL2",
            "MPAMVPM5_EL2",
            "MPAMVPM6_EL2",
            "MPAMVPM7_EL2",
            "MPAMVPMV_EL2",
        ],
        why: "virtual partitions, which MPAMHCR_EL2 turns off",
    },
    Left {
        names: &["AMEVCNTVOFF0n_EL2", "AMEVCNTVOFF1n_EL2"],
        why: "offsets of activity monitors, which HCR_EL2.AMVOFFEN would apply: it is clear, and the guest cannot read them",
    },
    Left {
        names: &["SMPRIMAP_EL2"],
        why: "the guest's priorities of streaming mode, which HCRX_EL2.SMPME would map: it is clear",
    },
    Left { names: &["SPMACCESSR_EL2"], why: "the system PMUs that EL1 may use: MDCR_EL2.EnSPM disables all of them" },
    Left {
        names: &["DACR32_EL2", "IFSR32_EL2", "FPEXC32_EL2", "DBGVCR32_EL2"],
        why: "registers of an AArch32 EL1, which HCR_EL2.RW excludes",
    },
    Left {
        names: &[
            "MECID_P0_EL2",
            "MECID_A0_EL2",
            "MECID_P1_EL2",
            "MECID_A1_EL2",
            "VMECID_P_EL2",
            "VMECID_A_EL2",
            "MECIDR_EL2",
        ],
        why: "of the Realm state, which this EL2 is not in",
    },
    Left { names: &["RMR_EL2"], why: "a request for a reset, not a setting" },
];

/// The row that has a register; `None` if no row has it. A lower-case n in a row stands for a number.
pub fn row(name: &str) -> Option<&'static Left> {
    LEFT.iter().find(|left| left.names.iter().any(|known| is(name, known)))
}

fn is(name: &str, known: &str) -> bool {
    match known.split_once('n') {
        None => name == known,
        Some((start, end)) => name
            .strip_prefix(start)
            .and_then(|rest| rest.strip_suffix(end))
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())),
    }
}
