// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contiguous groups while they live: what changes a whole group, and how a group loses its hint.
//!
//! **Invariant.** When a table's lock is released, each group in it is whole: all of its entries are leaves with the
//! contiguous bit, which map one aligned run of memory, of one memory type, with the same access and without DBM; or none
//! of them has the bit. Only access flags may differ, since hardware sets them in any leaf of a group.
//!
//! While the lock is held, the entries of a group are changed one after the other. Until the flush that follows, a TLB
//! may hold the group as it was, or any of its leaves. So
//!
//! * all leaves of a group lose access, or are unmapped, under one lock, and one flush of the whole group ends both. Until
//!   then an access may use what a leaf allowed before or allows now, as Linux has it at stage 1 (its groups of pages, 2024);
//! * the hint is cleared, and access is added, by break-before-make of the whole group (Arm ARM DDI 0487K.a, D8.16.1). At
//!   level 2 of FEAT_BBM, on a CPU that raises no conflict abort, both are stores to the valid leaves (module `resize`).
//!
//! **A broken group.** Its leaves lose their valid bit and keep the others, so they need no other place. The table's count
//! of busy entries has one for all that a CPU breaks at once, and that CPU finds no other busy entry when it begins
//! ([`Locked::quiet`]). So the broken leaves in its range are its own, and the table stays linked.

use core::ops::Range;

use crate::contiguous::{group_around, group_size};
use crate::counts::Counts;
use crate::lockless_walk::{EntryLocation, Locked, Retry};
use crate::platform::Platform;
use crate::primitive;
use crate::tlb::Scope;
use crate::{Access, Descriptor, Granule, Ipa, IpaRange, Level, Memory, Stage2, cache};

/// The given entries of a locked table, at least one, with the rest of the groups at either end.
#[inline(always)]
pub(crate) fn whole_groups<G: Granule>(locked: &Locked<'_, impl Platform, G>, indexes: Range<usize>) -> Range<usize> {
    if !G::GROUPS {
        return indexes;
    }
    let around = |index| match locked.entry(index).is_contiguous() {
        true => group_around::<G>(index, locked.level),
        false => index..index + 1,
    };
    around(indexes.start).start..around(indexes.end - 1).end
}

/// Whether any of the given entries of a locked table belongs to a group.
pub(crate) fn has_groups<G: Granule>(locked: &Locked<'_, impl Platform, G>, indexes: &Range<usize>) -> bool {
    G::GROUPS && indexes.clone().any(|index| locked.entry(index).is_contiguous())
}

/// The addresses of the group that the leaf at `start` belongs to, or of the leaf itself.
#[inline(always)]
pub(crate) fn leaf_or_group<G: Granule>(entry: Descriptor<G>, start: Ipa, level: Level) -> IpaRange {
    if entry.is_contiguous() {
        let size = group_size::<G>(level);
        start.align_down(size)..start.align_down(size) + size
    } else {
        start..start + G::default().span(level)
    }
}

/// What becomes of a group that is broken.
#[derive(Clone, Copy)]
enum Remake {
    /// Leaves without the hint.
    Ungrouped,
    /// A group that also allows this.
    Wider(Access),
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Clears the hint of all groups that begin in `range` or reach into it. Returns their number.
    pub(crate) fn ungroup_range(&self, range: &IpaRange) -> u64 {
        let mut groups = 0;
        let mut at = range.start;
        while let Some((location, count)) = self.next_groups(&mut at, range.end) {
            let Ok(locked) = self.lock(&location).and_then(Locked::quiet) else { continue };
            let indexes = whole_groups(&locked, location.index..location.index + count);
            groups += self.ungroup_locked(locked, indexes, (at, location.index));
        }
        groups
    }

    /// Calls `pass` after all groups in `range` have lost their hint. Again, as long as `pass` returns that it has met a
    /// group, which another CPU has made meanwhile.
    #[inline(always)]
    pub(crate) fn without_groups(&self, range: &IpaRange, mut pass: impl FnMut() -> bool) {
        loop {
            if G::GROUPS {
                self.ungroup_range(range);
            }
            if !pass() {
                return;
            }
        }
    }

    /// Clears the hint of the group that a walk has found. It may be gone by now.
    #[cold]
    pub(crate) fn ungroup(&self, location: &EntryLocation<'_, G>, ipa: Ipa) {
        if let Ok(locked) = self.lock(location).and_then(Locked::quiet) {
            let indexes = whole_groups(&locked, location.index..location.index + 1);
            self.ungroup_locked(locked, indexes, (ipa, location.index));
        }
    }

    /// The next entries that are in groups, from `at` on and before `end`, in one table: the location of the first, and
    /// how many entries follow up to a table or the end. `at` becomes their address. A group that another CPU has broken
    /// is one too: it may have its hint again.
    ///
    /// What it reads needs no W3: a group that is there during the whole search is in a table that stays linked, and before
    /// the caller changes one, it locks the table (W4).
    pub(crate) fn next_groups(&self, at: &mut Ipa, end: Ipa) -> Option<(EntryLocation<'_, G>, usize)> {
        while *at < end {
            let mut location = self.lockless_walk_out_of_line(*at, Level::L3);
            let (table, start, level) = (location.table, location.index, location.level);
            let shift = self.geometry().granule().span_shift(level);
            let first = at.align_down(1 << shift);
            let wanted = ((end - first - 1) >> shift) as usize + 1;
            let last = table.len().min(start.saturating_add(wanted));
            let last = (start + 1..last).find(|index| table.entry(*index).read().is_table(level)).unwrap_or(last);
            let is_one = |entry: Descriptor<G>| entry.is_contiguous() || entry.is_broken_of_group();
            if let Some(index) = (start..last).find(|index| is_one(table.entry(*index).read())) {
                *at = (*at).max(first + (((index - start) as u64) << shift));
                location.index = index;
                location.cell = table.entry(index);
                return Some((location, last - index));
            }
            *at = first + (((last - start) as u64) << shift);
        }
        None
    }

    /// Clears the hint of the groups at `indexes`, which are whole groups. `known` is an address, and the index of its
    /// entry. Returns the number of groups.
    fn ungroup_locked(&self, mut locked: Locked<'_, P, G>, indexes: Range<usize>, known: (Ipa, usize)) -> u64 {
        if !self.features().resizes_live() {
            return self.remake(locked, indexes, known, Remake::Ungrouped);
        }
        // As in a pass: the stores are relaxed, and a late lockless walk may read them.
        primitive::release_fence();
        let groups = each_group(&mut locked, indexes, Descriptor::is_contiguous, |old, accessed| {
            let new = old.without(Descriptor::CONTIGUOUS);
            if accessed { new.with_accessed() } else { new }
        });
        drop(locked);
        self.publish();
        groups
    }

    /// Gives more access to the group that a walk has found, or sets its access flags. `old` is the leaf that the walk saw.
    /// With `PAGES_ONLY`, clears its hint if it would allow more. Returns [`Retry`] if the group has changed.
    #[cold]
    pub(crate) fn change_group<const PAGES_ONLY: bool>(
        &self,
        location: &EntryLocation<'_, G>,
        (ipa, old): (Ipa, Descriptor<G>),
        access: Access,
    ) -> Result<(), Retry> {
        let wider = old.access().union(access) != old.access();
        if PAGES_ONLY && wider {
            self.ungroup(location, ipa);
            return Err(Retry);
        }
        let mut locked = self.lock(location).and_then(Locked::quiet)?;
        if !location.cell.read().differs_by_records_only(old) {
            return Err(Retry);
        }
        let indexes = group_around::<G>(location.index, location.level);
        let executable = access.execute.any() && !old.access().execute.any();
        if executable || (wider && !self.features().resizes_live()) {
            self.remake(locked, indexes, (ipa, location.index), Remake::Wider(access));
            return Ok(());
        }
        primitive::release_fence();
        let features = self.features();
        each_group(&mut locked, indexes, Descriptor::is_contiguous, |old, _| {
            old.with_more(access, features).with_accessed()
        });
        Ok(())
    }

    /// Break-before-make of the groups at `indexes`.
    fn remake(
        &self,
        mut locked: Locked<'_, P, G>,
        indexes: Range<usize>,
        (ipa, index): (Ipa, usize),
        remake: Remake,
    ) -> u64 {
        let (table, level) = (locked.table, locked.level);
        let span = self.geometry().granule().span(level);
        let start = ipa.align_down(span) - (index - indexes.start) as u64 * span;
        let range = start..start + indexes.len() as u64 * span;
        let mut first = None;
        let groups = each_group(&mut locked, indexes.clone(), Descriptor::is_contiguous, |old, _| {
            first = first.or(Some(old));
            old.without(Descriptor::VALID)
        });
        let Some(first) = first else { return groups };
        locked.counts += Counts::BUSY;
        drop(locked);
        self.tlb().invalidate(&Scope { range, level: Some(level), tables: false });
        if let Remake::Wider(access) = remake
            && access.execute.any()
            && first.attributes(self.features()).memory != Memory::Device
        {
            cache::before_execute(self.platform(), self.features(), (first.address(), group_size::<G>(level)));
        }
        let mut locked = self.lock_whatever(table.pa(), table.len(), level);
        primitive::release_fence();
        each_group(&mut locked, indexes, Descriptor::is_broken_of_group, |old, accessed| {
            let valid = Descriptor::from_raw(old.raw() | Descriptor::VALID);
            match remake {
                Remake::Ungrouped if accessed => valid.without(Descriptor::CONTIGUOUS).with_accessed(),
                Remake::Ungrouped => valid.without(Descriptor::CONTIGUOUS),
                Remake::Wider(access) => valid.with_more(access, self.features()).with_accessed(),
            }
        });
        locked.counts -= Counts::BUSY;
        drop(locked);
        self.publish();
        groups
    }
}

/// Changes the leaves of each group at `indexes` whose entries `is_one`. `change` also learns whether any leaf of the group
/// has its access flag. Returns the number of groups.
///
/// Plain stores: no leaf of a group has DBM, so hardware can add no more than an access flag. Relaxed, after the caller's
/// release fence.
fn each_group<P: Platform, G: Granule>(
    locked: &mut Locked<'_, P, G>,
    indexes: Range<usize>,
    is_one: impl Fn(Descriptor<G>) -> bool,
    mut change: impl FnMut(Descriptor<G>, bool) -> Descriptor<G>,
) -> u64 {
    let mut groups = 0;
    let mut index = indexes.start;
    while index < indexes.end {
        let group = group_around::<G>(index, locked.level);
        index = group.end;
        if !is_one(locked.entry(group.start)) {
            continue;
        }
        let accessed = group.clone().any(|index| locked.entry(index).is_accessed());
        for index in group.clone() {
            let cell = locked.table.entry(index);
            let old = cell.read();
            let new = change(old, accessed);
            locked.counts -= Counts::of(old, locked.level);
            locked.counts += Counts::of(new, locked.level);
            cell.set(new);
        }
        groups += 1;
    }
    groups
}
