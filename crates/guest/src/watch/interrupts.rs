// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interrupts of a vCPU that watches: all are enabled, and its virtual timer's is the only one that may come.
//!
//! Interrupts stay masked: [`look`] finds what is pending, and takes it from the CPU interface.

use core::arch::asm;

use twofold_abi::virt::{GICD_BASE, GICR_BASE, GICR_SIZE, VIRTUAL_TIMER_INTERRUPT};

use crate::vcpus;

/// Why [`look`] failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Failure {
    #[error("interrupt {0}, which nothing of this guest sends")]
    Unexpected(u64),
    #[error("the timer is due, and its interrupt is not pending")]
    Missing,
}

/// Reads a system register.
macro_rules! read {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: the registers that this file reads change nothing, or take an interrupt that it waits for.
        unsafe { asm!("isb", concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register of the interrupt controller or of the virtual timer.
macro_rules! write {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: interrupts are masked, so none is taken.
        unsafe { asm!(concat!("msr ", $name, ", {}"), "isb", in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// Enables all shared interrupts. For the first vCPU, before the others.
pub fn enable_shared() {
    const TYPER: u64 = 0x4;
    const GROUP_1: u32 = 1 << 1;
    store(GICD_BASE, GROUP_1);
    let banks = u64::from(load(GICD_BASE + TYPER) & 0x1f) + 1;
    for bank in 1..banks {
        store(GICD_BASE + GROUP + 4 * bank, u32::MAX);
        store(GICD_BASE + ENABLE + 4 * bank, u32::MAX);
    }
}

/// Enables all interrupts of this vCPU, and begins with its ticks.
pub fn enable_own(vcpu: u64) {
    const WAKER: u64 = 0x14;
    const SGI_BASE: u64 = 0x1_0000;
    let base = GICR_BASE + vcpu * GICR_SIZE;
    store(base + WAKER, 0);
    store(base + SGI_BASE + GROUP, u32::MAX);
    store(base + SGI_BASE + ENABLE, u32::MAX);
    write!("icc_sre_el1", 1);
    write!("icc_pmr_el1", 0xff);
    write!("icc_igrpen1_el1", 1);
    set_timer();
    write!("cntv_ctl_el0", 1);
}

/// Takes the interrupt that is pending, and returns how many ticks that was.
pub fn look() -> Result<u64, Failure> {
    /// ISR_EL1.I.
    const PENDING: u64 = 1 << 7;
    /// CNTV_CTL_EL0.ISTATUS.
    const DUE: u64 = 1 << 2;
    const NONE: u64 = 1023;
    // First the timer: what is due now must be pending after it.
    let is_due = read!("cntv_ctl_el0") & DUE != 0;
    if read!("isr_el1") & PENDING == 0 {
        return if is_due { missing() } else { Ok(0) };
    }
    match read!("icc_iar1_el1") {
        taken if taken == VIRTUAL_TIMER_INTERRUPT.into() => {
            set_timer();
            write!("icc_eoir1_el1", taken);
            Ok(1)
        }
        // It was withdrawn meanwhile.
        NONE => Ok(0),
        taken => Err(Failure::Unexpected(taken)),
    }
}

/// A line that has just risen may take its time on the way to the CPU interface.
#[cold]
fn missing() -> Result<u64, Failure> {
    const PENDING: u64 = 1 << 7;
    let (start, limit) = (vcpus::counter(), 60 * vcpus::frequency());
    while vcpus::counter() - start < limit {
        if read!("isr_el1") & PENDING != 0 {
            return Ok(0);
        }
    }
    Err(Failure::Missing)
}

/// Each millisecond.
fn set_timer() {
    write!("cntv_tval_el0", vcpus::frequency() / 1000);
}

const GROUP: u64 = 0x80;
const ENABLE: u64 = 0x100;

fn load(address: u64) -> u32 {
    let value: u32;
    // SAFETY: a device's register, mapped as device memory; the load reads no Rust object.
    unsafe { asm!("ldr {:w}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

fn store(address: u64, value: u32) {
    // SAFETY: as in `load`; the store writes no Rust object.
    unsafe { asm!("str {:w}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}
