// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How large ours is beside theirs, and how long it may take.
//!
//! Invariant: what a plan asks for is there: memory of the size that it says, or a small piece of it, mapped over and over.

use std::time::Duration;

use crate::machine;

/// Sizes and times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Bytes of S0's slot: 16 GiB there.
    pub slot: u64,
    /// Bytes of S3's region, of each vCPU: 512 MiB there, of 96.
    pub region: u64,
    /// GiB at most of what S4 has in common: 1 and 20 there.
    pub shared_gib: u64,
    /// vCPUs at most: up to 96 there.
    pub vcpus: usize,
    /// Whether memory is a small piece, mapped over and over.
    pub sparse: bool,
    /// How long all of it may take, but for the least number of runs.
    pub time: Duration,
    /// Runs of each, if somebody says so.
    pub runs: Option<u32>,
}

impl Plan {
    /// For this machine: bytes that are free, and CPUs. With `full` the sources' own sizes.
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

    /// Bytes that the largest of its guests takes, with its tables.
    pub fn needed(&self) -> u64 {
        let memory = self.slot.max(self.region * self.vcpus as u64).max(self.shared_gib * GIB);
        let tables = memory / 256 + (16 << 20);
        if self.sparse { tables } else { memory + tables }
    }

    /// GiB of ours, where theirs had so many.
    pub fn gib(&self, theirs: u64) -> u64 {
        theirs.min(self.shared_gib)
    }

    /// vCPUs of ours, where theirs had so many: fewer of fewer.
    pub fn vcpus(&self, theirs: usize) -> usize {
        if theirs < 40 && self.vcpus < theirs { self.vcpus.div_ceil(2) } else { theirs.min(self.vcpus) }
    }
}

/// Bytes that are free; 0 where the kernel does not tell.
pub fn free_memory() -> u64 {
    machine::memory("MemAvailable:").unwrap_or(0)
}

const GIB: u64 = 1 << 30;
/// What the machine takes at most.
const VCPUS_PER_CPU: usize = 8;
const MOST_VCPUS: usize = 64;
/// For two CPUs and 8 GiB; what comes beside the runs is in it.
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
        // The sources' sizes, without their memory.
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
