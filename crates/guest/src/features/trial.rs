// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Executes one instruction, and returns what came of it.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;

/// What came of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Tried {
    /// 0, or the class of the exception plus one.
    exception: u64,
    /// The value of x0 afterwards.
    pub x0: u64,
}

impl Tried {
    /// Whether the instruction was executed.
    pub fn is_executed(&self) -> bool {
        self.exception == 0
    }

    /// Whether the instruction is UNDEFINED: exception class 0, or class 0x18 in the ID space of a CPU with FEAT_IDST.
    pub fn is_undefined(&self) -> bool {
        matches!(self.exception, 1 | 0x19)
    }
}

/// The instruction that reads a system register into x0.
pub const fn read([op0, op1, crn, crm, op2]: [u32; 5]) -> u32 {
    write([op0, op1, crn, crm, op2]) | 1 << 21
}

/// The instruction that writes x0 to a system register.
pub const fn write([op0, op1, crn, crm, op2]: [u32; 5]) -> u32 {
    0xd500_0000 | op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
}

/// Executes the instruction with the operands `x0` and the address of 64 bytes of memory in x1. It may change x0 to x7,
/// vector registers and those bytes. It must not branch.
pub fn execute(instruction: u32, x0: u64) -> Tried {
    execute_with(instruction, x0, SCRATCH.0.get() as u64)
}

/// As [`execute`], with any value in x1. The instruction may change the memory that x1 leads to.
pub fn execute_with(instruction: u32, x0: u64, x1: u64) -> Tried {
    let code = CODE.0.get().cast::<u32>();
    for (place, word) in [instruction, RET].into_iter().enumerate() {
        // SAFETY: one of the two words, which only the one vCPU of this program uses. Each is cleaned to the point of
        // unification, and what the instruction cache had of it is dropped.
        unsafe {
            let place = code.add(place);
            place.write_volatile(word);
            asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) place, options(nostack, preserves_flags));
        }
    }
    // SAFETY: barriers; FP, SIMD, SVE and SME do not trap to EL1; then the trial, which keeps what the program needs.
    unsafe {
        asm!("dsb ish", "isb", "msr cpacr_el1, {}", "isb", in(reg) OPEN, options(nostack, preserves_flags));
        features_trial(code, x0, x1)
    }
}

/// CPACR_EL1.ZEN, FPEN and SMEN: nothing traps to EL1.
const OPEN: u64 = 3 << 16 | 3 << 20 | 3 << 24;
const RET: u32 = 0xd65f_03c0;

#[repr(C, align(64))]
struct Code(UnsafeCell<[u32; 16]>);
#[repr(C, align(64))]
struct Scratch(UnsafeCell<[u8; 64]>);

// SAFETY: only the one vCPU of this program uses it.
unsafe impl Sync for Code {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

static CODE: Code = Code(UnsafeCell::new([0; 16]));
static SCRATCH: Scratch = Scratch(UnsafeCell::new([0; 64]));

unsafe extern "C" {
    fn features_trial(code: *const u32, x0: u64, x1: u64) -> Tried;
}

global_asm!(include_str!("trial.s"));
