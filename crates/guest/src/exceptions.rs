// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exceptions and panics: one line, then a reset.
//!
//! No function here returns or hangs. An exception or a panic before the line is printed resets at once (`vectors.s`).
//! One exception is a success: the external abort that [`expect_external_abort`] announced.

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::psci;
use crate::uart::println;

global_asm!(include_str!("vectors.s"), report = sym report);

/// Not an address: addresses that can be loaded from have far fewer bits.
const NONE: u64 = u64::MAX;

static EXPECTED: AtomicU64 = AtomicU64::new(NONE);

/// From here on a synchronous external abort on a load from `address` ends the program with success.
pub fn expect_external_abort(address: u64) {
    EXPECTED.store(address, Ordering::Relaxed);
}

extern "C" fn report(vector: u64) -> ! {
    let syndrome = Syndrome::read();
    let kind = ["synchronous", "IRQ", "FIQ", "SError"][vector as usize % 4];
    if kind == "synchronous" && syndrome.is_external_abort_at(EXPECTED.load(Ordering::Relaxed)) {
        println!("external abort at {:#x}", syndrome.far);
        psci::power_off();
    }
    let Syndrome { esr, elr, far } = syndrome;
    println!("guest exception: {kind}, ESR={esr:#x} ELR={elr:#x} FAR={far:#x}");
    psci::reset()
}

struct Syndrome {
    esr: u64,
    elr: u64,
    far: u64,
}

impl Syndrome {
    fn read() -> Self {
        let (esr, elr, far);
        // SAFETY: reading these registers changes nothing.
        unsafe {
            asm!("mrs {}, esr_el1", "mrs {}, elr_el1", "mrs {}, far_el1",
                out(reg) esr, out(reg) elr, out(reg) far, options(nomem, nostack, preserves_flags));
        }
        Self { esr, elr, far }
    }

    /// Whether this is a data abort taken from EL1, synchronous and external, not on a table walk, on a read
    /// from `address`.
    fn is_external_abort_at(&self, address: u64) -> bool {
        const CLASS: u64 = 0x3f << 26;
        const DATA_ABORT_SAME_LEVEL: u64 = 0x25 << 26;
        const FAR_NOT_VALID: u64 = 1 << 10;
        const WRITE: u64 = 1 << 6;
        const STATUS: u64 = 0x3f;
        const SYNCHRONOUS_EXTERNAL: u64 = 0x10;
        self.esr & (CLASS | FAR_NOT_VALID | WRITE | STATUS) == DATA_ABORT_SAME_LEVEL | SYNCHRONOUS_EXTERNAL
            && self.far == address
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // SAFETY: the reports own TPIDR_EL1. A value other than 0 makes a further exception reset.
    let is_nested = unsafe {
        let reporting: u64;
        asm!("mrs {}, tpidr_el1", "msr tpidr_el1, {}", out(reg) reporting, in(reg) 1u64,
            options(nomem, nostack, preserves_flags));
        reporting != 0
    };
    if !is_nested {
        match info.location() {
            Some(location) => println!("guest panic: {location}: {}", info.message()),
            None => println!("guest panic: {}", info.message()),
        }
    }
    psci::reset()
}
