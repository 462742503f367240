// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `pmu`: tries to stop and reprogram the PMU's counters in every way that a guest can, then touches memory.
//!
//! The PMU is hidden: each access is UNDEFINED, and the figures that EL2 counts must not change by it.

use crate::features::trial::{execute, read, write};
use crate::memory::Memory;
use crate::touch;
use crate::uart::println;

/// Bytes touched afterwards.
const TOUCHED: u64 = 4 << 20;

/// PMCR_EL0, PMCNTENSET_EL0, PMCNTENCLR_EL0, PMOVSCLR_EL0, PMSWINC_EL0, PMSELR_EL0, PMCCNTR_EL0, PMXEVTYPER_EL0,
/// PMXEVCNTR_EL0, PMUSERENR_EL0, PMOVSSET_EL0, PMINTENSET_EL1, PMINTENCLR_EL1.
const REGISTERS: [[u32; 5]; 13] = [
    [3, 3, 9, 12, 0],
    [3, 3, 9, 12, 1],
    [3, 3, 9, 12, 2],
    [3, 3, 9, 12, 3],
    [3, 3, 9, 12, 4],
    [3, 3, 9, 12, 5],
    [3, 3, 9, 13, 0],
    [3, 3, 9, 13, 1],
    [3, 3, 9, 13, 2],
    [3, 3, 9, 14, 0],
    [3, 3, 9, 14, 3],
    [3, 0, 9, 14, 1],
    [3, 0, 9, 14, 2],
];

/// Tries to stop, reset and reprogram each counter, then touches memory.
pub fn run(memory: &Memory) -> Result<(), touch::Failure> {
    let counters = (0..31).flat_map(|n| [[3, 3, 14, 8 + n / 8, n % 8], [3, 3, 14, 12 + n / 8, n % 8]]);
    let mut executed = 0;
    for register in REGISTERS.into_iter().chain(counters) {
        let tried = [execute(read(register), 0), execute(write(register), 0b110), execute(write(register), u64::MAX)];
        executed += tried.iter().filter(|tried| !tried.is_undefined()).count();
    }
    println!("pmu: {executed} accesses are not UNDEFINED");
    touch::run(memory, TOUCHED)
}
