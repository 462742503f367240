// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same experiment, once by the kernel's own program and once by ours: whether `--on kvm` measures what that measures.
//!
//! Invariant: they agree only when the same pages were dirty in each round; a cost that is near is no excuse for another
//! page.

use anyhow::ensure;
use serde::Serialize;

use super::Experiment;
use super::calls::DirtyLog;

/// One experiment by both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// How it is set up.
    pub experiment: Experiment,
    /// What the kernel's program came to.
    pub kernels: DirtyLog,
    /// What ours came to.
    pub ours: DirtyLog,
}

/// How much more `ours` is, in percent.
pub fn percent(kernels: u64, ours: u64) -> f64 {
    (ours as f64 / kernels as f64 - 1.0) * 100.0
}

impl Compared {
    /// Instructions of the last round, the kernel's and ours: its writes, and what clears.
    pub fn costs(&self) -> [(u64, u64); 2] {
        let (kernels, ours) = (self.kernels.last(), self.ours.last());
        let dirty = (kernels.dirty, ours.dirty);
        [dirty, (kernels.clear.unwrap_or(kernels.get), ours.clear.unwrap_or(ours.get))]
    }

    /// The rounds in which other pages were dirty.
    pub fn rounds_unlike(&self) -> impl Iterator<Item = usize> + '_ {
        let unlike = |number: &usize| {
            self.ours.rounds.get(*number).is_none_or(|ours| ours.bitmap != self.kernels.rounds[*number].bitmap)
        };
        (0..self.kernels.rounds.len()).filter(unlike)
    }

    /// Whether both agree: on what is dirty, and within `tolerance` percent on what it costs.
    pub fn check(&self, tolerance: f64) -> anyhow::Result<()> {
        let Self { experiment, kernels, ours } = self;
        let unlike: Vec<_> = self.rounds_unlike().collect();
        ensure!(unlike.is_empty(), "{experiment:?}: rounds {unlike:?} differ: {kernels:?}, {ours:?}");
        for (what, (kernels, ours)) in ["dirty", "clear"].into_iter().zip(self.costs()) {
            let percent = percent(kernels, ours);
            ensure!(
                percent.abs() <= tolerance,
                "{experiment:?}: {what} takes {ours} instructions, and {kernels} by the kernel's own: {percent:+.1} %"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::kvm::PLAIN;
    use crate::peers::kvm::calls::{Bitmap, Round};

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
        // The first round is not the one that is compared by cost, but by pages.
        assert!(compared(|ours| ours.rounds[0].dirty = 5000).is_ok());
        assert!(compared(|ours| ours.rounds[0].bitmap.sum = 8).is_err());
        assert!(compared(|ours| ours.rounds.truncate(2)).is_err());
    }
}
