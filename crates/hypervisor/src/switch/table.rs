// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of a vCPU: one table, from which save, restore, and the state that a migration carries are made.
//!
//! A row is name, encoding, the bits that a state from outside may set, and a reason. Rows of one group exist together;
//! groups of one part are switched together. The order of the parts in a switch is in [`cpu`](super::cpu).
//!
//! The bits: a guest can give most registers any value without EL2, and hardware ignores what is reserved, so a state
//! from outside may have any value there ([`ANY`]). Where EL2 decides the value, or a value reaches beyond the guest (a
//! list register names a physical interrupt), only the bits named are accepted.
//!
//! Invariant: a register that a guest can write, and that does not trap, is a row here, or a row of
//! [`left`](super::left) with the reason. A test compares both with the register list of another crate.

use super::has::{Group, Has};
use crate::primitive::{Step, kept};
use crate::{read_sysreg, write_sysreg};

/// One register.
pub struct Row {
    /// Its name in the architecture.
    pub name: &'static str,
    /// Op0, op1, CRn, CRm and op2, as an instruction holds them: 16 bits.
    pub encoding: u16,
    /// It exists where this group does.
    pub group: Group,
    /// The part of the switch to which it belongs.
    pub part: Part,
    /// The bits that a state from outside may set.
    pub allowed: u64,
    /// Why it is switched, or why it has its place in the order.
    pub why: &'static str,
}

/// The registers' values, in the order of the table.
pub type Registers = [u64; COUNT];

/// The number of rows.
pub const COUNT: usize = TABLE.len();

macro_rules! table {
    ($($part:ident: [$([$group:expr] {
        $($name:ident, $encoding:ident, $allowed:expr, $why:literal;)+
    })+])+) => {
        /// A part of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types, missing_docs, reason = "these are the names in the table")]
        pub enum Part { $($part,)+ }

        /// The place of a register in [`Registers`].
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "these are the architecture's names")]
        pub(super) enum Place { $($($($name,)+)+)+ }

        /// The table.
        pub const TABLE: &[Row] = &[$($($(Row {
            name: stringify!($name),
            encoding: encoding(stringify!($encoding)),
            group: $group,
            part: Part::$part,
            allowed: $allowed,
            why: $why,
        },)+)+)+];

        $(
            /// Saves and restores the registers of this part that the CPU has.
            #[allow(non_snake_case, reason = "values have the names of their registers")]
            pub(super) mod $part {
                use super::*;

                #[allow(dead_code, reason = "hardware changes none of the debug registers")]
                #[inline(always)]
                pub fn save(has: Has, registers: &mut Registers) {
                    $(if has.has($group) {
                        // All are read before any is stored: the compiler stores them in pairs.
                        let places = [$(Place::$name as usize),+];
                        let values = [$(if kept(Step::Save, stringify!($name)) {
                            read_sysreg!($encoding)
                        } else {
                            registers[Place::$name as usize]
                        }),+];
                        registers[places[0]..][..values.len()].copy_from_slice(&values);
                    })+
                }

                /// # Safety
                /// No guest may run on this CPU, and these must be the registers of the one that runs there next.
                #[inline(always)]
                pub unsafe fn restore(has: Has, registers: &Registers) {
                    $(if has.has($group) {
                        // All are loaded, in pairs, before any is written.
                        let [$($encoding),+] = [$(registers[Place::$name as usize]),+];
                        $(if kept(Step::Restore, stringify!($name)) {
                            // SAFETY: the register exists; the value is the caller's responsibility.
                            unsafe { write_sysreg!($encoding, $encoding) };
                        })+
                    })+
                }
            }
        )+
    };
}

table! {
    system: [
        // Stage 1 is off or as the guest left it once SCTLR_EL1, the last of these, is written. No walk of EL1&0 happens
        // at EL2 meanwhile, because that regime is out of context (Arm ARM DDI 0487K.a, D8.2.2).
        [Group::ALWAYS] {
            TCR_EL1, S3_0_C2_C0_2, ANY, "the geometry of stage 1";
            TTBR0_EL1, S3_0_C2_C0_0, ANY, "stage 1 of the lower half";
            TTBR1_EL1, S3_0_C2_C0_1, ANY, "stage 1 of the upper half";
            MAIR_EL1, S3_0_C10_C2_0, ANY, "memory types of stage 1";
            AMAIR_EL1, S3_0_C10_C3_0, ANY, "IMPLEMENTATION DEFINED memory types of stage 1";
            CONTEXTIDR_EL1, S3_0_C13_C0_1, ANY, "identity of the process, for debuggers";
        }
        [Group::TCR2] { TCR2_EL1, S3_0_C2_C0_3, ANY, "extended control of stage 1"; }
        [Group::S1PIE] {
            PIR_EL1, S3_0_C10_C2_3, ANY, "indirect permissions of EL1";
            PIRE0_EL1, S3_0_C10_C2_2, ANY, "indirect permissions of EL0";
        }
        [Group::S1POE] {
            POR_EL1, S3_0_C10_C2_4, ANY, "permission overlays of EL1";
            POR_EL0, S3_3_C10_C2_4, ANY, "permission overlays of EL0";
        }
        [Group::SCTLR2] { SCTLR2_EL1, S3_0_C1_C0_3, ANY, "extended control of EL1"; }
        [Group::ALWAYS] {
            SCTLR_EL1, S3_0_C1_C0_0, ANY, "control of EL1; after the other registers of stage 1";
            ACTLR_EL1, S3_0_C1_C0_1, ANY, "IMPLEMENTATION DEFINED control of EL1";
            CPACR_EL1, S3_0_C1_C0_2, ANY, "the guest's own traps of FP and SIMD";
            VBAR_EL1, S3_0_C12_C0_0, ANY, "the exception vectors";
            ELR_EL1, S3_0_C4_C0_1, ANY, "the exception that EL1 handles: where to return";
            SPSR_EL1, S3_0_C4_C0_0, ANY, "the PSTATE to return to; an illegal one is an exception of the guest";
            ESR_EL1, S3_0_C5_C2_0, ANY, "its syndrome";
            FAR_EL1, S3_0_C6_C0_0, ANY, "its address";
        }
        // In parts, so that the values of one fit into EL2's general registers.
        [Group::ALWAYS] {
            AFSR0_EL1, S3_0_C5_C1_0, ANY, "its IMPLEMENTATION DEFINED status";
            AFSR1_EL1, S3_0_C5_C1_1, ANY, "its IMPLEMENTATION DEFINED status";
            PAR_EL1, S3_0_C7_C4_0, ANY, "the result of the last address translation";
            SP_EL0, S3_0_C4_C1_0, ANY, "stack pointer of EL0";
            SP_EL1, S3_4_C4_C1_0, ANY, "stack pointer of EL1";
            TPIDR_EL0, S3_3_C13_C0_2, ANY, "thread pointer of EL0";
            TPIDRRO_EL0, S3_3_C13_C0_3, ANY, "thread pointer of EL0, written by EL1";
            TPIDR_EL1, S3_0_C13_C0_4, ANY, "thread pointer of EL1";
            CNTKCTL_EL1, S3_0_C14_C1_0, ANY, "access of EL0 to counters and timers";
            CSSELR_EL1, S3_2_C0_C0_0, ANY, "the cache that CCSIDR_EL1 describes";
        }
        [Group::SCXTNUM] {
            SCXTNUM_EL0, S3_3_C13_C0_7, ANY, "software context number of EL0";
            SCXTNUM_EL1, S3_0_C13_C0_7, ANY, "software context number of EL1";
        }
        [Group::PAUTH] {
            APIAKeyLo_EL1, S3_0_C2_C1_0, ANY, "key A for instruction addresses";
            APIAKeyHi_EL1, S3_0_C2_C1_1, ANY, "its upper half";
            APIBKeyLo_EL1, S3_0_C2_C1_2, ANY, "key B for instruction addresses";
            APIBKeyHi_EL1, S3_0_C2_C1_3, ANY, "its upper half";
            APDAKeyLo_EL1, S3_0_C2_C2_0, ANY, "key A for data addresses";
            APDAKeyHi_EL1, S3_0_C2_C2_1, ANY, "its upper half";
            APDBKeyLo_EL1, S3_0_C2_C2_2, ANY, "key B for data addresses";
            APDBKeyHi_EL1, S3_0_C2_C2_3, ANY, "its upper half";
            APGAKeyLo_EL1, S3_0_C2_C3_0, ANY, "the generic key";
            APGAKeyHi_EL1, S3_0_C2_C3_1, ANY, "its upper half";
        }
        [Group::RAS] { DISR_EL1, S3_0_C12_C1_1, ANY, "an SError that the guest's ESB deferred"; }
        [Group::SME] {
            TPIDR2_EL0, S3_3_C13_C0_5, ANY, "SME is hidden, but without FEAT_FGT nothing traps its thread pointer";
            SMPRI_EL1, S3_0_C1_C2_4, ANY, "SME is hidden, but without FEAT_FGT nothing traps its priority";
        }
    ]
    timers: [
        [Group::ALWAYS] {
            CNTV_CVAL_EL0, S3_3_C14_C3_2, ANY, "before the timer's control, with an ISB between";
            CNTP_CVAL_EL0, S3_3_C14_C2_2, ANY, "before the timer's control, with an ISB between";
        }
        [Group::GIC] { ICC_SRE_EL1, S3_0_C12_C12_5, 7, "before the fields of ICH_VMCR_EL2, which depend on it, with an ISB between"; }
    ]
    timer_controls: [
        [Group::ALWAYS] {
            CNTV_CTL_EL0, S3_3_C14_C3_1, TIMER, "the virtual timer; its status is hardware's";
            CNTP_CTL_EL0, S3_3_C14_C2_1, TIMER, "the physical timer; its status is hardware's";
        }
    ]
    debug: [
        [Group::ALWAYS] {
            MDSCR_EL1, S2_0_C0_C2_2, MONITOR, "breakpoints, watchpoints and step of EL1 on or off";
            OSLAR_EL1, S2_0_C1_C0_4, 1, "the OS lock, which OSLSR_EL1 shows";
        }
    ]
    debug_pairs: [
        [Group::breakpoint(0)] {
            DBGBVR0_EL1, S2_0_C0_C0_4, ANY, "the value of a breakpoint";
            DBGBCR0_EL1, S2_0_C0_C0_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(1)] {
            DBGBVR1_EL1, S2_0_C0_C1_4, ANY, "the value of a breakpoint";
            DBGBCR1_EL1, S2_0_C0_C1_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(2)] {
            DBGBVR2_EL1, S2_0_C0_C2_4, ANY, "the value of a breakpoint";
            DBGBCR2_EL1, S2_0_C0_C2_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(3)] {
            DBGBVR3_EL1, S2_0_C0_C3_4, ANY, "the value of a breakpoint";
            DBGBCR3_EL1, S2_0_C0_C3_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(4)] {
            DBGBVR4_EL1, S2_0_C0_C4_4, ANY, "the value of a breakpoint";
            DBGBCR4_EL1, S2_0_C0_C4_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(5)] {
            DBGBVR5_EL1, S2_0_C0_C5_4, ANY, "the value of a breakpoint";
            DBGBCR5_EL1, S2_0_C0_C5_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(6)] {
            DBGBVR6_EL1, S2_0_C0_C6_4, ANY, "the value of a breakpoint";
            DBGBCR6_EL1, S2_0_C0_C6_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(7)] {
            DBGBVR7_EL1, S2_0_C0_C7_4, ANY, "the value of a breakpoint";
            DBGBCR7_EL1, S2_0_C0_C7_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(8)] {
            DBGBVR8_EL1, S2_0_C0_C8_4, ANY, "the value of a breakpoint";
            DBGBCR8_EL1, S2_0_C0_C8_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(9)] {
            DBGBVR9_EL1, S2_0_C0_C9_4, ANY, "the value of a breakpoint";
            DBGBCR9_EL1, S2_0_C0_C9_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(10)] {
            DBGBVR10_EL1, S2_0_C0_C10_4, ANY, "the value of a breakpoint";
            DBGBCR10_EL1, S2_0_C0_C10_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(11)] {
            DBGBVR11_EL1, S2_0_C0_C11_4, ANY, "the value of a breakpoint";
            DBGBCR11_EL1, S2_0_C0_C11_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(12)] {
            DBGBVR12_EL1, S2_0_C0_C12_4, ANY, "the value of a breakpoint";
            DBGBCR12_EL1, S2_0_C0_C12_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(13)] {
            DBGBVR13_EL1, S2_0_C0_C13_4, ANY, "the value of a breakpoint";
            DBGBCR13_EL1, S2_0_C0_C13_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(14)] {
            DBGBVR14_EL1, S2_0_C0_C14_4, ANY, "the value of a breakpoint";
            DBGBCR14_EL1, S2_0_C0_C14_5, BREAKPOINT, "its control";
        }
        [Group::breakpoint(15)] {
            DBGBVR15_EL1, S2_0_C0_C15_4, ANY, "the value of a breakpoint";
            DBGBCR15_EL1, S2_0_C0_C15_5, BREAKPOINT, "its control";
        }
        [Group::watchpoint(0)] {
            DBGWVR0_EL1, S2_0_C0_C0_6, ANY, "the address of a watchpoint";
            DBGWCR0_EL1, S2_0_C0_C0_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(1)] {
            DBGWVR1_EL1, S2_0_C0_C1_6, ANY, "the address of a watchpoint";
            DBGWCR1_EL1, S2_0_C0_C1_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(2)] {
            DBGWVR2_EL1, S2_0_C0_C2_6, ANY, "the address of a watchpoint";
            DBGWCR2_EL1, S2_0_C0_C2_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(3)] {
            DBGWVR3_EL1, S2_0_C0_C3_6, ANY, "the address of a watchpoint";
            DBGWCR3_EL1, S2_0_C0_C3_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(4)] {
            DBGWVR4_EL1, S2_0_C0_C4_6, ANY, "the address of a watchpoint";
            DBGWCR4_EL1, S2_0_C0_C4_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(5)] {
            DBGWVR5_EL1, S2_0_C0_C5_6, ANY, "the address of a watchpoint";
            DBGWCR5_EL1, S2_0_C0_C5_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(6)] {
            DBGWVR6_EL1, S2_0_C0_C6_6, ANY, "the address of a watchpoint";
            DBGWCR6_EL1, S2_0_C0_C6_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(7)] {
            DBGWVR7_EL1, S2_0_C0_C7_6, ANY, "the address of a watchpoint";
            DBGWCR7_EL1, S2_0_C0_C7_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(8)] {
            DBGWVR8_EL1, S2_0_C0_C8_6, ANY, "the address of a watchpoint";
            DBGWCR8_EL1, S2_0_C0_C8_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(9)] {
            DBGWVR9_EL1, S2_0_C0_C9_6, ANY, "the address of a watchpoint";
            DBGWCR9_EL1, S2_0_C0_C9_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(10)] {
            DBGWVR10_EL1, S2_0_C0_C10_6, ANY, "the address of a watchpoint";
            DBGWCR10_EL1, S2_0_C0_C10_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(11)] {
            DBGWVR11_EL1, S2_0_C0_C11_6, ANY, "the address of a watchpoint";
            DBGWCR11_EL1, S2_0_C0_C11_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(12)] {
            DBGWVR12_EL1, S2_0_C0_C12_6, ANY, "the address of a watchpoint";
            DBGWCR12_EL1, S2_0_C0_C12_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(13)] {
            DBGWVR13_EL1, S2_0_C0_C13_6, ANY, "the address of a watchpoint";
            DBGWCR13_EL1, S2_0_C0_C13_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(14)] {
            DBGWVR14_EL1, S2_0_C0_C14_6, ANY, "the address of a watchpoint";
            DBGWCR14_EL1, S2_0_C0_C14_7, WATCHPOINT, "its control";
        }
        [Group::watchpoint(15)] {
            DBGWVR15_EL1, S2_0_C0_C15_6, ANY, "the address of a watchpoint";
            DBGWCR15_EL1, S2_0_C0_C15_7, WATCHPOINT, "its control";
        }
    ]
    floating_point: [
        [Group::ALWAYS] {
            FPCR, S3_3_C4_C4_0, ANY, "control of FP and SIMD";
            FPSR, S3_3_C4_C4_1, ANY, "status of FP and SIMD";
        }
    ]
}

/// All bits.
pub const ANY: u64 = u64::MAX;
/// ENABLE and IMASK, not ISTATUS.
const TIMER: u64 = 0b11;
/// SS, TDCC, KDE and MDE. Not HDE: an external debugger's.
const MONITOR: u64 = 1 | 1 << 12 | 1 << 13 | 1 << 15;
/// E, PMC, BAS, HMC, SSC, LBN and BT.
const BREAKPOINT: u64 = 0xff_e1e7;
/// E, PAC, LSC, BAS, HMC, SSC, LBN, WT and MASK.
const WATCHPOINT: u64 = 0x1f1f_ffff;

/// The place of the row with this encoding.
pub fn find(encoding: u16) -> Option<usize> {
    TABLE.iter().position(|row| row.encoding == encoding)
}

/// Reads `S3_0_C13_C0_4` as 16 bits: op0 in the upper two, then op1, CRn, CRm and op2.
pub const fn encoding(text: &str) -> u16 {
    const WIDTHS: [u32; 5] = [2, 3, 4, 4, 3];
    // The first byte is the S.
    let (bytes, mut at) = (text.as_bytes(), 1);
    let (mut all, mut field, mut number) = (0, 0, 0);
    while at <= bytes.len() {
        if at < bytes.len() && bytes[at].is_ascii_digit() {
            number = number * 10 + (bytes[at] - b'0') as u16;
        } else if at == bytes.len() || bytes[at] == b'_' {
            all = all << WIDTHS[field] | number;
            (field, number) = (field + 1, 0);
        }
        at += 1;
    }
    assert!(field == WIDTHS.len(), "an encoding has five fields");
    all
}
