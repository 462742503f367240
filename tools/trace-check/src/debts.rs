// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debts: entries whose old value a TLB may still hold, and which are due to be flushed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

use super::entries::{Entry, span_of};
use super::frames::Frames;
use super::tables::Position;

/// An entry that was broken or downgraded, and is not flushed yet.
#[derive(Clone, Copy)]
pub struct Debt {
    /// The root of the entry's tree.
    pub tree: u64,
    /// The event that changed the entry, or that wrote it last in an unlinked table.
    pub at: usize,
    pub vmid: u16,
    pub ipa: u64,
    pub level: u32,
    pub kind: Kind,
    /// Whether the entry was a table descriptor: operations for the last level do not remove it.
    pub table: bool,
    /// The old value.
    pub entry: Entry,
    /// The CPU that changed the entry and must flush it; `None` if the CPU that unlinked the table flushes it.
    pub cpu: Option<u32>,
    /// The event that completed the invalidation of stage 2.
    pub invalidated: Option<usize>,
}

/// The change of the entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The entry became invalid. `group`: the event that broke it, or that broke a table above it.
    Broken { group: usize },
    /// The entry is valid, and allows less access.
    Downgrade,
}

impl Debt {
    pub fn new(place: Position, vmid: u16, entry: Entry, at: usize, cpu: Option<u32>, kind: Kind) -> Self {
        let (tree, level, table) = (place.tree, place.level, entry.table_at(place.level).is_some());
        Self { tree, at, vmid, ipa: place.ipa, level, kind, table, entry, cpu, invalidated: None }
    }

    /// Returns whether `new` restores the broken leaf, except for fields that may change without a break. If so, the
    /// old TLB entry is as harmless as after such a change in place (Arm ARM DDI 0487K.a, D8.16.1).
    pub fn is_undone_by(&self, place: Position, new: Entry) -> bool {
        let same_place = (self.ipa, self.level) == (place.ipa, place.level);
        same_place
            && !self.table
            && self.kind == Kind::Broken { group: self.at }
            && !self.entry.needs_break_before(new, self.level)
    }

    /// Returns whether the old leaf mapped the page at `pa`.
    pub fn maps(&self, pa: u64) -> bool {
        self.entry.output_at(self.level).is_some_and(|output| output.contains(&pa))
    }

    /// Returns the addresses that the old entry translated.
    #[cfg(test)]
    pub fn range(&self) -> Range<u64> {
        self.ipa..self.ipa + span_of(self.level)
    }

    pub fn group(&self) -> Option<usize> {
        match self.kind {
            Kind::Broken { group } => Some(group),
            Kind::Downgrade => None,
        }
    }
}

/// Names the entry and the missing step.
impl fmt::Display for Debt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.table { "the table" } else { "the leaf" };
        write!(f, "{what} of level {} at IPA {:#x} is not flushed: ", self.level, self.ipa)?;
        f.write_str(match self.invalidated {
            None => "no TLBI that names it between DSB ISHST and DSB ISH",
            Some(_) => "no VMALLE1IS and DSB ISH after its TLBI was complete",
        })
    }
}

/// All debts, indexed by place.
#[derive(Clone, Default)]
pub struct Debts {
    /// For each level: debts by tree, address and event.
    levels: [BTreeMap<(u64, u64, usize), Debt>; 4],
    /// The number of debts of each group.
    groups: HashMap<usize, usize>,
    /// The memory that the broken leaves mapped.
    frames: Frames,
}

impl Debts {
    pub fn add(&mut self, debt: Debt) {
        let before = self.levels[debt.level as usize].insert((debt.tree, debt.ipa, debt.at), debt);
        if before.is_none()
            && let Some(group) = debt.group()
        {
            *self.groups.entry(group).or_default() += 1;
            self.frames.map(debt.entry, debt.level);
        }
    }

    /// Returns a debt of this group.
    pub fn of_group(&self, group: usize) -> Option<&Debt> {
        self.groups.contains_key(&group).then(|| self.iter().find(|debt| debt.group() == Some(group)))?
    }

    /// Returns a debt of a leaf that mapped the page at `pa`.
    pub fn over(&self, pa: u64) -> Option<&Debt> {
        self.frames.leaf_over(pa)?;
        self.iter().find(|debt| debt.group().is_some() && debt.maps(pa))
    }

    /// Removes and returns the debts of a tree that overlap `range` and are `wanted`.
    pub fn take(&mut self, tree: u64, range: &Range<u64>, mut wanted: impl FnMut(&Debt) -> bool) -> Vec<Debt> {
        let mut taken = Vec::new();
        for (level, debts) in self.levels.iter_mut().enumerate() {
            if debts.is_empty() {
                continue;
            }
            let first = range.start & !(span_of(level as u32) - 1);
            let inside = (tree, first, 0)..(tree, range.end, 0);
            let before = taken.len();
            taken.extend(debts.range(inside).map(|(_, debt)| *debt).filter(|debt| wanted(debt)));
            for debt in &taken[before..] {
                debts.remove(&(debt.tree, debt.ipa, debt.at));
            }
        }
        for debt in &taken {
            let Some(group) = debt.group() else { continue };
            self.frames.unmap(debt.entry, debt.level);
            if let Some(count) = self.groups.get_mut(&group) {
                *count -= 1;
                if *count == 0 {
                    self.groups.remove(&group);
                }
            }
        }
        taken
    }

    /// Returns the trees that have debts.
    pub fn trees(&self) -> Vec<u64> {
        let mut trees: Vec<u64> = Vec::new();
        for debts in &self.levels {
            let mut from = 0;
            while let Some(((tree, ..), _)) = debts.range((from, 0, 0)..).next() {
                trees.push(*tree);
                from = tree + 1;
            }
        }
        trees.sort_unstable();
        trees.dedup();
        trees
    }

    fn iter(&self) -> impl Iterator<Item = &Debt> {
        self.levels.iter().flat_map(BTreeMap::values)
    }
}
