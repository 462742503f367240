// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that fills every register it can write with its own values, and checks and changes them at each turn.
//!
//! Its programs are generated here, an instruction sequence for each register. A word of a vCPU's data page holds the
//! value that a register must have, the next word the bits that hardware keeps of it (found by the program `probe`), the
//! third the bits that must always be set. A register that differs ends the turn with its number.
//!
//! Invariant: a program leaves the guest able to run: the MMU and interrupts stay off, and FP stays on.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use twofold_hypervisor::switch::Has;
use twofold_hypervisor::switch::table::{ANY, Part, TABLE, encoding};

/// A register of the guest.
pub struct Canary {
    /// Its name.
    pub name: String,
    /// Its encoding in the state of a vCPU; `None` if the state has it elsewhere.
    pub encoding: Option<u16>,
    /// Whether it is a debug register, which traps.
    pub is_debug: bool,
    /// Reads it into x2.
    read: Vec<u32>,
    /// Writes x1 to it.
    write: u32,
    /// The bits that may be changed.
    mask: u64,
    /// The bits that must be set.
    fixed: u64,
}

/// What a program does with each register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Finds the bits that hardware keeps.
    Probe,
    /// Writes a value.
    Fill,
    /// Checks the value, and writes another one.
    CheckAndChange,
}

/// Bytes of a vCPU's data for each register.
pub const STRIDE: u64 = 24;
/// HVC's number at the end of a program, and where a register differs.
pub const DONE: u64 = 0;
pub const DIFFERS: u64 = 1;

/// The registers that a guest on a CPU with `has` can write.
pub fn canaries(has: Has) -> Vec<Canary> {
    let mut all = Vec::new();
    for row in TABLE.iter().filter(|row| has.has(row.group)) {
        let (name, number, allowed) = (row.name, row.encoding, row.allowed);
        let (mask, fixed) = match (row.part, name) {
            (_, "ICC_SRE_EL1" | "SP_EL1" | "OSLAR_EL1") => continue,
            // nTWE, UCI, UCT, I, C: with the MMU off they change nothing for this program.
            (_, "SCTLR_EL1") => (1 << 26 | 1 << 18 | 1 << 15 | 1 << 12 | 1 << 2, 0x30d0_0800),
            (_, "CPACR_EL1") => (1 << 28, 3 << 20),
            (_, "CNTKCTL_EL1") => (0x3ff, 0),
            // Masked, because nothing here answers a timer's interrupt.
            (Part::timer_controls, _) => (1, 2),
            // No trap, no narrow vectors: only how results are rounded.
            (_, "FPCR") => (0x07c8_0000, 0),
            (_, "MDSCR_EL1") => (1 << 15 | 1 << 13 | 1 << 12, 0),
            // Disabled.
            (Part::debug_pairs, _) if allowed != ANY => (allowed & !1, 0),
            (Part::debug_pairs, _) => (ANY << 2, 0),
            _ => (allowed, 0),
        };
        let is_debug = matches!(row.part, Part::debug | Part::debug_pairs);
        all.push(Canary { encoding: Some(number), is_debug, ..system(name, number, mask, fixed) });
    }
    let mut add = |name: String, read: &[u32], write: u32| {
        let read = read.to_owned();
        all.push(Canary { name, encoding: None, is_debug: false, read, write, mask: ANY, fixed: 0 });
    };
    add("SP_EL1".to_owned(), &[ADD_X2_SP], ADD_SP_X1);
    for n in 21..=30 {
        add(format!("x{n}"), &[MOV | n << 16 | 2], MOV | 1 << 16 | n);
    }
    for n in 0..32 {
        for (half, index) in [("lower", 0x8), ("upper", 0x18)] {
            add(format!("V{n}, {half} half"), &[UMOV | index << 16 | n << 5 | 2], INS | index << 16 | 1 << 5 | n);
        }
    }
    let lock = Canary {
        encoding: Some(encoding("S2_0_C1_C0_4")),
        is_debug: true,
        read: [mrs(encoding("S2_0_C1_C1_4")), LSR_X2_BY_1].to_vec(),
        ..system("OSLAR_EL1", encoding("S2_0_C1_C0_4"), 1, 0)
    };
    all.push(lock);
    // The guest's view of ICH_VMCR_EL2 and of the active priorities.
    for (name, text, mask, fixed) in [
        ("ICC_PMR_EL1", "S3_0_C4_C6_0", 0xff, 0),
        ("ICC_BPR0_EL1", "S3_0_C12_C8_3", 3, 4),
        ("ICC_BPR1_EL1", "S3_0_C12_C12_3", 3, 4),
        ("ICC_IGRPEN0_EL1", "S3_0_C12_C12_6", 1, 0),
        ("ICC_IGRPEN1_EL1", "S3_0_C12_C12_7", 1, 0),
        ("ICC_CTLR_EL1", "S3_0_C12_C12_4", 2, 0),
        ("ICC_AP0R0_EL1", "S3_0_C12_C8_4", 0xffff_ffff, 0),
        ("ICC_AP1R0_EL1", "S3_0_C12_C9_0", 0xffff_ffff, 0),
    ] {
        all.push(system(name, encoding(text), mask, fixed));
    }
    all
}

fn system(name: &str, number: u16, mask: u64, fixed: u64) -> Canary {
    Canary {
        name: name.to_owned(),
        encoding: None,
        is_debug: false,
        read: [mrs(number)].to_vec(),
        write: MSR | u32::from(number) << 5 | 1,
        mask,
        fixed,
    }
}

impl Canary {
    /// The initial words of its data: a value, and the two masks.
    pub fn data(&self, seed: u64) -> [u64; 3] {
        [seed, self.mask, self.fixed]
    }
}

/// Generates a program for these registers, each with its number. x19 points to the data, x20 is added to each value.
pub fn program<'a>(what: Program, canaries: impl Iterator<Item = (usize, &'a Canary)>) -> Vec<u32> {
    let mut code = Vec::new();
    for (number, canary) in canaries {
        let at = number as u32 * (STRIDE / 8) as u32;
        let [value, mask, fixed] = [at, at + 1, at + 2];
        code.push(ldr(3, mask));
        code.push(ldr(4, fixed));
        match what {
            Program::Probe => {
                // The bits that read as one when written as one, and not when written as zero.
                code.extend([ORR | 4 << 16 | 3 << 5 | 1, canary.write]);
                code.extend(&canary.read);
                code.extend([AND | 3 << 16 | 2 << 5 | 5, MOV | 4 << 16 | 1, canary.write]);
                code.extend(&canary.read);
                code.extend([BIC | 2 << 16 | 5 << 5 | 3, str(3, mask)]);
            }
            Program::Fill | Program::CheckAndChange => {
                code.push(ldr(1, value));
                if what == Program::CheckAndChange {
                    code.extend(&canary.read);
                    code.extend([AND | 3 << 16 | 2 << 5 | 2, CMP | 2 << 16 | 1 << 5, B_EQ | 3 << 5]);
                    code.extend([MOVZ | (number as u32) << 5, HVC | (DIFFERS as u32) << 5]);
                }
                code.extend([ROR_X1_BY_11, ADD | 20 << 16 | 1 << 5 | 1, AND | 3 << 16 | 1 << 5 | 1, str(1, value)]);
                code.extend([ORR | 4 << 16 | 1 << 5 | 1, canary.write]);
            }
        }
    }
    code.push(HVC | (DONE as u32) << 5);
    code
}

// Instructions; operands are added by their places: Rm from bit 16, Rn from bit 5, Rd from bit 0.
const MSR: u32 = 0xd500_0000;
const AND: u32 = 0x8a00_0000;
const BIC: u32 = 0x8a20_0000;
const ORR: u32 = 0xaa00_0000;
const ADD: u32 = 0x8b00_0000;
const CMP: u32 = 0xeb00_001f;
const MOV: u32 = 0xaa00_03e0;
const MOVZ: u32 = 0xd280_0000;
const HVC: u32 = 0xd400_0002;
const B_EQ: u32 = 0x5400_0000;
const ROR_X1_BY_11: u32 = 0x93c1_2c21;
const LSR_X2_BY_1: u32 = 0xd341_fc42;
const ADD_X2_SP: u32 = 0x9100_03e2;
const ADD_SP_X1: u32 = 0x9100_003f;
const UMOV: u32 = 0x4e00_3c00;
const INS: u32 = 0x4e00_1c00;

/// MRS into x2.
fn mrs(number: u16) -> u32 {
    MSR | 1 << 21 | u32::from(number) << 5 | 2
}

/// Loads the data's word `word`.
fn ldr(register: u32, word: u32) -> u32 {
    0xf940_0000 | word << 10 | 19 << 5 | register
}

/// Stores the data's word `word`.
fn str(register: u32, word: u32) -> u32 {
    0xf900_0000 | word << 10 | 19 << 5 | register
}
