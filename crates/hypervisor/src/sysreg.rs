// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and writes system registers by name.
//!
//! A name that the assembler may not know is given by its encoding, `S3_4_C1_C2_6`. Reading is safe: none of the
//! registers read here has a side effect. Writing is unsafe: a register can change the meaning of memory.

/// Reads a system register. Use it outside of `unsafe` blocks: it has its own.
#[macro_export]
macro_rules! read_sysreg {
    ($name:ident) => {{
        let value: u64;
        // SAFETY: reading the registers that this crate reads changes nothing.
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", stringify!($name)), out(reg) value, options(nomem, nostack, preserves_flags));
        }
        value
    }};
}

/// Writes a system register; needs an `unsafe` block around it. The compiler moves no memory access across it.
#[macro_export]
macro_rules! write_sysreg {
    ($name:ident, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(concat!("msr ", stringify!($name), ", {}"), in(reg) value, options(nostack, preserves_flags));
    }};
}

/// Stores vector register `n` as element `n` of an array of `u128`; needs an `unsafe` block around it.
#[macro_export]
macro_rules! store_vector {
    ($n:literal, $array:expr) => {{
        let array: *mut u128 = $array;
        core::arch::asm!(
            ".arch_extension fp",
            concat!("str q", $n, ", [{}, #{}]"),
            in(reg) array, const 16 * $n, options(nostack, preserves_flags)
        );
    }};
}

/// Loads vector register `n` from element `n` of an array of `u128`; needs an `unsafe` block around it. The image's own
/// code uses no vector register.
#[macro_export]
macro_rules! load_vector {
    ($n:literal, $array:expr) => {{
        let array: *const u128 = $array;
        core::arch::asm!(
            ".arch_extension fp",
            concat!("ldr q", $n, ", [{}, #{}]"),
            in(reg) array, const 16 * $n, options(nostack, preserves_flags, readonly)
        );
    }};
}

/// One field of an ID register: 4 bits from bit `low`.
#[must_use]
pub const fn id_field(register: u64, low: u32) -> u64 {
    (register >> low) & 0xf
}

/// Waits until this CPU's earlier stores are visible to every CPU of the inner shareable domain.
pub fn dsb_ishst() {
    // SAFETY: a barrier changes nothing.
    unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) };
}

/// Waits until earlier writes to system registers take effect for the following instructions.
pub fn isb() {
    // SAFETY: a barrier changes nothing.
    unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
}
