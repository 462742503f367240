// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers in which a vCPU keeps secrets: those of EL1 that nothing here uses, the general ones and the vectors.

use core::arch::{asm, naked_asm};

use twofold_abi::canary;

use crate::mmu;
use crate::secret::secret;

/// Writes and reads a system register of EL1 that nothing in this program uses.
macro_rules! register {
    ($name:literal, $bits:expr) => {
        Register {
            name: $name,
            bits: $bits,
            // SAFETY: nothing here uses the register, or the bits of it that this program sets.
            set: |value| unsafe {
                asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags));
            },
            get: || {
                let value: u64;
                // SAFETY: reading the register changes nothing.
                unsafe { asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
                value
            },
        }
    };
}

/// A system register.
pub struct Register {
    pub name: &'static str,
    bits: Bits,
    set: fn(u64),
    pub get: fn() -> u64,
}

/// The bits of a register that get a secret.
enum Bits {
    All,
    /// A register of 32 bits.
    Lower,
    /// MAIR_EL1, of which the program uses the lower bytes.
    Upper,
}

/// How many there are.
pub const COUNT: usize = REGISTERS.len();

pub static REGISTERS: [Register; 25] = [
    register!("tpidr_el0", Bits::All),
    register!("tpidrro_el0", Bits::All),
    register!("sp_el0", Bits::All),
    register!("elr_el1", Bits::All),
    register!("far_el1", Bits::All),
    register!("esr_el1", Bits::Lower),
    register!("ttbr1_el1", Bits::All),
    register!("par_el1", Bits::All),
    register!("contextidr_el1", Bits::Lower),
    register!("cntp_cval_el0", Bits::All),
    register!("mair_el1", Bits::Upper),
    register!("S2_0_C0_C0_4", Bits::All), // DBGBVR0_EL1
    register!("S2_0_C0_C1_4", Bits::All), // DBGBVR1_EL1
    register!("S2_0_C0_C0_6", Bits::All), // DBGWVR0_EL1
    register!("S2_0_C0_C1_6", Bits::All), // DBGWVR1_EL1
    register!("S3_0_C2_C1_0", Bits::All), // APIAKeyLo_EL1
    register!("S3_0_C2_C1_1", Bits::All), // APIAKeyHi_EL1
    register!("S3_0_C2_C1_2", Bits::All), // APIBKeyLo_EL1
    register!("S3_0_C2_C1_3", Bits::All), // APIBKeyHi_EL1
    register!("S3_0_C2_C2_0", Bits::All), // APDAKeyLo_EL1
    register!("S3_0_C2_C2_1", Bits::All), // APDAKeyHi_EL1
    register!("S3_0_C2_C2_2", Bits::All), // APDBKeyLo_EL1
    register!("S3_0_C2_C2_3", Bits::All), // APDBKeyHi_EL1
    register!("S3_0_C2_C3_0", Bits::All), // APGAKeyLo_EL1
    register!("S3_0_C2_C3_1", Bits::All), // APGAKeyHi_EL1
];

/// Gives each register a secret, and returns what it then is: some have fewer bits.
pub fn set(of: u64) -> [u64; COUNT] {
    /// The attributes in use.
    const ATTRIBUTES: u64 = mmu::MAIR & 0xffff;
    core::array::from_fn(|index| {
        let Register { set, get, bits, .. } = &REGISTERS[index];
        set(match bits {
            Bits::All => secret(of + index as u64),
            Bits::Lower => canary::GUEST.into(),
            Bits::Upper => u64::from(canary::GUEST) << 32 | ATTRIBUTES,
        });
        get()
    })
}

/// FP and SIMD do not trap to EL1 from here on.
pub fn enable_vectors() {
    // SAFETY: nothing of this image but [`keep`] and the trials of `hostile` use them.
    unsafe { asm!("msr cpacr_el1, {}", "isb", in(reg) 3u64 << 20, options(nostack, preserves_flags)) };
}

/// Fills x1 to x30 and v0 to v31 with values from `seed`, spins, and returns how many of them changed.
///
/// # Safety
/// FP and SIMD do not trap, and nothing else uses them.
#[unsafe(naked)]
pub unsafe extern "C" fn keep(spins: u64, seed: u64) -> u64 {
    naked_asm!(
        ".arch_extension fp",
        ".arch_extension simd",
        "stp x19, x20, [sp, #-112]!",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "str x1, [sp, #96]",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "add x2, x1, #\\n",
        "dup v\\n\\().2d, x2",
        ".endr",
        ".irp n, 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
        "add x\\n, x1, #(\\n * 64)",
        ".endr",
        "1: subs x0, x0, #1",
        "b.ne 1b",
        // x0 is 0, and counts from here on. x1 is the seed, unless it changed.
        "ldr x29, [sp, #96]",
        "cmp x1, x29",
        "cinc x0, x0, ne",
        ".irp n, 2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,30",
        "add x1, x29, #(\\n * 64)",
        "cmp x\\n, x1",
        "cinc x0, x0, ne",
        ".endr",
        ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "add x1, x29, #\\n",
        "umov x2, v\\n\\().d[0]",
        "cmp x1, x2",
        "cinc x0, x0, ne",
        "umov x2, v\\n\\().d[1]",
        "cmp x1, x2",
        "cinc x0, x0, ne",
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
    )
}
