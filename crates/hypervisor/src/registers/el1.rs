// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's own registers that are set when a vCPU starts.
//!
//! A vCPU starts by the rules of PSCI CPU_ON and of the Linux boot protocol: MMU and caches off, no debug exception, no
//! timer. The guest sets any other register that reset leaves UNKNOWN, as on the bare machine. A feature that is shut
//! for the guest (see [`shut`](super::shut)) is also off for EL1, because the guest could not turn it off by itself.

use super::cpu::Cpu;
use super::register::{ALWAYS, CLEAR, Register, register};

/// The table.
pub const TABLE: &[Register] = &[
    register!(SCTLR_EL1, S3_0_C1_C0_0, ALWAYS, |_, _| 0x30d0_0800, "MMU and caches off, little-endian, RES1 bits"),
    register!(SCTLR2_EL1, S3_0_C1_C0_3, Cpu::has_sctlr2, CLEAR, "off for a kernel that does not know the register"),
    register!(TCR2_EL1, S3_0_C2_C0_3, Cpu::has_tcr2, CLEAR, "off for a kernel that does not know the register"),
    register!(
        GCSCR_EL1,
        S3_0_C2_C5_0,
        Cpu::has_gcs,
        CLEAR,
        "no guarded control stack at EL1 until the kernel makes one"
    ),
    register!(
        GCSCRE0_EL1,
        S3_0_C2_C5_2,
        Cpu::has_gcs,
        CLEAR,
        "no guarded control stack at EL0 until the kernel makes one"
    ),
    register!(MDSCR_EL1, S2_0_C0_C2_2, ALWAYS, CLEAR, "no breakpoint, watchpoint or step of an earlier vCPU"),
    register!(CNTV_CTL_EL0, S3_3_C14_C3_1, ALWAYS, CLEAR, "no timer of an earlier vCPU"),
    register!(CNTP_CTL_EL0, S3_3_C14_C2_1, ALWAYS, CLEAR, "no timer of an earlier vCPU"),
    register!(CNTKCTL_EL1, S3_0_C14_C1_0, ALWAYS, CLEAR, "no counter or timer for EL0 until the kernel says so"),
    register!(PMUSERENR_EL0, S3_3_C9_C14_0, Cpu::has_pmu, CLEAR, "no event counter for EL0 until the kernel says so"),
    register!(AMUSERENR_EL0, S3_3_C13_C2_3, Cpu::has_amu, CLEAR, "shut: no activity monitor for EL0"),
    register!(BRBCR_EL1, S2_1_C9_C0_0, Cpu::has_brbe, CLEAR, "shut: no branch is recorded"),
    register!(TRFCR_EL1, S3_0_C1_C2_1, Cpu::has_trace_filter, CLEAR, "shut: nothing is traced"),
    register!(PMSCR_EL1, S3_0_C9_C9_0, Cpu::has_spe, CLEAR, "shut: nothing is sampled"),
    register!(PMBLIMITR_EL1, S3_0_C9_C10_0, Cpu::has_spe, CLEAR, "shut: no buffer for samples, which hardware writes"),
    register!(TRBLIMITR_EL1, S3_0_C9_C11_0, Cpu::has_trbe, CLEAR, "shut: no buffer for trace, which hardware writes"),
    register!(MPAM1_EL1, S3_0_C10_C5_0, Cpu::has_mpam, CLEAR, "shut: EL1 uses the default partition"),
    register!(MPAM0_EL1, S3_0_C10_C5_1, Cpu::has_mpam, CLEAR, "shut: EL0 uses the default partition"),
    register!(LORC_EL1, S3_0_C10_C4_3, Cpu::has_lor, CLEAR, "shut: no LORegion is on"),
];
