// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether all CPUs of a machine wait for each other, as far as their turns show it.
//!
//! A CPU that waits gives the turn away: it *passes*. It also executes some *points* between two passes, for example to
//! read the lock that it waits for. Many passes in a row mean that the CPUs wait for each other, unless one of them
//! does something meanwhile:
//!
//! * **Progress** is a step that happens a limited number of times in a run: a guest's access, or a store to an entry.
//!   It starts the counts again.
//! * **Work** is many points of one CPU without a pass. A CPU that reads the 262,656 entries below a block of 1 GiB
//!   writes none of them, while the others may all wait for the result. Work starts the count of waits again. It does
//!   not start the count of passes again, since a CPU may work for ever: that is reported too, but later.
//!
//! Invariant: only the thread that has the turn uses the counts, so that plain loads and stores are enough.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The limit of passes in a row without progress or work, for each CPU there is. The limit is high because a CPU that
/// can work may need many turns for its next progress: it gets only one turn in `cpus`, and the shortest turn is one
/// point.
const PASSES_PER_CPU: u64 = 25_000;

/// The points of a CPU without a pass that are work. A CPU that waits executes far fewer before it passes again. The
/// other CPUs pass about `WORK * (cpus - 1)` times meanwhile, even if each turn is one point. That is less than half of
/// their limit.
const WORK: u64 = 10_000;

/// The limit of passes in a row without progress, in multiples of the limit without progress or work. The longest work
/// (above) is four points for each entry. Even if each turn is one point, that takes less than nine tenths of the limit.
const WITH_WORK: u64 = 50;

/// The counts.
pub(crate) struct Waits {
    /// Passes since the last progress.
    passes: AtomicU64,
    /// Passes since the last progress or work.
    waits: AtomicU64,
    /// The points of each CPU since its last pass.
    points: Box<[AtomicU64]>,
}

impl Waits {
    pub(crate) fn new(cpus: usize) -> Self {
        let points = (0..cpus).map(|_| AtomicU64::new(0)).collect();
        Self { passes: AtomicU64::new(0), waits: AtomicU64::new(0), points }
    }

    /// Notes progress.
    #[inline]
    pub(crate) fn progress(&self) {
        self.passes.store(0, Relaxed);
        self.waits.store(0, Relaxed);
    }

    /// Counts a point of `cpu`.
    #[inline]
    pub(crate) fn point(&self, cpu: usize) {
        let points = self.points[cpu].load(Relaxed) + 1;
        self.points[cpu].store(points, Relaxed);
        if points.is_multiple_of(WORK) {
            self.waits.store(0, Relaxed);
        }
    }

    /// Counts a pass of `cpu`. Returns the number of passes since the last progress if all CPUs wait for each other, or
    /// work without any progress.
    pub(crate) fn pass(&self, cpu: usize) -> Option<u64> {
        self.points[cpu].store(0, Relaxed);
        let (passes, waits) = (self.passes.load(Relaxed) + 1, self.waits.load(Relaxed) + 1);
        self.passes.store(passes, Relaxed);
        self.waits.store(waits, Relaxed);
        let limit = Self::limit(self.points.len());
        (waits > limit || passes > WITH_WORK * limit).then_some(passes)
    }

    /// The limit of passes in a row without progress or work.
    pub(crate) fn limit(cpus: usize) -> u64 {
        PASSES_PER_CPU * cpus as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU 1 passes `passes` times for each point of CPU 0, which passes itself after each `points`. Returns the passes
    /// after which that is reported, or `None` if CPU 0 makes progress after `until` points before that.
    fn reported(points: u64, passes: u64, until: u64) -> Option<u64> {
        let waits = Waits::new(2);
        for point in 1..=until {
            waits.point(0);
            for _ in 0..passes {
                waits.point(1);
                if let Some(passes) = waits.pass(1) {
                    return Some(passes);
                }
            }
            if point.is_multiple_of(points)
                && let Some(passes) = waits.pass(0)
            {
                return Some(passes);
            }
        }
        waits.progress();
        assert_eq!(waits.pass(1), None);
        None
    }

    #[test]
    fn cpus_that_read_a_lock_between_passes_wait() {
        for points in [1, 3, 100] {
            assert_eq!(reported(points, 1, u64::MAX), Some(Waits::limit(2) + 1), "{points} points between passes");
        }
    }

    #[test]
    fn a_cpu_that_works_is_waited_for_as_long_as_the_longest_work_takes() {
        // The entries below 1 GiB: four points each, and a pass of the other CPU after each point.
        assert_eq!(reported(u64::MAX, 1, 513 * 512 * 4), None);
        assert_eq!(reported(WORK, 1, 513 * 512 * 4), None, "it may wait for a lock now and then");
    }

    #[test]
    fn a_cpu_that_works_for_ever_is_reported() {
        assert_eq!(reported(u64::MAX, 1, u64::MAX), Some(WITH_WORK * Waits::limit(2) + 1));
    }

    #[test]
    fn progress_starts_the_counts_again() {
        let waits = Waits::new(1);
        for _ in 0..2 * WITH_WORK {
            assert!((0..Waits::limit(1)).all(|_| waits.pass(0).is_none()));
            waits.progress();
        }
    }
}
