// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `loops=MILLISECONDS`: counts how many rounds of a loop this guest makes in that time, while others want the CPU too.
//!
//! The program loops before and after the counted time as well, so that guests beside it, whose counters began a little
//! earlier or later, never have the CPU to themselves.

use core::arch::asm;

use crate::uart::println;
use crate::vcpus;

/// Loops, and prints the count.
pub fn run(milliseconds: u64) {
    let unit = vcpus::frequency() / 1000;
    let begin = MARGIN * unit;
    let end = begin + milliseconds * unit;
    spin_until(begin);
    let count = spin_until(end);
    spin_until(end + MARGIN * unit);
    println!("loops: {count}");
}

/// Milliseconds before and after the counted time.
const MARGIN: u64 = 100;

/// Loops until the counter has this value. Returns the number of rounds.
fn spin_until(moment: u64) -> u64 {
    let mut rounds = 0;
    while vcpus::counter() < moment {
        // A look at the counter takes an emulator as long as many instructions.
        // SAFETY: counts a register down.
        unsafe {
            asm!("1:", "subs {0}, {0}, #1", "b.ne 1b", inout(reg) 2000u64 => _, options(nomem, nostack));
        }
        rounds += 1;
    }
    rounds
}
