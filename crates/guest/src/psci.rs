// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two ends of every program, by PSCI over HVC: power-off is success, a reset is failure.
//!
//! All printed text is sent before the machine ends.

use core::arch::asm;

use crate::uart::{self, println};

/// The function id of `PSCI_VERSION`.
pub const VERSION: u32 = 0x8400_0000;
/// The function id of `CPU_OFF`.
pub const CPU_OFF: u32 = 0x8400_0002;
/// The function id of `CPU_ON` with 32-bit arguments.
pub const CPU_ON_32: u32 = 0x8400_0003;
/// The function id of `CPU_ON` with 64-bit arguments.
pub const CPU_ON_64: u32 = 0xc400_0003;
/// The function id of `AFFINITY_INFO` with 64-bit arguments.
const AFFINITY_INFO: u32 = 0xc400_0004;
/// The function id of `SYSTEM_OFF`.
pub const SYSTEM_OFF: u32 = 0x8400_0008;
/// The function id of `SYSTEM_RESET`.
pub const SYSTEM_RESET: u32 = 0x8400_0009;
/// The function id of `CPU_SUSPEND` with 32-bit arguments.
pub const CPU_SUSPEND_32: u32 = 0x8400_0001;
/// The function id of `CPU_SUSPEND` with 64-bit arguments.
pub const CPU_SUSPEND_64: u32 = 0xc400_0001;
/// The function id of `SYSTEM_RESET2` with 32-bit arguments.
pub const SYSTEM_RESET2_32: u32 = 0x8400_0012;
/// The function id of `SYSTEM_RESET2` with 64-bit arguments.
pub const SYSTEM_RESET2_64: u32 = 0xc400_0012;

/// Ends the program with success.
pub fn power_off() -> ! {
    let answer = call(SYSTEM_OFF);
    println!("guest: FAILED: SYSTEM_OFF returned {answer}");
    reset()
}

/// Ends the program with failure, after it has printed why.
pub fn reset() -> ! {
    call(SYSTEM_RESET);
    wait_forever()
}

/// Asks for a warm reset: RAM keeps its content, except where the images are. Returns if that is refused.
pub fn warm_reset() -> i64 {
    const WARM: u64 = 0;
    uart::drain();
    call_with(SYSTEM_RESET2_64, [WARM, 0, 0])
}

/// Sleeps until another vCPU ends the machine.
pub fn wait_forever() -> ! {
    loop {
        sleep();
    }
}

/// Sleeps until an event wakes the vCPU.
pub fn sleep() {
    // SAFETY: waiting changes nothing.
    unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) };
}

/// Waits for an interrupt, by CPU_SUSPEND.
pub fn suspend() {
    call_with(CPU_SUSPEND_64, [0; 3]);
}

/// The version of PSCI.
pub fn version() -> i64 {
    call_with(VERSION, [0; 3])
}

/// Starts a vCPU at `entry` with `argument` in x0. Returns 0, or an error of PSCI.
pub fn cpu_on(affinity: u64, entry: u64, argument: u64) -> i64 {
    call_with(CPU_ON_64, [affinity, entry, argument])
}

/// Whether a vCPU is off.
pub fn is_off(affinity: u64) -> bool {
    const OFF: i64 = 1;
    call_with(AFFINITY_INFO, [affinity, 0, 0]) == OFF
}

fn call(function: u32) -> i32 {
    uart::drain();
    call_with(function, [0; 3]) as i32
}

/// Makes a call; returns x0.
pub fn call_with(function: u32, [a, b, c]: [u64; 3]) -> i64 {
    let answer: i64;
    // SAFETY: none of these functions touches memory that Rust knows of; a vCPU that one of them starts has its own
    // memory. The registers that SMCCC lets a call change are declared.
    unsafe {
        asm!("hvc #0", inout("x0") u64::from(function) => answer, inout("x1") a => _, inout("x2") b => _,
            inout("x3") c => _, clobber_abi("C"), options(nostack));
    }
    answer
}
