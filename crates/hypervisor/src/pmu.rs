// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the instructions that a CPU retires at EL2.
//!
//! The last event counter is taken from the guest: MDCR_EL2.HPMN is one lower, and HPME runs the counter independently
//! of PMCR_EL0. HPMN alone does not protect it everywhere (QEMU 7.2 only lowers PMCR_EL0.N). So while EL2 counts, every
//! access of the guest to the PMU traps; [`shut`](crate::registers::shut) answers as a PMU without event counters.
//!
//! Invariant: a [`Counter`] is read on the CPU that started it; it is not `Send`. An impossible count is an error
//! ([`Impossible`]), not a figure.

use core::arch::global_asm;
use core::marker::PhantomData;

use crate::count::{Impossible, counted};
use crate::sysreg::{id_field, isb};
use crate::{read_sysreg, write_sysreg};

/// Counts instructions retired at EL2 by the CPU that started it.
#[derive(Debug)]
pub struct Counter {
    read: extern "C" fn() -> u64,
    mask: u64,
    last: u64,
    not_send: PhantomData<*mut ()>,
}

/// Two readings between which more was counted than usual, or something that cannot be.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Unusual {
    before: u64,
    now: u64,
}

/// Whether this CPU can count retired instructions, and has another counter for the guest. Under QEMU only with
/// `-icount`.
#[must_use]
pub fn available() -> bool {
    version() != 0 && read_sysreg!(PMCEID0_EL0) & (1 << INST_RETIRED) != 0 && counters() > 1
}

impl Counter {
    /// Starts the counter. Returns `None` if it is not [`available`].
    ///
    /// # Safety
    /// Must be called after [`registers::set_for`](crate::registers::set_for), which sets MDCR_EL2, and once per CPU.
    #[must_use]
    pub unsafe fn start() -> Option<Self> {
        if !available() {
            return None;
        }
        let index = counters() - 1;
        // FEAT_PMUv3p5 has 64-bit event counters; HLP makes those of EL2 overflow at 64 bits.
        let wide = version() >= 6;
        let mdcr = (read_sysreg!(MDCR_EL2) & !HPMN) | index | HPME | TPM | TPMCR | if wide { HLP } else { 0 };
        // SAFETY: the PMU and the counter exist, and the guest does not run; counting changes nothing else.
        unsafe {
            write_sysreg!(MDCR_EL2, mdcr);
            write_sysreg!(PMSELR_EL0, index);
            isb();
            write_sysreg!(PMXEVTYPER_EL0, EL2_ONLY | INST_RETIRED);
            write_sysreg!(PMXEVCNTR_EL0, 0);
            write_sysreg!(PMCNTENSET_EL0, 1 << index);
        }
        isb();
        // SAFETY: the function for counter `index` is at this place: see below.
        let read = unsafe {
            let function = (&raw const pmu_readers).byte_add(index as usize * READER_SIZE);
            core::mem::transmute::<*const u8, extern "C" fn() -> u64>(function)
        };
        let mask = if wide { u64::MAX } else { u32::MAX.into() };
        Some(Self { read, mask, last: 0, not_send: PhantomData })
    }

    /// Instructions since the last call, or since the start. A hardware counter of 32 bits must be read at least once
    /// in 2^31 instructions.
    #[inline(always)]
    pub fn since_last(&mut self) -> Result<u64, Impossible> {
        self.until((self.read)())
    }

    /// As [`since_last`](Self::since_last). Returns `Err` if the count is above `usual`, which is below 2^31, or cannot be.
    #[inline(always)]
    pub fn usual_since_last(&mut self, usual: u64) -> Result<u64, Unusual> {
        let (before, now) = (self.last, (self.read)());
        self.last = now;
        let count = now.wrapping_sub(before) & self.mask;
        // One comparison for both, since this is on the path of each exit.
        if count.wrapping_sub(1) < usual { Ok(count) } else { Err(Unusual { before, now }) }
    }

    /// Instructions since the last call up to a later reading, from which the next call counts.
    #[inline(always)]
    pub fn until(&mut self, now: u64) -> Result<u64, Impossible> {
        let before = core::mem::replace(&mut self.last, now);
        counted(before, now, self.mask)
    }

    /// The count that was unusual.
    pub fn count(&self, unusual: Unusual) -> Result<u64, Impossible> {
        counted(unusual.before, unusual.now, self.mask)
    }

    /// Instructions between two readings by [`reader`](Self::reader).
    #[must_use]
    pub fn between(&self, before: u64, now: u64) -> u64 {
        now.wrapping_sub(before) & self.mask
    }

    /// The bits that the counter has.
    #[must_use]
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// Reads the counter, on this CPU.
    #[must_use]
    pub fn reader(&self) -> extern "C" fn() -> u64 {
        self.read
    }
}

/// The event: an instruction architecturally executed.
const INST_RETIRED: u64 = 0x08;
/// PMEVTYPER: P and U (not at EL1 and EL0), NSH (at EL2).
const EL2_ONLY: u64 = 1 << 31 | 1 << 30 | 1 << 27;
/// MDCR_EL2: the number of counters that the guest has.
const HPMN: u64 = 0x1f;
/// MDCR_EL2: the guest's accesses to PMCR_EL0 trap.
const TPMCR: u64 = 1 << 5;
/// MDCR_EL2: the guest's accesses to the other registers of the PMU trap.
const TPM: u64 = 1 << 6;
/// MDCR_EL2: the counters of EL2 run.
const HPME: u64 = 1 << 7;
/// MDCR_EL2: the counters of EL2 have 64 bits.
const HLP: u64 = 1 << 26;

/// The PMU's version; 0 if there is no PMU, or none that the architecture describes.
fn version() -> u64 {
    match id_field(read_sysreg!(ID_AA64DFR0_EL1), 8) {
        0xf => 0,
        version => version,
    }
}

/// The number of event counters (PMCR_EL0.N).
fn counters() -> u64 {
    (read_sysreg!(PMCR_EL0) >> 11) & 0x1f
}

// The counter's number is part of the instruction that reads it, so each counter has a function. The register that
// selects a counter by number (PMSELR_EL0) holds the guest's choice.
global_asm!(
    ".section .text.pmu, \"ax\"",
    ".balign 8",
    "pmu_readers:",
    ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30",
    "    mrs x0, pmevcntr\\index\\()_el0",
    "    ret",
    ".endr",
    ".global pmu_readers",
);

const READER_SIZE: usize = 8;

unsafe extern "C" {
    static pmu_readers: u8;
}
