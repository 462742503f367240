// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What TLBs may still hold of entries that were changed.
//!
//! Hardware may cache any valid entry at any time, used or not (Arm ARM D8.16). So nothing is left to chance here: when an
//! entry is changed, what it was is held by every CPU that has had the guest's tables loaded, as a stage-2 entry (or walk
//! entry, for a table's), and combined with stage 1; until an invalidation that names it is complete there:
//!
//! * an invalidation counts for a CPU only if the change was visible to that CPU's walks before it was issued, or a walk
//!   would only read the old entry again;
//! * one by IPA removes stage-2 entries. A combined entry goes by one of stage 1 and combined entries that was issued when
//!   the stage-2 entry was gone already, or it could have been made anew from that;
//! * it is complete at a `DSB` for loads and stores, of the CPU that issued it, and a domain that reaches the CPU in
//!   question; on the issuing CPU, at its next context synchronization.

use twofold_stage2::IpaRange;

use super::clock::Moment;
use crate::tlbi::Reach;
use crate::walk;

/// A set of CPUs.
pub(crate) type CpuSet = u8;

/// What an entry was before it was changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stale {
    /// Ascending in the order in which they came.
    id: u64,
    pub(crate) vmid: u16,
    /// The root of the tree, by number.
    pub(crate) root: usize,
    pub(crate) ipa: u64,
    /// Of the table that the entry is in.
    pub(crate) level: u8,
    pub(crate) raw: u64,
    /// Where the entry is.
    pub(crate) entry: u64,
    pub(crate) kind: Kind,
    /// Whether nothing is there any more, rather than less.
    pub(crate) removed: bool,
    /// The store that changed it, or unlinked the table that it is in.
    pub(crate) changed: Moment,
    /// The machine's step of that.
    pub(crate) step: u64,
    /// Where it may be held as a stage-2 entry.
    stage2: CpuSet,
    /// Where in combined entries, or in walks of the guest's own tables.
    combined: CpuSet,
    /// Where its removal is complete, but for the context synchronization.
    unsynchronized: CpuSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A leaf that gave more than what is there now.
    Leaf,
    /// The entry of a table.
    Table,
    /// A leaf that gave less: no harm, but for faults that go on until it is gone.
    Narrower,
}

const MOST_NARROWER: usize = 64;

/// All of them, and the invalidations that are under way.
#[derive(Debug, Default)]
pub(crate) struct StaleEntries {
    entries: Vec<Stale>,
    added: u64,
    issued: Vec<Invalidation>,
}

/// An invalidation that was issued, for the entries that it names.
#[derive(Debug)]
struct Invalidation {
    by: usize,
    /// For which CPUs it is not complete.
    cpus: CpuSet,
    names: Vec<(u64, CpuSet, Part)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Stage2,
    Combined,
    Both,
}

impl Stale {
    pub(crate) fn new(
        (vmid, root): (u16, usize),
        (ipa, level, entry): (u64, u8, u64),
        (raw, kind, removed): (u64, Kind, bool),
        (changed, step): (Moment, u64),
        cpus: CpuSet,
    ) -> Self {
        let (stage2, combined) = (cpus, if kind == Kind::Table { 0 } else { cpus });
        Self {
            id: 0,
            vmid,
            root,
            ipa,
            level,
            raw,
            entry,
            kind,
            removed,
            changed,
            step,
            stage2,
            combined,
            unsynchronized: 0,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        walk::span(self.level)
    }

    pub(crate) fn cpus(&self) -> CpuSet {
        self.stage2 | self.combined | self.unsynchronized
    }

    pub(crate) fn overlaps(&self, range: &IpaRange) -> bool {
        self.ipa < range.end.raw() && range.start.raw() < self.ipa + self.size()
    }

    /// In words: as what it may be held, and where.
    pub(crate) fn held(&self) -> String {
        let what = match (self.stage2, self.combined) {
            (0, 0) => "entry (no context synchronization on the issuing CPU)",
            (0, _) => "combined entry",
            (_, 0) => "stage-2 or walk entry",
            _ => "stage-2 and combined entry",
        };
        let cpus: Vec<_> = (0..8).filter(|cpu| self.cpus() >> cpu & 1 == 1).map(|cpu| cpu.to_string()).collect();
        format!("{what} {:#018x} of level {} at IPA {:#x} on CPU {}", self.raw, self.level, self.ipa, cpus.join(", "))
    }
}

impl StaleEntries {
    pub(crate) fn add(&mut self, stale: Stale) {
        if stale.cpus() == 0 {
            return;
        }
        if stale.kind == Kind::Narrower {
            // No harm if it goes at any time; so there need not be many.
            let narrower = |stale: &Stale| stale.kind == Kind::Narrower;
            if self.entries.iter().filter(|stale| narrower(stale)).count() >= MOST_NARROWER
                && let Some(first) = self.entries.iter().position(narrower)
            {
                self.entries.remove(first);
            }
        }
        self.added += 1;
        self.entries.push(Stale { id: self.added, ..stale });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stale> {
        self.entries.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An invalidation is issued. `cpus`: those that it reaches; `published`: whether a change is visible to a CPU's walks.
    pub(crate) fn issue(
        &mut self,
        by: usize,
        vmid: u16,
        reach: &Reach,
        cpus: CpuSet,
        published: impl Fn(Moment, usize) -> bool,
    ) {
        let mut names = Vec::new();
        for stale in self.entries.iter().filter(|stale| stale.vmid == vmid) {
            let is_table = stale.kind == Kind::Table;
            let by_stage2 =
                reach.stage2.is_some_and(|which| which.hits(stale.ipa, stale.size(), stale.level, is_table));
            let part = match (by_stage2, reach.stage1_and_combined) {
                (false, false) => continue,
                (true, false) => Part::Stage2,
                (false, true) => Part::Combined,
                (true, true) => Part::Both,
            };
            let at = |cpu: &usize| cpus >> cpu & 1 == 1 && published(stale.changed, *cpu);
            let mut on = (0..8).filter(at).fold(0, |set, cpu| set | 1 << cpu);
            if part == Part::Combined {
                on &= !stale.stage2;
            }
            if on != 0 {
                names.push((stale.id, on, part));
            }
        }
        self.issued.push(Invalidation { by, cpus, names });
    }

    /// A `DSB` for loads and stores completes what this CPU issued, on these CPUs.
    pub(crate) fn complete(&mut self, by: usize, cpus: CpuSet) {
        for invalidation in self.issued.iter_mut().filter(|invalidation| invalidation.by == by) {
            let now = invalidation.cpus & cpus;
            invalidation.cpus &= !now;
            for (id, on, part) in &invalidation.names {
                let on = on & now;
                let Ok(at) = self.entries.binary_search_by_key(id, |stale| stale.id) else { continue };
                let stale = &mut self.entries[at];
                let (before, own) = (stale.cpus(), 1 << by);
                if *part != Part::Combined {
                    stale.stage2 &= !on;
                }
                if *part != Part::Stage2 {
                    stale.combined &= !on;
                }
                if before & own != 0 && (stale.stage2 | stale.combined) & own == 0 {
                    stale.unsynchronized |= own;
                }
            }
        }
        self.issued.retain(|invalidation| invalidation.cpus != 0);
        self.sweep();
    }

    /// A context synchronization on this CPU.
    pub(crate) fn synchronize(&mut self, cpu: usize) {
        self.entries.iter_mut().for_each(|stale| stale.unsynchronized &= !(1 << cpu));
        self.sweep();
    }

    /// Whether an invalidation that this CPU issued is not complete yet.
    pub(crate) fn is_pending(&self, by: usize) -> bool {
        self.issued.iter().any(|invalidation| invalidation.by == by)
    }

    fn sweep(&mut self) {
        self.entries.retain(|stale| stale.cpus() != 0);
    }
}
