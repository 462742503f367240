// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pmu`: stops and reprograms the PMU's counters in every way that a guest can, then touches memory.
//!
//! The figures that EL2 counts must not change by this.

use core::arch::asm;

use crate::memory::Memory;
use crate::touch;
use crate::uart::println;

/// Bytes touched afterwards.
const TOUCHED: u64 = 4 << 20;

/// Stops, resets and reprograms each counter, then touches memory.
pub fn run(memory: &Memory) -> Result<(), touch::Failure> {
    let pmcr: u64;
    // SAFETY: the registers are the PMU's, which counts and does nothing else.
    unsafe {
        asm!(
            "mrs {pmcr}, pmcr_el0",
            "msr pmcntenclr_el0, {all}",
            "msr pmcr_el0, {reset}",
            "msr pmcr_el0, xzr",
            "mov {index}, #31",
            "2:",
            "msr pmselr_el0, {index}",
            "isb",
            "msr pmxevcntr_el0, {all}",
            "msr pmxevtyper_el0, {all}",
            "subs {index}, {index}, #1",
            "b.ge 2b",
            "msr pmcntenclr_el0, {all}",
            "msr pmccntr_el0, {all}",
            "isb",
            pmcr = out(reg) pmcr, index = out(reg) _, all = in(reg) u64::MAX, reset = in(reg) 0b110_u64,
            options(nostack)
        );
    }
    println!("pmu: {} event counters", pmcr >> 11 & 0x1f);
    touch::run(memory, TOUCHED)
}
