// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sizes and the time of our measurements.
//!
//! Invariant: the memory that a plan needs is available: the size that it states, or a small piece that is mapped
//! repeatedly.

use std::time::Duration;

use crate::machine;

/// Sizes and times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Bytes of the memslot of Bras 2026; theirs has 16 GiB.
    pub slot: u64,
    /// Bytes of each vCPU's region of Kolothum 2023; theirs has 512 MiB for each of 96.
    pub region: u64,
    /// Most GiB of the shared memory of Wang 2021; theirs has 1 and 20.
    pub shared_gib: u64,
    /// Most vCPUs; theirs have up to 96.
    pub vcpus: usize,
    /// Whether memory is a small piece, mapped repeatedly.
    pub sparse: bool,
    /// Time for the whole command, exceeded only for the least number of runs.
    pub time: Duration,
    /// Runs of each variant, if set by `--runs`.
    pub runs: Option<u32>,
}

impl Plan {
    /// The plan for a machine with these free bytes and CPUs. `full` uses the sources' own sizes.
    pub fn of(free: u64, cpus: usize, full: bool) -> Self {
        let most = cpus.saturating_mul(VCPUS_PER_CPU).clamp(1, MOST_VCPUS);
        if full {
            let (slot, region) = (16 * GIB, 512 << 20);
            return Self { slot, region, shared_gib: 20, vcpus: most, sparse: true, time: HOUR, runs: None };
        }
        let vcpus = most.min(8);
        let dense = Self {
            slot: GIB,
            region: (GIB / 2) / vcpus as u64,
            shared_gib: 1,
            vcpus,
            sparse: false,
            time: FIVE_MINUTES,
            runs: None,
        };
        if dense.needed() <= free / 2 { dense } else { Self { sparse: true, ..dense } }
    }

    /// Bytes that the largest guest needs, with its tables.
    pub fn needed(&self) -> u64 {
        let memory = self.slot.max(self.region * self.vcpus as u64).max(self.shared_gib * GIB);
        let tables = memory / 256 + (16 << 20);
        if self.sparse { tables } else { memory + tables }
    }

    /// Our GiB, for a published experiment with `theirs`.
    pub fn gib(&self, theirs: u64) -> u64 {
        theirs.min(self.shared_gib)
    }

    /// Our vCPUs, for a published experiment with `theirs`. A published experiment with fewer vCPUs has fewer here too.
    pub fn vcpus(&self, theirs: usize) -> usize {
        if theirs < 40 && self.vcpus < theirs { self.vcpus.div_ceil(2) } else { theirs.min(self.vcpus) }
    }
}

/// Free bytes. 0 if the kernel does not report them.
pub fn free_memory() -> u64 {
    machine::memory("MemAvailable:").unwrap_or(0)
}

const GIB: u64 = 1 << 30;
/// The machine's upper limit.
const VCPUS_PER_CPU: usize = 8;
const MOST_VCPUS: usize = 64;
/// For two CPUs and 8 GiB, including the time outside of the runs.
const FIVE_MINUTES: Duration = Duration::from_secs(225);
const HOUR: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_fits_the_memory() {
        for free in [64 << 20, 512 << 20, GIB, 2 * GIB, 3 * GIB, 8 * GIB, 512 * GIB] {
            for cpus in [1, 2, 8, 256] {
                let plan = Plan::of(free, cpus, false);
                assert!(plan.needed() <= free, "{free:#x} bytes, {cpus} CPUs: {plan:?} takes {:#x}", plan.needed());
                assert!((1..=8).contains(&plan.vcpus));
            }
        }
        assert!(!Plan::of(7 * GIB, 2, false).sparse && Plan::of(GIB, 2, false).sparse);
        // The sources' sizes, in less memory.
        let full = Plan::of(2 * GIB, 2, true);
        assert!(full.needed() < GIB && full.slot == 16 * GIB && full.gib(20) == 20 && full.gib(1) == 1);
    }

    #[test]
    fn fewer_vcpus_stay_fewer() {
        let plan = Plan::of(8 * GIB, 2, false);
        assert_eq!([80, 40, 20, 4].map(|theirs| plan.vcpus(theirs)), [8, 8, 4, 4]);
        let one = Plan::of(8 * GIB, 1, true);
        assert_eq!([80, 40, 20].map(|theirs| one.vcpus(theirs)), [8, 8, 4]);
        let many = Plan::of(8 * GIB, 16, true);
        assert_eq!([80, 40, 20].map(|theirs| many.vcpus(theirs)), [64, 40, 20]);
    }
}
