// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contiguous groups (Arm ARM DDI 0487K.a, D8.7.1): what is whole, and what TLBs may hold of one.
//!
//! A TLB may hold a group as one entry, made of any of its descriptors. So a change of one descriptor leaves two stale
//! entries: the leaf by itself, and the group as that leaf would give it.
//!
//! Invariant: while no CPU holds the lock of a table, each group in it is whole. A descriptor that is not like the others
//! of its group would be reached through them, even after it was invalidated.

use super::breach::Rule;
use super::clock::Moment;
use super::model::{Broken, Model, Outcome};
use super::shape::{ACCESSED, DIRTY_BY_HARDWARE};
use super::stale::{Kind, Stale};
use super::tables::{Root, TablePosition};
use crate::walk::{CONTIGUOUS, Shape};

impl Model {
    /// A descriptor of a linked table was changed. If it is in a group, or was, the group is checked when the lock is released.
    pub(super) fn note_group(&mut self, cpu: usize, place: TablePosition, pa: u64, (old, new): (u64, u64)) {
        let valid = |raw| self.is_grouped(raw, place.level);
        if (valid(old) || valid(new)) && !self.cpus[cpu].groups.contains(&(place, pa)) {
            self.cpus[cpu].groups.push((place, pa));
        }
    }

    /// Checks the groups that this CPU has changed in a table, whose lock it releases.
    pub(super) fn check_groups(&mut self, cpu: usize, page: u64) -> Outcome {
        let (here, others) = std::mem::take(&mut self.cpus[cpu].groups)
            .into_iter()
            .partition(|(_, pa)| self.tables.locked_by(pa & !(self.format.page() - 1)) == page);
        self.cpus[cpu].groups = others;
        let here: Vec<(TablePosition, u64)> = here;
        here.into_iter().try_for_each(|(place, pa)| self.check_group(place, pa))
    }

    /// Checks the group of the descriptor at `pa`: all of its descriptors are alike, or none has the contiguous bit.
    pub(super) fn check_group(&self, place: TablePosition, pa: u64) -> Outcome {
        let level = place.level;
        let length = self.format.group(level);
        let first = pa & !(length * 8 - 1);
        let base = self.read(first);
        let span = self.format.span(level);
        for (number, at) in (0..length).zip((first..).step_by(8)) {
            let raw = self.read(at);
            if !self.is_grouped(raw, level) && !self.is_grouped(base, level) {
                continue;
            }
            let alike = self.is_grouped(raw, level)
                && (raw ^ base) & !(ACCESSED | self.format.address_field()) == 0
                && self.format.address(raw, level) == self.format.address(base, level) + number * span;
            let aligned = self.format.address(base, level).is_multiple_of(length * span);
            let is_one = length > 1 && self.fits_in_table(place, length);
            if !(alike && aligned && is_one) || raw & DIRTY_BY_HARDWARE != 0 {
                let what =
                    format!("{raw:#018x} of level {level} is in a contiguous group that begins with {base:#018x}");
                return Err(Broken::new(Rule::MixedGroup, what).at(place.ipa_of(at, self.format), &[at, first]));
            }
        }
        Ok(())
    }

    /// Whether a descriptor is a leaf with the contiguous bit.
    pub(super) fn is_grouped(&self, raw: u64, level: u8) -> bool {
        raw & CONTIGUOUS != 0 && self.format.shape(raw, level) == Shape::Leaf
    }

    /// Whether a TLB may hold the descriptors as one entry, which is of another size than the leaf by itself: two such
    /// descriptors replace each other only by a break, or at level 2 of FEAT_BBM.
    pub(super) fn regroups(&self, old: u64, new: u64, level: u8) -> bool {
        self.format.shape(old, level) == Shape::Leaf
            && self.format.shape(new, level) == Shape::Leaf
            && (old ^ new) & CONTIGUOUS != 0
    }

    /// Adds a changed leaf: by itself and, if it was in a group, as the group that a TLB may hold.
    pub(super) fn add_stale_leaf(
        &mut self,
        root: &Root,
        number: usize,
        (ipa, level, pa): (u64, u8, u64),
        (raw, kind, removed): (u64, Kind, bool),
        moment: Moment,
    ) {
        if !self.is_grouped(raw, level) {
            return self.add_stale(root, number, (ipa, level, pa), (raw, kind, removed), moment);
        }
        // Hardware may have set the access flag of another leaf of the group.
        let raw = raw | ACCESSED;
        self.add_stale(root, number, (ipa, level, pa), (raw, kind, removed), moment);
        let size = self.format.group(level) * self.format.span(level);
        let start = ipa & !(size - 1);
        let first = self.format.moved_back(raw, level, ipa - start);
        let place = (start, (level, size), pa);
        let group = Stale::new((root.vmid, number), place, (first, kind, removed), (moment, self.step), root.exposed);
        self.add_stale_entry(root, group);
    }

    fn fits_in_table(&self, place: TablePosition, length: u64) -> bool {
        let root = self.tables.root(place.root);
        place.level != root.level || root.entries as u64 >= length
    }
}
