// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The TLB entries that may still exist for changed descriptors.
//!
//! Hardware may cache any valid entry at any time, used or not (Arm ARM DDI 0487K.a, D8.16). So the model leaves
//! nothing to chance. When an entry is changed, every CPU that has had the guest's tables loaded holds the old entry:
//! as a stage-2 entry, or a walk entry for a table, and combined with stage 1. A CPU holds it until an invalidation
//! that names it is complete there:
//!
//! * An invalidation counts for a CPU only if that CPU's walks could see the change when it was issued. Otherwise a
//!   walk could read the old entry again.
//! * An invalidation by IPA removes stage-2 entries. An invalidation of stage 1 removes combined entries, but only if
//!   the stage-2 entry was gone when it was issued. Otherwise a new combined entry could be made from the stage-2
//!   entry.
//! * An invalidation is complete at a `DSB` for loads and stores of the CPU that issued it, for the CPUs that the
//!   `DSB`'s domain reaches; on the issuing CPU, only at its next context synchronization.

use std::collections::VecDeque;

use twofold_stage2::{Ipa, IpaRange};

use super::clock::Moment;
use crate::tlbi::{Reach, Which};

/// A set of CPUs.
pub(crate) type CpuSet = u8;

/// An entry as it was before it was changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stale {
    /// Ascending in the order of the changes.
    id: u64,
    pub(crate) vmid: u16,
    /// The root of the tree, by number.
    pub(crate) root: usize,
    pub(crate) ipa: u64,
    /// The level of the table that the entry is in.
    pub(crate) level: u8,
    /// The number of bytes that it translates.
    span: u64,
    pub(crate) raw: u64,
    /// The address of the entry.
    pub(crate) entry: u64,
    pub(crate) kind: Kind,
    /// Whether the mapping was removed, and not only made narrower.
    pub(crate) removed: bool,
    /// The store that changed it, or that unlinked its table.
    pub(crate) changed: Moment,
    /// The machine's step of that store.
    pub(crate) step: u64,
    /// The CPUs that may hold it as a stage-2 entry.
    stage2: CpuSet,
    /// The CPUs that may hold it in combined entries, or in walks of the guest's own tables.
    combined: CpuSet,
    /// The CPUs on which its removal is complete except for the context synchronization.
    unsynchronized: CpuSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A leaf that allowed more than the entry does now.
    Leaf,
    /// The entry of a table.
    Table,
    /// A leaf that allowed less: harmless, except that accesses may fault until it is gone.
    Narrower,
}

const MOST_NARROWER: usize = 64;
/// The number of removed entries that are kept.
const MOST_GONE: usize = 256;

/// All stale entries, and the invalidations that are not complete.
#[derive(Debug, Default)]
pub(crate) struct StaleEntries {
    entries: Vec<Stale>,
    added: u64,
    /// The last entries to go, each with the moment and step of the barrier that completed its invalidation.
    gone: VecDeque<(Stale, Moment, u64)>,
    issued: Vec<Invalidation>,
    /// What was changed in trees that share VMIDs, as long as some CPU's walks do not see the change.
    unseen: Vec<Stale>,
}

/// An invalidation that was issued, with the entries that it names.
#[derive(Debug)]
struct Invalidation {
    by: usize,
    /// The CPUs on which it is not complete.
    cpus: CpuSet,
    /// `None`: every VMID.
    vmid: Option<u16>,
    reach: Reach,
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
        (ipa, (level, span), entry): (u64, (u8, u64), u64),
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
            span,
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
        self.span
    }

    pub(crate) fn cpus(&self) -> CpuSet {
        self.stage2 | self.combined | self.unsynchronized
    }

    /// The CPUs whose TLBs may hold it. The CPU that invalidated it may still have to synchronize its context.
    pub(crate) fn in_tlbs(&self) -> CpuSet {
        self.stage2 | self.combined
    }

    /// Whether no TLB holds it.
    pub(crate) fn is_gone(&self) -> bool {
        self.in_tlbs() == 0
    }

    /// The part of it that an invalidation with this reach removes.
    fn part_in(&self, reach: &Reach) -> Option<Part> {
        let hits = |which: Which| which.hits(self.ipa, self.size(), self.level, self.kind == Kind::Table);
        match (reach.stage2.is_some_and(hits), reach.stage1_and_combined) {
            (false, false) => None,
            (true, false) => Some(Part::Stage2),
            (false, true) => Some(Part::Combined),
            (true, true) => Some(Part::Both),
        }
    }

    pub(crate) fn overlaps(&self, range: &IpaRange) -> bool {
        self.ipa < range.end.raw() && range.start.raw() < self.ipa + self.size()
    }

    /// A description of the entry, and of the CPUs that may hold it.
    pub(crate) fn held(&self) -> String {
        let what = match (self.stage2, self.combined) {
            (0, 0) => "entry (no context synchronization on the issuing CPU)",
            (0, _) => "combined entry",
            (_, 0) => "stage-2 or walk entry",
            _ => "stage-2 and combined entry",
        };
        let cpus: Vec<_> = (0..8).filter(|cpu| self.cpus() >> cpu & 1 == 1).map(|cpu| cpu.to_string()).collect();
        format!(
            "{what} {:#018x} of level {} at IPA {:#x}, changed at step {}, on CPU {}",
            self.raw,
            self.level,
            self.ipa,
            self.step,
            cpus.join(", ")
        )
    }
}

impl StaleEntries {
    pub(crate) fn add(&mut self, stale: Stale) {
        if stale.cpus() == 0 {
            return;
        }
        if stale.kind == Kind::Narrower {
            // Dropping one at any time is harmless, so only a few are kept.
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

    /// Adds a leaf that was made in an unlinked table. A walk reaches the leaf through an entry that a TLB still holds.
    /// A pending invalidation of that entry that also reaches the leaf removes both.
    pub(crate) fn add_below(&mut self, stale: Stale) {
        let range = Ipa::new(stale.ipa)..Ipa::new(stale.ipa + stale.size());
        let above = |above: &&Stale| above.root == stale.root && above.kind == Kind::Table && above.overlaps(&range);
        let above: Vec<u64> = self.entries.iter().filter(above).map(|stale| stale.id).collect();
        self.add(stale);
        for issued in self.issued.iter_mut().filter(|issued| issued.vmid.is_none_or(|vmid| vmid == stale.vmid)) {
            let Some(part @ (Part::Stage2 | Part::Both)) = stale.part_in(&issued.reach) else { continue };
            let names = issued.names.iter().filter(|(id, ..)| above.contains(id));
            let on = names.fold(0, |on, (_, cpus, _)| on | cpus);
            issued.names.push((self.added, on, part));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stale> {
        self.entries.iter()
    }

    /// The last entries to go, each with the moment and step of the completion.
    pub(crate) fn gone(&self) -> impl Iterator<Item = &(Stale, Moment, u64)> {
        self.gone.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry of a tree that shares its VMIDs, and keeps the change until every CPU's walks see it. CPUs that are `away`
    /// have not loaded the tree, so a pending invalidation of every VMID reaches what they hold of it.
    pub(crate) fn add_shared(&mut self, stale: Stale, away: CpuSet) {
        self.unseen.push(stale);
        self.add(stale);
        if stale.cpus() & away != 0 {
            for issued in self.issued.iter_mut().filter(|issued| issued.vmid.is_none()) {
                issued.names.push((self.added, issued.cpus & away, Part::Both));
            }
        }
    }

    /// Forgets the changes that every CPU's walks see.
    pub(crate) fn publish(&mut self, published: impl Fn(Moment) -> bool) {
        self.unseen.retain(|stale| !published(stale.changed));
    }

    /// A CPU has loaded a tree, with this VMID. `published` returns whether its walks see a change. Otherwise they may still
    /// find, and cache, what was there before.
    pub(crate) fn load(&mut self, cpu: usize, (vmid, root): (u16, usize), published: impl Fn(Moment) -> bool) {
        for at in 0..self.unseen.len() {
            let unseen = self.unseen[at];
            if unseen.root != root || published(unseen.changed) {
                continue;
            }
            let same = |stale: &&mut Stale| (stale.entry, stale.changed) == (unseen.entry, unseen.changed);
            let combined = if unseen.kind == Kind::Table { 0 } else { 1 << cpu };
            match self.entries.iter_mut().find(same) {
                Some(stale) => {
                    stale.vmid = vmid;
                    stale.stage2 |= 1 << cpu;
                    stale.combined |= combined;
                    let names = self.issued.iter_mut().flat_map(|issued| &mut issued.names);
                    names.filter(|(id, ..)| *id == stale.id).for_each(|(_, on, _)| *on &= !(1 << cpu));
                }
                None => self.add(Stale { vmid, stage2: 1 << cpu, combined, unsynchronized: 0, ..unseen }),
            }
        }
    }

    /// Issues an invalidation on `cpus`. `final_on` returns whether a CPU's walks do not find a stale entry any more: they see
    /// the change; or the CPU has not loaded the tree, and then [`load`](Self::load) adds the entry again.
    pub(crate) fn issue(
        &mut self,
        by: usize,
        vmid: u16,
        reach: &Reach,
        cpus: CpuSet,
        final_on: impl Fn(&Stale, usize) -> bool,
    ) {
        let vmid = Some(vmid).filter(|_| !reach.every_vmid);
        let mut names = Vec::new();
        for stale in self.entries.iter().filter(|stale| vmid.is_none_or(|vmid| vmid == stale.vmid)) {
            let Some(part) = stale.part_in(reach) else { continue };
            let at = |cpu: &usize| cpus >> cpu & 1 == 1 && final_on(stale, *cpu);
            let mut on = (0..8).filter(at).fold(0, |set, cpu| set | 1 << cpu);
            if part == Part::Combined {
                on &= !stale.stage2;
            }
            if on != 0 {
                names.push((stale.id, on, part));
            }
        }
        self.issued.push(Invalidation { by, cpus, vmid, reach: *reach, names });
    }

    /// Notes that an entry in an unlinked table was changed again: an invalidation has to follow this change.
    pub(crate) fn changed_too(&mut self, entry: u64, changed: Moment) {
        let all = self.entries.iter_mut().chain(&mut self.unseen);
        all.filter(|stale| stale.entry == entry).for_each(|stale| stale.changed = changed);
    }

    /// Completes this CPU's invalidations on `cpus`, by a `DSB` for loads and stores.
    pub(crate) fn complete(&mut self, by: usize, cpus: CpuSet, (moment, step): (Moment, u64)) {
        for invalidation in self.issued.iter_mut().filter(|invalidation| invalidation.by == by) {
            let now = invalidation.cpus & cpus;
            invalidation.cpus &= !now;
            for (id, on, part) in &invalidation.names {
                let on = on & now;
                let Ok(at) = self.entries.binary_search_by_key(id, |stale| stale.id) else { continue };
                let stale = &mut self.entries[at];
                let (before, own, was_gone) = (stale.cpus(), 1 << by, stale.is_gone());
                if *part != Part::Combined {
                    stale.stage2 &= !on;
                }
                if *part != Part::Stage2 {
                    stale.combined &= !on;
                }
                if before & own != 0 && (stale.stage2 | stale.combined) & own == 0 {
                    stale.unsynchronized |= own;
                }
                // On other CPUs, this barrier also completes what their own invalidation waits for.
                stale.unsynchronized &= !(on & !own & !(stale.stage2 | stale.combined));
                if !was_gone && stale.is_gone() {
                    if self.gone.len() == MOST_GONE {
                        self.gone.pop_front();
                    }
                    self.gone.push_back((*stale, moment, step));
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

#[cfg(test)]
mod tests {
    use twofold_stage2::Features;
    use twofold_stage2::platform::Tlbi;

    use super::*;
    use crate::walk;

    const VMID: u16 = 3;
    const IPA: u64 = 0x4020_1000;
    const BOTH: CpuSet = 0b11;
    const NOW: (Moment, u64) = (Moment { cpu: 0, time: 2 }, 2);

    fn leaf(level: u8, kind: Kind) -> Stale {
        let ipa = IPA & !(walk::span(level) - 1);
        let moment = Moment { cpu: 0, time: 1 };
        Stale::new((VMID, 0), (ipa, (level, walk::span(level)), 0x8000), (0x4000_07df, kind, true), (moment, 1), BOTH)
    }

    fn with(stale: Stale) -> StaleEntries {
        let mut entries = StaleEntries::default();
        entries.add(stale);
        entries
    }

    /// CPU 0 issues it, for both CPUs; every change was visible before.
    fn issue(entries: &mut StaleEntries, operation: Tlbi, operand: u64) {
        let features = Features::NONE.with_tlbi_level_hint(true);
        let reach = Reach::decode(operation, operand, &features, walk::Format::KIB_4).unwrap();
        entries.issue(0, VMID, &reach, if reach.broadcast { BOTH } else { 1 }, |_, _| true);
    }

    #[test]
    fn stage_2_first_and_what_is_combined_after_it() {
        let mut entries = with(leaf(3, Kind::Leaf));
        issue(&mut entries, Tlbi::Ipas2E1Is, IPA >> 12);
        entries.complete(0, BOTH, NOW);
        assert_eq!(entries.iter().map(Stale::cpus).collect::<Vec<_>>(), [BOTH]);
        issue(&mut entries, Tlbi::VmallE1Is, 0);
        entries.complete(0, BOTH, NOW);
        // CPU 0 still has to synchronize its context.
        assert_eq!(entries.iter().map(|stale| (stale.cpus(), stale.is_gone())).collect::<Vec<_>>(), [(1, true)]);
        entries.synchronize(1);
        assert!(!entries.is_empty());
        entries.synchronize(0);
        assert!(entries.is_empty());
    }

    /// The combined entry can be made again from the stage-2 entry.
    #[test]
    fn what_is_combined_comes_back_while_the_stage_2_entry_is_there() {
        for wait in [false, true] {
            let mut entries = with(leaf(3, Kind::Leaf));
            issue(&mut entries, Tlbi::VmallE1Is, 0);
            if wait {
                entries.complete(0, BOTH, NOW);
            }
            issue(&mut entries, Tlbi::Ipas2E1Is, IPA >> 12);
            entries.complete(0, BOTH, NOW);
            entries.synchronize(0);
            assert_eq!(entries.iter().map(Stale::cpus).collect::<Vec<_>>(), [BOTH], "{wait}");
        }
    }

    #[test]
    fn everything_of_the_vmid_goes_at_once() {
        let mut entries = with(leaf(3, Kind::Leaf));
        entries.add(Stale { vmid: 4, ..leaf(3, Kind::Leaf) });
        issue(&mut entries, Tlbi::VmallS12E1Is, 0);
        assert_eq!(entries.iter().count(), 2, "nothing is removed before the barrier");
        assert!(entries.is_pending(0) && !entries.is_pending(1));
        entries.complete(1, BOTH, NOW);
        assert_eq!(entries.iter().count(), 2, "another CPU's barrier removes nothing");
        entries.complete(0, BOTH, NOW);
        entries.synchronize(0);
        assert_eq!(entries.iter().map(|stale| stale.vmid).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_barrier_completes_as_far_as_it_reaches() {
        let mut entries = with(leaf(3, Kind::Leaf));
        issue(&mut entries, Tlbi::VmallS12E1Is, 0);
        entries.complete(0, 0b01, NOW);
        entries.synchronize(0);
        assert_eq!(entries.iter().map(Stale::cpus).collect::<Vec<_>>(), [0b10]);
        entries.complete(0, BOTH, NOW);
        assert!(entries.is_empty());
    }

    #[test]
    fn a_change_that_walks_do_not_see_yet_is_not_invalidated() {
        let mut entries = with(leaf(3, Kind::Leaf));
        let reach = Reach::decode(Tlbi::VmallS12E1Is, 0, &Features::NONE, walk::Format::KIB_4).unwrap();
        entries.issue(0, VMID, &reach, BOTH, |_, cpu| cpu == 1);
        entries.complete(0, BOTH, NOW);
        assert_eq!(entries.iter().map(Stale::cpus).collect::<Vec<_>>(), [0b01]);
    }

    #[test]
    fn a_table_is_a_walk_entry_and_never_combined() {
        let mut entries = with(leaf(2, Kind::Table));
        issue(&mut entries, Tlbi::Ipas2Le1Is, IPA >> 12);
        entries.complete(0, BOTH, NOW);
        assert_eq!(entries.iter().map(Stale::cpus).collect::<Vec<_>>(), [BOTH], "only leaves are removed");
        issue(&mut entries, Tlbi::Ipas2E1Is, IPA >> 12);
        entries.complete(0, BOTH, NOW);
        entries.synchronize(0);
        assert!(entries.is_empty());
    }

    #[test]
    fn another_address_or_level_is_not_named() {
        for (level, operand, goes) in [
            (3, IPA >> 12, true),
            (3, (IPA >> 12) + 1, false),
            (2, IPA >> 12, true),
            (3, 0b0111 << 44 | IPA >> 12, true),
            (3, 0b0110 << 44 | IPA >> 12, false),
        ] {
            let mut entries = with(leaf(level, Kind::Leaf));
            issue(&mut entries, Tlbi::Ipas2E1Is, operand);
            entries.complete(0, BOTH, NOW);
            issue(&mut entries, Tlbi::VmallE1Is, 0);
            entries.complete(0, BOTH, NOW);
            entries.synchronize(0);
            assert_eq!(entries.is_empty(), goes, "level {level}, {operand:#x}");
        }
    }

    #[test]
    fn one_that_no_cpu_may_hold_is_none() {
        let unheld = Stale { stage2: 0, combined: 0, ..leaf(3, Kind::Leaf) };
        assert!(with(unheld).is_empty());
    }

    #[test]
    fn narrower_ones_are_forgotten_when_there_are_many() {
        let mut entries = with(leaf(3, Kind::Leaf));
        (0..2 * MOST_NARROWER).for_each(|_| entries.add(leaf(3, Kind::Narrower)));
        assert_eq!(entries.iter().count(), MOST_NARROWER + 1);
        assert_eq!(entries.iter().filter(|stale| stale.kind == Kind::Leaf).count(), 1);
        // They are still found by their numbers.
        issue(&mut entries, Tlbi::VmallS12E1Is, 0);
        entries.complete(0, BOTH, NOW);
        entries.synchronize(0);
        assert!(entries.is_empty());
    }

    #[test]
    fn in_words() {
        let stale = leaf(3, Kind::Leaf);
        assert!(stale.held().starts_with("stage-2 and combined entry 0x00000000400007df of level 3 at IPA 0x40201000"));
        assert!(stale.held().contains("CPU 0, 1"), "{}", stale.held());
    }
}
