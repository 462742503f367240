// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two ends of every program, by PSCI over HVC: powered off is success, a reset is failure.
//!
//! Whatever was printed is sent before the machine goes away.

use core::arch::asm;

use crate::uart::{self, println};

/// The function id of `SYSTEM_OFF`.
const SYSTEM_OFF: u32 = 0x8400_0008;
/// The function id of `SYSTEM_RESET`.
pub const SYSTEM_RESET: u32 = 0x8400_0009;

/// The program has done what it was asked.
pub fn power_off() -> ! {
    let answer = call(SYSTEM_OFF);
    println!("guest: FAILED: SYSTEM_OFF returned {answer}");
    reset()
}

/// The program has failed and has said why.
pub fn reset() -> ! {
    call(SYSTEM_RESET);
    wait_forever()
}

/// Sleeps until somebody else ends the machine.
pub fn wait_forever() -> ! {
    loop {
        // SAFETY: waiting changes nothing.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) };
    }
}

fn call(function: u32) -> i32 {
    uart::drain();
    let answer: i32;
    // SAFETY: neither function touches memory, and the registers that SMCCC lets a call change are declared.
    unsafe {
        asm!("hvc #0", inout("w0") function => answer, in("x1") 0, in("x2") 0, in("x3") 0,
            clobber_abi("C"), options(nostack));
    }
    answer
}
