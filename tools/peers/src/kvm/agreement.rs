// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the same experiment by the kernel's own program and by ours: whether `--on kvm` measures the same.
//!
//! Invariant: the two agree only if the same pages were dirty in each round, however close their costs are.

use anyhow::ensure;
use serde::Serialize;

use super::calls::DirtyLog;
use super::experiment::Experiment;
use crate::difference::Difference;

/// One experiment by both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The configuration.
    pub experiment: Experiment,
    /// The figures of the kernel's program.
    pub kernels: DirtyLog,
    /// The figures of our program.
    pub ours: DirtyLog,
}

impl Compared {
    /// Returns the instructions of the last round, as (kernel's, ours): of its writes, and of the call that clears.
    pub fn costs(&self) -> [(u64, u64); 2] {
        let (kernels, ours) = (self.kernels.last(), self.ours.last());
        let dirty = (kernels.dirty, ours.dirty);
        [dirty, (kernels.clear.unwrap_or(kernels.get), ours.clear.unwrap_or(ours.get))]
    }

    /// Returns the rounds in which the dirty pages differ.
    pub fn rounds_unlike(&self) -> impl Iterator<Item = usize> + '_ {
        let unlike = |number: &usize| {
            self.ours.rounds.get(*number).is_none_or(|ours| ours.bitmap != self.kernels.rounds[*number].bitmap)
        };
        (0..self.kernels.rounds.len()).filter(unlike)
    }

    /// Checks that both agree on the dirty pages, and on the costs within `tolerance` percent.
    pub fn check(&self, tolerance: f64) -> anyhow::Result<()> {
        let Self { experiment, kernels, ours } = self;
        let unlike: Vec<_> = self.rounds_unlike().collect();
        ensure!(unlike.is_empty(), "{experiment:?}: rounds {unlike:?} differ: {kernels:?}, {ours:?}");
        for (what, (kernels, ours)) in ["dirty", "clear"].into_iter().zip(self.costs()) {
            let difference = Difference::of(ours as f64, kernels as f64);
            ensure!(
                difference.is_within(tolerance),
                "{experiment:?}: {what} takes {ours} instructions, {difference} than the kernel's own program ({kernels})"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::calls::{Bitmap, Round};
    use crate::kvm::experiment::PLAIN;

    fn compared(change: impl FnOnce(&mut DirtyLog)) -> anyhow::Result<()> {
        let bitmap = Bitmap { pages: 100, dirty: 100, sum: 7 };
        let round = Round { dirty: 1000, get: 10, clear: Some(100), bitmap };
        let kernels = DirtyLog { pages: 100, populate: 1, enable: 1, rounds: vec![round; 3], disable: 1 };
        let mut ours = kernels.clone();
        change(&mut ours);
        Compared { experiment: PLAIN, kernels, ours }.check(10.0)
    }

    #[test]
    fn what_is_dirty_has_to_be_the_same_and_costs_near() {
        assert!(compared(|_| ()).is_ok());
        assert!(compared(|ours| ours.rounds[2].dirty = 1099).is_ok());
        assert!(compared(|ours| ours.rounds[2].dirty = 1101).is_err());
        assert!(compared(|ours| ours.rounds[2].clear = Some(89)).is_err());
        // The first round is compared by its pages, not by its cost.
        assert!(compared(|ours| ours.rounds[0].dirty = 5000).is_ok());
        assert!(compared(|ours| ours.rounds[0].bitmap.sum = 8).is_err());
        assert!(compared(|ours| ours.rounds.truncate(2)).is_err());
    }
}
