// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning of a tick of the machine's counter.
//!
//! A guest that goes on has its counter set to the tick at which it was stopped. How far into that tick it is depends on the
//! machine's counter, which a restore finds at any point of a tick. So two restores of one guest, which execute the same
//! instructions, would read counters that differ by one now and then. They read the same ones if each goes on at the
//! beginning of a tick.

use core::arch::asm;

/// Waits for the beginning of a tick, on a machine that counts one in 16 instructions: QEMU with `-icount shift=0`. Any other
/// machine it delays by 350 instructions at most.
///
/// A round of the loop has 17 instructions. So it begins one instruction later in its tick than the round before, and sees
/// the counter one tick further on. The first round that sees it two ticks further on begins at the beginning of a tick.
pub(crate) fn wait() {
    // The first round is short, and one of the 16 that follow finds the beginning. On a machine that counts otherwise the
    // loop has an end.
    const ROUNDS: u64 = 20;
    // SAFETY: reads the counter, and changes the registers that are named, and the flags.
    unsafe {
        asm!(
            "isb",
            "mrs {last}, cntpct_el0",
            "2:",
            "isb",
            "mrs {now}, cntpct_el0",
            "sub {passed}, {now}, {last}",
            "mov {last}, {now}",
            "subs {left}, {left}, #1",
            "ccmp {passed}, #2, #4, ne",
            "nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop", "nop",
            "b.ne 2b",
            last = out(reg) _, now = out(reg) _, passed = out(reg) _, left = inout(reg) ROUNDS => _,
            options(nomem, nostack)
        );
    }
}
