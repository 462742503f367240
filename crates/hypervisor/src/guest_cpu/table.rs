// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ID registers that a guest sees: one table, field by field.
//!
//! `docs/guest-cpu.md` lists the same; a test compares both. A field that is not named here reads as zero, which for
//! every field that the architecture has left free means that there is nothing.

/// An ID register.
pub struct IdRegister {
    /// Its name in the architecture.
    pub name: &'static str,
    /// CRm and op2: the others are op0 3, op1 0, CRn 0 for all.
    pub place: [u64; 2],
    /// Its fields from the lowest bit on.
    pub fields: &'static [Field],
    /// Reads it.
    pub read: fn() -> u64,
}

/// A field of 4 bits.
pub struct Field {
    /// Its name in the architecture.
    pub name: &'static str,
    /// Its lowest bit.
    pub low: u32,
    /// What a guest sees.
    pub rule: Rule,
    /// What the field announces, or why it is hidden.
    pub why: &'static str,
}

/// What a guest sees of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The least of the CPUs' values, but at most this one.
    UpTo(u64),
    /// The same for a field that is signed: 15 is the least value, and stands for nothing.
    SignedUpTo(u64),
    /// The largest of the CPUs' values, but at most this one: the field admits a weakness.
    Weakness(u64),
    /// This value, whatever the CPUs have.
    Hidden(u64),
}

use Rule::{Hidden, SignedUpTo, UpTo, Weakness};

macro_rules! registers {
    ($($name:ident $encoding:ident [$crm:literal, $op2:literal] {
        $($field:ident $low:literal $rule:expr, $why:literal;)*
    })+) => {
        /// The table.
        pub const TABLE: &[IdRegister] = &[$(IdRegister {
            name: stringify!($name),
            place: [$crm, $op2],
            fields: &[$(Field { name: stringify!($field), low: $low, rule: $rule, why: $why },)*],
            read: || crate::read_sysreg!($encoding),
        },)+];
    };
}

registers! {
    ID_AA64PFR0_EL1 S3_0_C0_C4_0 [4, 0] {
        EL0 0 UpTo(1), "AArch64 at EL0; AArch32 is hidden, and an ERET to it does not trap";
        EL1 4 UpTo(1), "AArch64 at EL1";
        EL2 8 Hidden(0), "no nested virtualization";
        EL3 12 Hidden(0), "EL2 answers SMC";
        FP 16 SignedUpTo(1), "FP, with half precision";
        AdvSIMD 20 SignedUpTo(1), "SIMD, with half precision";
        GIC 24 UpTo(1), "system registers of the GIC's CPU interface";
        RAS 28 UpTo(1), "ESB and DISR_EL1; there are no error records";
        SVE 32 Hidden(0), "CPTR_EL2.TZ traps it";
        SEL2 36 Hidden(0), "no Secure state";
        MPAM 40 Hidden(0), "MPAM2_EL2 traps it";
        AMU 44 Hidden(0), "CPTR_EL2.TAM traps it";
        DIT 48 UpTo(1), "data-independent timing";
        RME 52 Hidden(0), "no Realms";
        CSV2 56 UpTo(2), "branch targets of another context are not used; SCXTNUM";
        CSV3 60 UpTo(1), "data of a faulting access is not used";
    }
    ID_AA64PFR1_EL1 S3_0_C0_C4_1 [4, 1] {
        BT 0 UpTo(1), "branch target identification";
        SSBS 4 UpTo(2), "control of speculative store bypassing";
        MTE 8 Hidden(0), "HCR_EL2.ATA is clear: the registers trap, tags cannot be read or written; IRG and LDG do not trap";
        RAS_frac 12 Hidden(0), "RAS beyond the minimum";
        MPAM_frac 16 Hidden(0), "MPAM2_EL2 traps it";
        SME 24 Hidden(0), "CPTR_EL2.TSM traps it; TPIDR2_EL0 and SMPRI_EL1 only with FEAT_FGT";
        RNDR_trap 28 Hidden(0), "a trap to EL3";
        CSV2_frac 32 Hidden(0), "CSV2 says what is needed";
        NMI 36 Hidden(0), "HCRX_EL2.TALLINT traps writes of ALLINT; a read does not trap, and shows the guest's PSTATE";
        MTE_frac 40 Hidden(0), "as MTE";
        GCS 44 Hidden(0), "HCRX_EL2.GCSEn and HFGRTR_EL2 are clear: it traps";
        THE 48 Hidden(0), "HFGRTR_EL2 traps its registers";
        MTEX 52 Hidden(0), "as MTE";
        DF2 56 Hidden(0), "physical SErrors are not the guest's";
        PFAR 60 Hidden(0), "physical addresses; HFGRTR2_EL2 traps it";
    }
    ID_AA64PFR2_EL1 S3_0_C0_C4_2 [4, 2] {}
    ID_AA64ZFR0_EL1 S3_0_C0_C4_4 [4, 4] {}
    ID_AA64SMFR0_EL1 S3_0_C0_C4_5 [4, 5] {}
    ID_AA64FPFR0_EL1 S3_0_C0_C4_7 [4, 7] {}
    ID_AA64DFR0_EL1 S3_0_C0_C5_0 [5, 0] {
        DebugVer 0 UpTo(10), "self-hosted debug, up to Armv8.8";
        TraceVer 4 Hidden(0), "CPTR_EL2.TTA traps it";
        PMUVer 8 Hidden(0), "MDCR_EL2.TPM and TPMCR trap it";
        BRPs 12 UpTo(15), "breakpoints, less one";
        PMSS 16 Hidden(0), "PMU snapshots";
        WRPs 20 UpTo(15), "watchpoints, less one";
        SEBEP 24 Hidden(0), "PMU exceptions";
        CTX_CMPs 28 UpTo(15), "context breakpoints, less one";
        PMSVer 32 Hidden(0), "MDCR_EL2.TPMS and E2PB trap it";
        DoubleLock 36 Hidden(15), "the OS double lock would outlast the guest";
        TraceFilt 40 Hidden(0), "MDCR_EL2.TTRF traps it";
        TraceBuffer 44 Hidden(0), "MDCR_EL2.E2TB traps it";
        MTPMU 48 Hidden(0), "PMUs of several threads";
        BRBE 52 Hidden(0), "HDFGRTR_EL2 and HFGITR_EL2 trap it";
        ExtTrcBuff 56 Hidden(0), "an external trace buffer";
        HPMN0 60 Hidden(0), "a control of EL2";
    }
    ID_AA64DFR1_EL1 S3_0_C0_C5_1 [5, 1] {}
    ID_AA64AFR0_EL1 S3_0_C0_C5_4 [5, 4] {}
    ID_AA64AFR1_EL1 S3_0_C0_C5_5 [5, 5] {}
    ID_AA64ISAR0_EL1 S3_0_C0_C6_0 [6, 0] {
        AES 4 UpTo(2), "AES and PMULL";
        SHA1 8 UpTo(1), "SHA-1";
        SHA2 12 UpTo(2), "SHA-256 and SHA-512";
        CRC32 16 UpTo(1), "CRC32";
        Atomic 20 UpTo(3), "LSE, and LSE128";
        TME 24 Hidden(0), "transactions; HCR_EL2.TME is clear";
        RDM 28 UpTo(1), "SQRDMLAH and SQRDMLSH";
        SHA3 32 UpTo(1), "SHA-3";
        SM3 36 UpTo(1), "SM3";
        SM4 40 UpTo(1), "SM4";
        DP 44 UpTo(1), "dot products";
        FHM 48 UpTo(1), "FMLAL and FMLSL";
        TS 52 UpTo(2), "flag manipulation";
        TLB 56 UpTo(2), "TLBI of the outer domain, and by range";
        RNDR 60 UpTo(1), "random numbers";
    }
    ID_AA64ISAR1_EL1 S3_0_C0_C6_1 [6, 1] {
        DPB 0 UpTo(2), "DC CVAP and DC CVADP";
        APA 4 UpTo(5), "pointer authentication, QARMA5";
        API 8 UpTo(5), "pointer authentication, IMPLEMENTATION DEFINED";
        JSCVT 12 UpTo(1), "FJCVTZS";
        FCMA 16 UpTo(1), "complex numbers";
        LRCPC 20 UpTo(3), "LDAPR, LDAPUR, LDAPP";
        GPA 24 UpTo(1), "generic authentication, QARMA5";
        GPI 28 UpTo(1), "generic authentication, IMPLEMENTATION DEFINED";
        FRINTTS 32 UpTo(1), "FRINT32Z and others";
        SB 36 UpTo(1), "speculation barrier";
        SPECRES 40 UpTo(2), "prediction restriction";
        BF16 44 UpTo(2), "BFloat16";
        DGH 48 UpTo(1), "data gathering hint";
        I8MM 52 UpTo(1), "Int8 matrices";
        XS 56 UpTo(1), "DSB nXS";
        LS64 60 Hidden(0), "HCRX_EL2.EnALS, EnASR and EnAS0 are clear: it traps";
    }
    ID_AA64ISAR2_EL1 S3_0_C0_C6_2 [6, 2] {
        WFxT 0 UpTo(2), "WFET and WFIT";
        RPRES 4 UpTo(1), "reciprocal estimates of 12 bits";
        GPA3 8 UpTo(1), "generic authentication, QARMA3";
        APA3 12 UpTo(5), "pointer authentication, QARMA3";
        MOPS 16 UpTo(1), "memory copy and set; HCRX_EL2.MSCEn is set";
        BC 20 UpTo(1), "BC.cond";
        PAC_frac 24 UpTo(1), "a constant PAC field";
        CLRBHB 28 UpTo(1), "clears the branch history";
        SYSREG_128 32 Hidden(0), "registers of 128 bits";
        SYSINSTR_128 36 Hidden(0), "instructions of 128 bits";
        PRFMSLC 40 Hidden(0), "prefetch to the system's cache";
        RPRFM 48 UpTo(1), "range prefetch";
        CSSC 52 UpTo(1), "common short sequences";
        LUT 56 UpTo(1), "lookup tables";
        ATS1A 60 UpTo(1), "AT S1E1A";
    }
    ID_AA64ISAR3_EL1 S3_0_C0_C6_3 [6, 3] {
        CPA 0 Hidden(0), "checked pointer arithmetic";
        FAMINMAX 4 UpTo(1), "FAMAX and FAMIN";
        TLBIW 8 Hidden(0), "TLBI VMALLWS2E1";
        PACM 12 Hidden(0), "PACM has state in PSTATE";
        LSFE 16 UpTo(1), "atomic FP";
    }
    ID_AA64MMFR0_EL1 S3_0_C0_C7_0 [7, 0] {
        PARange 0 UpTo(6), "physical addresses, up to 52 bits; the device tree says where RAM is";
        ASIDBits 4 UpTo(2), "ASIDs of 16 bits";
        BigEnd 8 UpTo(1), "big-endian data";
        SNSMem 12 Hidden(0), "no Secure state";
        BigEndEL0 16 UpTo(1), "big-endian data at EL0 alone";
        TGran16 20 UpTo(2), "granules of 16 KiB";
        TGran64 24 SignedUpTo(0), "granules of 64 KiB";
        TGran4 28 SignedUpTo(1), "granules of 4 KiB";
        TGran16_2 32 Hidden(0), "stage 2 is EL2's";
        TGran64_2 36 Hidden(0), "stage 2 is EL2's";
        TGran4_2 40 Hidden(0), "stage 2 is EL2's";
        ExS 44 UpTo(1), "exceptions that do not synchronise";
        FGT 56 Hidden(0), "a control of EL2";
        ECV 60 UpTo(1), "counters that synchronise themselves";
    }
    ID_AA64MMFR1_EL1 S3_0_C0_C7_1 [7, 1] {
        HAFDBS 0 UpTo(2), "access flag and dirty state by hardware";
        VMIDBits 4 Hidden(0), "VMIDs are EL2's";
        VH 8 Hidden(0), "no nested virtualization";
        HPDS 12 UpTo(2), "hierarchical permissions off";
        LO 16 Hidden(0), "HCR_EL2.TLOR traps it";
        PAN 20 UpTo(3), "privileged access never";
        SpecSEI 24 Weakness(1), "SErrors of speculative reads";
        XNX 28 Hidden(0), "stage 2 is EL2's";
        TWED 32 UpTo(1), "delayed traps of WFE";
        ETS 36 UpTo(3), "enhanced translation synchronisation";
        HCX 40 Hidden(0), "a control of EL2";
        AFP 44 UpTo(1), "alternate FP";
        nTLBPA 48 UpTo(1), "no caching of translations by physical address";
        TIDCP1 52 UpTo(1), "traps of IMPLEMENTATION DEFINED registers at EL0";
        CMOW 56 UpTo(1), "cache maintenance needs write permission";
        ECBHB 60 UpTo(1), "the branch history of another context is not used";
    }
    ID_AA64MMFR2_EL1 S3_0_C0_C7_2 [7, 2] {
        CnP 0 UpTo(1), "translations shared by CPUs";
        UAO 4 UpTo(1), "user access override";
        LSM 8 UpTo(1), "controls of load and store multiple";
        IESB 12 UpTo(1), "implicit error barriers";
        VARange 16 UpTo(1), "virtual addresses of 52 bits";
        CCIDX 20 UpTo(1), "the wide form of CCSIDR_EL1";
        NV 24 Hidden(0), "no nested virtualization";
        ST 28 UpTo(1), "small translation tables";
        AT 32 UpTo(1), "atomicity of unaligned accesses";
        IDS 36 UpTo(1), "the class of a trapped ID register";
        FWB 40 Hidden(0), "stage 2 is EL2's";
        TTL 48 UpTo(1), "level hints of TLBI";
        BBM 52 UpTo(2), "block sizes change without break-before-make";
        EVT 56 Hidden(0), "a control of EL2";
        E0PD 60 UpTo(1), "one half is no address at EL0";
    }
    ID_AA64MMFR3_EL1 S3_0_C0_C7_3 [7, 3] {
        TCRX 0 UpTo(1), "TCR2_EL1; HCRX_EL2.TCR2En is set";
        SCTLRX 4 UpTo(1), "SCTLR2_EL1; HCRX_EL2.SCTLR2En is set";
        S1PIE 8 UpTo(1), "indirect permissions";
        S2PIE 12 Hidden(0), "stage 2 is EL2's";
        S1POE 16 UpTo(1), "permission overlays";
        S2POE 20 Hidden(0), "stage 2 is EL2's";
        AIE 24 Hidden(0), "MAIR2_EL1 and AMAIR2_EL1 are not switched; HFGRTR_EL2 traps them";
        MEC 28 Hidden(0), "no Realms";
        D128 32 Hidden(0), "HCRX_EL2.D128En is clear";
        D128_2 36 Hidden(0), "stage 2 is EL2's";
        SNERR 40 Hidden(0), "RAS beyond the minimum";
        ANERR 44 Hidden(0), "RAS beyond the minimum";
        SDERR 52 Hidden(0), "RAS beyond the minimum";
        ADERR 56 Hidden(0), "RAS beyond the minimum";
        Spec_FPACC 60 Weakness(1), "speculation past a failed authentication";
    }
    ID_AA64MMFR4_EL1 S3_0_C0_C7_4 [7, 4] {}
}
