// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a program may ask after an operation of the engine: that nothing is cached of what the operation was to end.
//!
//! Invariant: to ask changes nothing. A run goes on as it would have without.

use twofold_stage2::{Ipa, IpaRange};

use super::breach::Rule;
use super::clock::{Clock, Moment};
use super::model::{Broken, Model, Outcome};
use super::shape::{DIRTY_BY_HARDWARE, WRITE};
use super::stale::{Kind, Stale};
use super::tables::PAGE;

/// What a flush is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// Any access.
    Everything,
    /// Writes, and hardware's granting them, to what is still mapped.
    Writes,
    /// Writes that hardware recorded and would not record again, to what is still mapped.
    Records,
}

impl Model {
    /// A flush that was to end `access` in `range`, also where that was changed before `since`, is complete.
    pub(crate) fn check_flushed(
        &self,
        cpu: usize,
        root: u64,
        range: &IpaRange,
        since: &Clock,
        access: Withdrawn,
    ) -> Outcome {
        let Some(root) = self.tables.find_root(root) else { return Ok(()) };
        let both = WRITE | DIRTY_BY_HARDWARE;
        let matters = |stale: &Stale| {
            let writes = stale.raw & WRITE != 0 || stale.raw & DIRTY_BY_HARDWARE != 0;
            let counts = match access {
                Withdrawn::Everything => true,
                Withdrawn::Writes => stale.kind == Kind::Leaf && !stale.removed && writes,
                Withdrawn::Records => stale.kind == Kind::Leaf && !stale.removed && stale.raw & both == both,
            };
            stale.root == root
                && since.knows(stale.changed)
                && stale.kind != Kind::Narrower
                && counts
                && stale.overlaps(range)
        };
        // Another CPU's flush is complete for this one when a barrier is known that came after it.
        let known = self.cells.known(cpu);
        let mut barriers = self.cpus.iter().flat_map(|cpu| &cpu.barriers).filter(|(moment, _)| known.knows(*moment));
        let last = barriers.next().map_or(0, |first| barriers.fold(first.1, |last, (_, step)| last.max(*step)));
        // As many barriers are remembered as it takes; the one in question may be older.
        let unknown =
            |(stale, complete, step): &&(Stale, Moment, u64)| matters(stale) && *step > last && !known.knows(*complete);
        if let Some((stale, ..)) = self.stale.gone().find(unknown) {
            let what = format!(
                "a flush of {range:?} ({access:?}) relies on another CPU's, and cannot know that it is complete"
            );
            return Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]));
        }
        let Some(stale) = self.stale.iter().find(|stale| matters(stale)) else { return Ok(()) };
        let what = format!("a flush of {:?} ({access:?}) is complete, and there may be a {}", range, stale.held());
        Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]))
    }

    /// What this CPU did about an address of a tree is done, down to the context synchronization.
    pub(crate) fn check_fresh(&self, cpu: usize, root: u64, ipa: Ipa) -> Outcome {
        let range = ipa..ipa + PAGE;
        let root = self.tables.find_root(root);
        let held = |stale: &&Stale| Some(stale.root) == root && stale.cpus() >> cpu & 1 == 1 && stale.overlaps(&range);
        let Some(stale) = self.stale.iter().find(held) else { return Ok(()) };
        let what = format!("this CPU was to forget it, and may use a {}", stale.held());
        Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]))
    }
}
