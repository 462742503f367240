// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control registers of EL2, in the order in which they are set.
//!
//! A feature that is not switched between guests, and that the guest does not need, is shut:
//! [`guest_cpu`](crate::guest_cpu) hides it, and the guest's accesses to its registers are UNDEFINED.

use super::cpu::Cpu;
use super::register::{ALWAYS, CLEAR, Register, register};

/// The table.
pub const TABLE: &[Register] = &[
    register!(
        HCR_EL2,
        S3_4_C1_C1_0,
        ALWAYS,
        |cpu, guest| guest.hcr | traps(cpu),
        "stage 2 and traps on; error records belong to the machine, LORegions and the ID registers of SME and MTE are shut"
    ),
    register!(
        CPTR_EL2,
        S3_4_C1_C1_2,
        ALWAYS,
        |cpu, _| cptr(cpu),
        "FP and SIMD are the guest's; SVE, SME, activity monitors and the trace unit are shut"
    ),
    register!(HSTR_EL2, S3_4_C1_C1_3, ALWAYS, CLEAR, "no AArch32 coprocessor register traps at EL0"),
    register!(
        MDCR_EL2,
        S3_4_C1_C1_1,
        ALWAYS,
        |cpu, _| mdcr(cpu),
        "debug registers are the guest's; the PMU, profiling and trace are shut"
    ),
    register!(
        HCRX_EL2,
        S3_4_C1_C2_2,
        Cpu::has_hcx,
        |cpu, _| hcrx(cpu),
        "the guest finds these features in its ID registers, and uses them without EL2; the others are shut"
    ),
    register!(
        HFGRTR_EL2,
        S3_4_C1_C1_4,
        Cpu::has_fgt,
        |_, _| OPEN_REGISTERS,
        "no register of EL1 traps except those of features that are shut"
    ),
    register!(HFGWTR_EL2, S3_4_C1_C1_5, Cpu::has_fgt, |_, _| OPEN_REGISTERS, "as HFGRTR_EL2"),
    register!(
        HFGITR_EL2,
        S3_4_C1_C1_6,
        Cpu::has_fgt,
        CLEAR,
        "no instruction traps except those of the branch record buffer and of guarded control stacks"
    ),
    register!(
        HDFGRTR_EL2,
        S3_4_C3_C1_4,
        Cpu::has_fgt,
        CLEAR,
        "debug registers are the guest's; the branch record buffer is shut"
    ),
    register!(
        HDFGWTR_EL2,
        S3_4_C3_C1_5,
        Cpu::has_fgt,
        CLEAR,
        "debug registers are the guest's; the branch record buffer is shut"
    ),
    register!(
        HAFGRTR_EL2,
        S3_4_C3_C1_6,
        |cpu| cpu.has_fgt() && cpu.has_amu(),
        CLEAR,
        "activity monitors are shut as a whole, by CPTR_EL2.TAM"
    ),
    register!(
        HFGRTR2_EL2,
        S3_4_C3_C1_2,
        Cpu::has_fgt2,
        CLEAR,
        "shut: PFAR_EL1 has physical addresses, and no guest needs the others"
    ),
    register!(HFGWTR2_EL2, S3_4_C3_C1_3, Cpu::has_fgt2, CLEAR, "as HFGRTR2_EL2"),
    register!(HFGITR2_EL2, S3_4_C3_C1_7, Cpu::has_fgt2, CLEAR, "shut: no guest needs these instructions"),
    register!(HDFGRTR2_EL2, S3_4_C3_C1_0, Cpu::has_fgt2, CLEAR, "shut: PMUs, trace and step registers"),
    register!(HDFGWTR2_EL2, S3_4_C3_C1_1, Cpu::has_fgt2, CLEAR, "as HDFGRTR2_EL2"),
    register!(
        BRBCR_EL2,
        S2_4_C9_C0_0,
        Cpu::has_brbe,
        CLEAR,
        "no branch of EL2 is recorded, and none of EL0 for EL2: the guest could read the records"
    ),
    register!(
        TRFCR_EL2,
        S3_4_C1_C2_1,
        Cpu::has_trace_filter,
        CLEAR,
        "EL2 is not traced, and neither is EL0 on its behalf"
    ),
    register!(PMSCR_EL2, S3_4_C9_C9_0, Cpu::has_spe, CLEAR, "EL2 is not sampled"),
    register!(
        MPAM2_EL2,
        S3_4_C10_C5_0,
        Cpu::has_mpam,
        |cpu, _| mpam2(cpu),
        "EL2 uses the default partition, and the guest cannot choose another one"
    ),
    register!(
        MPAMHCR_EL2,
        S3_4_C10_C4_0,
        |cpu| cpu.has_mpam() && cpu.mpamidr & MPAMIDR_HAS_HCR != 0,
        |_, _| TRAP_MPAMIDR,
        "virtual partitions are off and hidden from the guest"
    ),
    register!(HACDBSBR_EL2, S3_4_C2_C3_4, Cpu::has_hacdbs, CLEAR, "hardware processes no list of dirty pages"),
    register!(
        CNTHCTL_EL2,
        S3_4_C14_C1_0,
        ALWAYS,
        |cpu, _| bits(cpu.has_physical_offset(), PHYSICAL_COUNTER | PHYSICAL_TIMER | PHYSICAL_OFFSET),
        "the guest uses the physical counter and timer with an offset; where there is none, they trap"
    ),
    register!(
        CNTVOFF_EL2,
        S3_4_C14_C0_3,
        ALWAYS,
        |_, guest| guest.counter_offset,
        "the virtual counter is 0 when the guest starts, and the same on all CPUs"
    ),
    register!(
        CNTPOFF_EL2,
        S3_4_C14_C0_6,
        Cpu::has_physical_offset,
        |_, guest| guest.counter_offset,
        "the physical counter is the virtual one"
    ),
    register!(CNTHP_CTL_EL2, S3_4_C14_C2_1, ALWAYS, CLEAR, "EL2's timer is off until `timer` arms it for a vCPU"),
    register!(CNTHV_CTL_EL2, S3_4_C14_C3_1, Cpu::has_vhe, CLEAR, "EL2 does not use this timer"),
    register!(VPIDR_EL2, S3_4_C0_C0_0, ALWAYS, |cpu, _| cpu.midr, "the guest sees the CPU that it runs on"),
    register!(VMPIDR_EL2, S3_4_C0_C0_5, ALWAYS, |cpu, _| cpu.mpidr, "a vCPU has the affinity of its CPU"),
    // ICC_SRE_EL2 comes before ICH_HCR_EL2, which without it is a memory-mapped register.
    register!(
        ICC_SRE_EL2,
        S3_4_C12_C9_5,
        Cpu::has_gic_registers,
        |_, _| 0xf,
        "the GIC's CPU interface is used by system registers, at EL2 and at EL1"
    ),
    register!(
        ICH_HCR_EL2,
        S3_4_C12_C11_0,
        Cpu::has_gic_registers,
        CLEAR,
        "the virtual interface is off until `gic::interface` has cleared it for a vCPU"
    ),
    register!(VTCR_EL2, S3_4_C2_C1_2, ALWAYS, |_, guest| guest.vtcr, "the geometry of the guest's stage-2 tables"),
    register!(VTTBR_EL2, S3_4_C2_C1_0, ALWAYS, |_, guest| guest.vttbr, "the guest's stage-2 tables, and its VMID"),
];

/// Bits of HCR_EL2 that exist only with a feature.
#[must_use]
pub fn traps(cpu: &Cpu) -> u64 {
    // REVIDR_EL1, AIDR_EL1 and SMIDR_EL1.
    const TID1: u64 = 1 << 16;
    const TLOR: u64 = 1 << 35;
    const TERR: u64 = 1 << 36;
    // GMID_EL1.
    const TID5: u64 = 1 << 58;
    bits(cpu.has_lor(), TLOR) | bits(cpu.has_ras(), TERR) | bits(cpu.has_sme(), TID1) | bits(cpu.has_tags(), TID5)
}

fn cptr(cpu: &Cpu) -> u64 {
    /// The RES1 bits, which with SVE and SME are their traps TZ and TSM.
    const TRAP_VECTORS: u64 = 0x33ff;
    const TTA: u64 = 1 << 20;
    const TAM: u64 = 1 << 30;
    TRAP_VECTORS | bits(cpu.has_trace_registers(), TTA) | bits(cpu.has_amu(), TAM)
}

fn mdcr(cpu: &Cpu) -> u64 {
    // E2PB, E2TB and EnSPM stay 0: EL2 owns the buffers, and accesses to them and to system PMUs trap.
    const TPMCR: u64 = 1 << 5;
    const TPM: u64 = 1 << 6;
    const TPMS: u64 = 1 << 14;
    const TTRF: u64 = 1 << 19;
    // HPMD, HCCD: what PMCR_EL0 controls stops at EL2.
    const NOT_AT_EL2: u64 = 1 << 17 | 1 << 23;
    // HPMN: EL2 has no event counter for itself, unless `pmu` takes one.
    let counters = cpu.pmcr >> 11 & 0x1f;
    bits(cpu.has_pmu(), counters | NOT_AT_EL2 | TPMCR | TPM)
        | bits(cpu.has_spe(), TPMS)
        | bits(cpu.has_trace_filter(), TTRF)
}

fn hcrx(cpu: &Cpu) -> u64 {
    // EnAS0, EnALS, EnASR, GCSEn and EnFPM stay 0: what they open is shut. TALLINT exists with FEAT_NMI.
    const TALLINT: u64 = 1 << 6;
    const MSCEN: u64 = 1 << 11;
    const TCR2EN: u64 = 1 << 14;
    const SCTLR2EN: u64 = 1 << 15;
    MSCEN | TCR2EN | SCTLR2EN | bits(cpu.has_nmi(), TALLINT)
}

fn mpam2(cpu: &Cpu) -> u64 {
    const TRAP_MPAM1: u64 = 1 << 48;
    const TRAP_MPAM0: u64 = 1 << 49;
    const TIDR: u64 = 1 << 58;
    const MPAMIDR_HAS_TIDR: u64 = 1 << 58;
    TRAP_MPAM0 | TRAP_MPAM1 | bits(cpu.mpamidr & MPAMIDR_HAS_TIDR != 0, TIDR)
}

/// A bit of a register of FEAT_FGT traps when it is set. A bit of a later feature, whose name begins with n, traps when
/// it is clear. These are the latter, of features that a guest may have: nPIRE0_EL1, nPIR_EL1, nPOR_EL0, nPOR_EL1.
const OPEN_REGISTERS: u64 = 0b1111 << 57;
const MPAMIDR_HAS_HCR: u64 = 1 << 17;
/// MPAMHCR_EL2: reads of MPAMIDR_EL1 trap.
const TRAP_MPAMIDR: u64 = 1 << 31;
/// CNTHCTL_EL2.EL1PCTEN.
const PHYSICAL_COUNTER: u64 = 1 << 0;
/// CNTHCTL_EL2.EL1PCEN.
const PHYSICAL_TIMER: u64 = 1 << 1;
/// CNTHCTL_EL2.ECV: CNTPOFF_EL2 is subtracted.
const PHYSICAL_OFFSET: u64 = 1 << 12;

const fn bits(are_set: bool, bits: u64) -> u64 {
    if are_set { bits } else { 0 }
}
