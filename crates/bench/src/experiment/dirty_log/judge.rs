// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges a run: a log must report exactly the pages that the guest wrote, and the guest must have completed its passes.
//!
//! Invariant: what must be reported follows from the passes alone, which the log does not know.

use anyhow::{bail, ensure};
use twofold_workload::pass::Pass;

use crate::experiment::setup::Setup;
use crate::experiment::target::REGION;

/// The pages that a log must report.
pub struct Expected(Vec<bool>);

impl Expected {
    /// The pages that these passes write; with `all`, every page.
    pub fn of(setup: &Setup, passes: &[Vec<Pass>], all: bool, page: u64) -> Self {
        let mut pages = vec![all; (setup.memory() / page) as usize];
        let writes = passes.iter().flatten().flat_map(Pass::accesses).filter(|access| access.write && !all);
        writes.for_each(|access| pages[((access.va - REGION) / page) as usize] = true);
        Self(pages)
    }

    /// The number of these pages.
    pub fn count(&self) -> u64 {
        self.0.iter().filter(|is| **is).count() as u64
    }

    /// Checks that a log reported these pages and no others.
    ///
    /// # Errors
    ///
    /// It reported others; the error counts them, and has the first.
    pub fn check(&self, reported: &[u64]) -> anyhow::Result<()> {
        let mut seen = vec![false; self.0.len()];
        for page in reported {
            let Some(seen) = seen.get_mut(*page as usize) else {
                bail!("the log reports page {page}, which does not exist")
            };
            *seen = true;
        }
        let differ =
            |is: bool| self.0.iter().zip(&seen).filter(|(expected, seen)| **expected == is && **seen != is).count();
        let first = self.0.iter().zip(&seen).position(|(expected, seen)| expected != seen);
        let Some(first) = first else { return Ok(()) };
        bail!(
            "the log is wrong: {} pages were written and are not reported, {} were not written and are; the first is \
             page {first}",
            differ(true),
            differ(false)
        )
    }
}

/// Advances the passes' generators to where their accesses lead.
pub fn advance(passes: &mut [Vec<Pass>]) {
    for pass in passes.iter_mut().flatten() {
        let mut accesses = pass.accesses();
        accesses.by_ref().for_each(drop);
        pass.random = accesses.random();
    }
}

/// Checks that the generators are where the passes `before` lead.
///
/// # Errors
///
/// A vCPU has not completed its passes.
pub fn check_completed(mut before: Vec<Vec<Pass>>, after: &[Vec<Pass>]) -> anyhow::Result<()> {
    advance(&mut before);
    for (vcpu, (before, after)) in before.iter().zip(after).enumerate() {
        for (before, after) in before.iter().zip(after) {
            ensure!(
                after.random == before.random,
                "vCPU {vcpu} has not completed its passes: its generator is at {}, and should be at {}",
                after.random,
                before.random
            );
        }
    }
    Ok(())
}
