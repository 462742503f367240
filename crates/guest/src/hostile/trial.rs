// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One instruction with all registers known before it, and all kept after it.
//!
//! The instruction is in memory, with a RET. If it is an exception, the vectors of this file step over it; an exception
//! of any other instruction goes to those of the image.

use core::arch::{asm, global_asm, naked_asm};

use crate::secret::is_foreign;

/// Each register after an instruction.
#[repr(C, align(16))]
pub struct Registers {
    general: [u64; 30],
    /// ESR_EL1 if the instruction was an exception, or else its address.
    syndrome: u64,
    _unused: u64,
    vectors: [[u64; 2]; 32],
}

/// What an instruction must not do.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Breach {
    #[error("x{number} holds {word:#x}, which is another owner's")]
    General { number: usize, word: u64 },
    #[error("v{number} holds {word:#x}, which is another owner's")]
    Vector { number: usize, word: u64 },
    #[error("x{number} changed to {word:#x}")]
    Changed { number: usize, word: u64 },
    #[error("v{number} changed to {word:#x}")]
    ChangedVector { number: usize, word: u64 },
}

impl Registers {
    pub const fn new() -> Self {
        Self { general: [0; 30], syndrome: 0, _unused: 0, vectors: [[0; 2]; 32] }
    }

    /// Executes the instruction at `code` with these values in x0 to x3.
    ///
    /// # Safety
    /// An instruction and a RET are there. It stores to no memory of Rust's, and leaves the stack pointer as it is. The
    /// vectors of [`set_vectors`] are in use.
    pub unsafe fn execute(&mut self, code: *const u32, arguments: &[u64; 4]) {
        // SAFETY: by this function's contract.
        unsafe { trial(code, arguments, self) };
    }

    /// Whether the instruction was an exception.
    pub fn is_exception(&self, code: *const u32) -> bool {
        self.syndrome != code.addr() as u64
    }

    /// Looks at all registers. The instruction may have changed x0 to x3, and v0.
    pub fn check(&self) -> Result<(), Breach> {
        for (number, word) in self.general.into_iter().enumerate() {
            if is_foreign(word) {
                return Err(Breach::General { number, word });
            }
            // x29 has the instruction's address.
            if (4..29).contains(&number) && word != FILL + number as u64 {
                return Err(Breach::Changed { number, word });
            }
        }
        for (number, words) in self.vectors.into_iter().enumerate() {
            if let Some(word) = words.into_iter().find(|word| is_foreign(*word)) {
                return Err(Breach::Vector { number, word });
            }
            if let Some(word) = words.into_iter().find(|word| number != 0 && *word != FILL + 4) {
                return Err(Breach::ChangedVector { number, word });
            }
        }
        Ok(())
    }
}

/// Exceptions come to this file's vectors from here on. FP and SIMD do not trap.
pub fn set_vectors() {
    // SAFETY: the vectors hand on what is not for them. Nothing else in this program uses the vector registers.
    unsafe {
        asm!("adrp {0}, hostile_vectors", "add {0}, {0}, :lo12:hostile_vectors", "msr vbar_el1, {0}",
            "msr cpacr_el1, {1}", "isb", out(reg) _, in(reg) 3u64 << 20, options(nostack, preserves_flags));
    }
}

/// What the other registers hold: this and their number.
const FILL: u64 = 0x4100;

#[unsafe(naked)]
unsafe extern "C" fn trial(code: *const u32, arguments: *const [u64; 4], after: *mut Registers) {
    naked_asm!(
        ".arch_extension fp",
        ".arch_extension simd",
        "stp x19, x20, [sp, #-112]!",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "str x2, [sp, #96]",
        "mov x29, x0",
        "msr sp_el0, x0",
        ".irp n, 4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28",
        "mov x\\n, #({fill} + \\n)",
        ".endr",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "dup v\\n\\().2d, x4",
        ".endr",
        "ldp x2, x3, [x1, #16]",
        "ldp x0, x1, [x1]",
        "blr x29",
        "ldr x30, [sp, #96]",
        "stp x0, x1, [x30]",
        "stp x2, x3, [x30, #16]",
        "stp x4, x5, [x30, #32]",
        "stp x6, x7, [x30, #48]",
        "stp x8, x9, [x30, #64]",
        "stp x10, x11, [x30, #80]",
        "stp x12, x13, [x30, #96]",
        "stp x14, x15, [x30, #112]",
        "stp x16, x17, [x30, #128]",
        "stp x18, x19, [x30, #144]",
        "stp x20, x21, [x30, #160]",
        "stp x22, x23, [x30, #176]",
        "stp x24, x25, [x30, #192]",
        "stp x26, x27, [x30, #208]",
        "stp x28, x29, [x30, #224]",
        "mrs x0, sp_el0",
        "str x0, [x30, #240]",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "str q\\n, [x30, #(256 + 16 * \\n)]",
        ".endr",
        "ldp x29, x30, [sp, #80]",
        "ldp x27, x28, [sp, #64]",
        "ldp x25, x26, [sp, #48]",
        "ldp x23, x24, [sp, #32]",
        "ldp x21, x22, [sp, #16]",
        "ldp x19, x20, [sp], #112",
        "ret",
        ".arch_extension nosimd",
        ".arch_extension nofp",
        fill = const FILL,
    )
}

global_asm!(
    ".pushsection .text.hostile, \"ax\"",
    ".balign 2048",
    "hostile_vectors:",
    ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    ".balign 128",
    ".if \\index == 4",
    "stp x0, x1, [sp, #-16]!",
    "mrs x0, elr_el1",
    "mrs x1, sp_el0",
    "cmp x0, x1",
    "b.ne 1f",
    "add x0, x0, #4",
    "msr elr_el1, x0",
    "mrs x0, esr_el1",
    "msr sp_el0, x0",
    "ldp x0, x1, [sp], #16",
    "eret",
    "1:",
    ".endif",
    "b vectors + 128 * \\index",
    ".endr",
    ".popsection",
);
