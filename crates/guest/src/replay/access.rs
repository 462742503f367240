// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses to the interrupt controller and the devices of QEMU's `virt`.
//!
//! Those of memory are in assembly, because a hypervisor cannot emulate every form of load and store that the compiler
//! may choose.

use core::arch::asm;

use twofold_abi::virt::{GICD_BASE, GICR_BASE, GICR_SIZE};

/// Reads a system register, after all that comes before.
macro_rules! get {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: a register of the interrupt controller or of a timer; interrupts are masked by PSTATE.
        unsafe {
            core::arch::asm!("isb", concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags));
        }
        value
    }};
}
pub(super) use get;

/// Writes a system register, before all that follows.
macro_rules! set {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: as in `get!`.
        unsafe {
            core::arch::asm!("dsb sy", concat!("msr ", $name, ", {}"), "isb", in(reg) value,
                options(nostack, preserves_flags));
        }
    }};
}
pub(super) use set;

pub const CONTROL: u64 = 0x0;
pub const PRIORITY: u64 = 0x400;
pub const CONFIG: u64 = 0xc00;
pub const ROUTER: u64 = 0x6000;
pub const WAKER: u64 = 0x14;

/// The frame with an interrupt's registers: the distributor, or the second one of this vCPU's redistributor.
pub fn frame(intid: u32, vcpu: usize) -> u64 {
    if intid < 32 { redistributor(vcpu) + 0x1_0000 } else { GICD_BASE }
}

pub fn redistributor(vcpu: usize) -> u64 {
    GICR_BASE + vcpu as u64 * GICR_SIZE
}

pub fn load(address: u64) -> u32 {
    let value: u32;
    // SAFETY: a device's register, mapped as device memory; the load reads no Rust object.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

pub fn load_double(address: u64) -> u64 {
    let value: u64;
    // SAFETY: as in `load`.
    unsafe { asm!("ldr {}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

pub fn store(address: u64, value: u32) {
    // SAFETY: as in `load`; the store writes no Rust object.
    unsafe { asm!("str {:w}, [{}]", "dsb sy", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}

pub fn store_byte(address: u64, value: u8) {
    let value = u32::from(value);
    // SAFETY: as in `store`.
    unsafe { asm!("strb {:w}, [{}]", "dsb sy", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}

pub fn store_double(address: u64, value: u64) {
    // SAFETY: as in `store`.
    unsafe { asm!("str {}, [{}]", "dsb sy", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}
