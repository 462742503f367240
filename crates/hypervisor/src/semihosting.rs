// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls to the debugger or emulator around the machine (Arm "Semihosting for AArch32 and AArch64").
//!
//! Invariant: HLT is executed only after [`enable`]. If semihosting is not served, HLT is an exception.

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Enables semihosting.
///
/// # Safety
/// Semihosting must be served: QEMU was given `-semihosting-config enable=on`, or a debugger is attached.
pub unsafe fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Whether [`enable`] was called.
#[must_use]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Writes text to the semihosting console (`SYS_WRITE0`), in one piece.
pub fn write(text: &CStr) {
    call(SYS_WRITE0, text.as_ptr().cast());
}

/// Ends the emulator with `status` (`SYS_EXIT_EXTENDED`). Returns only if semihosting is not enabled.
pub fn exit(status: i32) {
    let block = [STOPPED_APPLICATION_EXIT, i64::from(status) as u64];
    call(SYS_EXIT_EXTENDED, block.as_ptr().cast());
}

const SYS_WRITE0: u64 = 0x04;
const SYS_EXIT_EXTENDED: u64 = 0x20;
/// ADP_Stopped_ApplicationExit.
const STOPPED_APPLICATION_EXIT: u64 = 0x20026;

/// Returns `None` if semihosting is not enabled.
fn call(operation: u64, parameter: *const u8) -> Option<u64> {
    if !is_enabled() {
        return None;
    }
    let result;
    // SAFETY: semihosting is enabled, and the operations here only read the memory at `parameter`.
    unsafe { asm!("hlt #0xf000", inout("x0") operation => result, in("x1") parameter, options(nostack, readonly)) };
    Some(result)
}
