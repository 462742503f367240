// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that a program may ask for after an operation of the engine: nothing may be cached that the operation was to
//! end.
//!
//! Invariant: a check changes nothing. The run continues as it would without it.

use twofold_stage2::{Ipa, IpaRange};

use super::breach::Rule;
use super::clock::{Clock, Moment};
use super::model::{Broken, Model, Outcome};
use super::shape::{DIRTY_BY_HARDWARE, WRITE};
use super::stale::{Kind, Stale};
use super::tables::PAGE;

/// The accesses that a flush has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// Any access.
    Everything,
    /// Writes to what is still mapped, including those that hardware would grant.
    Writes,
    /// Writes to what is still mapped that hardware recorded and would not record again.
    Records,
}

impl Model {
    /// Checks a complete flush that was to end `access` in `range`. It covers every change that was known at `since`.
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
                Withdrawn::Writes => writes && self.allows_more_writes(stale, range, since),
                Withdrawn::Records => stale.raw & both == both && self.allows_more_writes(stale, range, since),
            };
            stale.root == root
                && since.knows(stale.changed)
                && stale.kind != Kind::Narrower
                && counts
                && stale.overlaps(range)
        };
        // Another CPU's flush is complete for this CPU once this CPU knows of a barrier after that flush.
        let known = self.cells.known(cpu);
        let mut barriers = self.cpus.iter().flat_map(|cpu| &cpu.barriers).filter(|(moment, _)| known.knows(*moment));
        let last = barriers.next().map_or(0, |first| barriers.fold(first.1, |last, (_, step)| last.max(*step)));
        // Only a number of barriers is kept, so the relevant one may be older and no longer kept.
        let unknown =
            |(stale, complete, step): &&(Stale, Moment, u64)| matters(stale) && *step > last && !known.knows(*complete);
        if let Some((stale, ..)) = self.stale.gone().find(unknown) {
            let what = format!(
                "a flush of {range:?} ({access:?}) relies on another CPU's flush, and cannot know that it is complete"
            );
            return Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]));
        }
        let Some(stale) = self.stale.iter().find(|stale| matters(stale)) else { return Ok(()) };
        let what = format!("a flush of {:?} ({access:?}) is complete, and there may be a {}", range, stale.held());
        Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]))
    }

    /// Whether a leaf that was changed allows writes in `range`, by itself or by hardware, that the leaves after it do not
    /// allow: neither the leaves that memory holds now, nor the leaves as the flushing CPU knew them at `since`.
    ///
    /// A block that a table replaced without a break (FEAT_BBM) does so only where a leaf of the table lost an access later.
    /// The CPU that took the access away flushes for it. Another CPU has to flush for it only if it knows of that change. A
    /// CPU that removes a leaf waits for its own flush.
    fn allows_more_writes(&self, stale: &Stale, range: &IpaRange, since: &Clock) -> bool {
        if stale.kind != Kind::Leaf || stale.removed {
            return false;
        }
        let allows_less = |(raw, _): (u64, u8)| stale.raw & !raw & (WRITE | DIRTY_BY_HARDWARE) != 0;
        let mut at = range.start.raw().max(stale.ipa);
        let end = range.end.raw().min(stale.ipa + stale.size());
        while at < end {
            let now = self.leaf_of(stale.root, at);
            let mut level = now.map_or(3, |(_, level)| level);
            if now.is_some_and(allows_less) {
                let known = self.leaf_known(stale.root, at, since);
                if known.is_some_and(allows_less) {
                    return true;
                }
                level = known.map_or(3, |(_, known)| level.max(known));
            }
            let span = self.format.span(level);
            at = at / span * span + span;
        }
        false
    }

    /// Checks that this CPU's own invalidation for an address of a tree is done, including the context synchronization.
    pub(crate) fn check_fresh(&self, cpu: usize, root: u64, ipa: Ipa) -> Outcome {
        let range = ipa..ipa + PAGE;
        let root = self.tables.find_root(root);
        let held = |stale: &&Stale| Some(stale.root) == root && stale.cpus() >> cpu & 1 == 1 && stale.overlaps(&range);
        let Some(stale) = self.stale.iter().find(held) else { return Ok(()) };
        let what = format!("this CPU should have invalidated it, and may still use a {}", stale.held());
        Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]))
    }
}
