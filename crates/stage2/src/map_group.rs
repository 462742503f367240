// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping a contiguous group, where nothing is mapped or where its leaves are mapped one by one.
//!
//! All entries of a group are in one table, and are written under its lock. Where one of them was valid, or is stale and
//! not flushed, or caches need maintenance, they all become busy first. They count as one busy entry (module `group`).

use core::ops::Range;

use crate::cache::CacheMaintenance;
use crate::contiguous::{MOST_GROUPED, group_around, group_size};
use crate::counts::Counts;
use crate::lockless_walk::{EntryLocation, Locked};
use crate::platform::Platform;
use crate::primitive;
use crate::tlb::Scope;
use crate::withdraw::Sample;
use crate::{
    Attributes, Contiguous, Descriptor, Error, Grant, Granule, Ipa, Kib4, Level, Memory, Pa, Stage2, TableSource, cache,
};

/// What [`Grant::map_group`] found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Grouped<G: Granule = Contiguous<Kib4>> {
    /// Nothing was mapped. The group is now.
    New,
    /// Leaves of the group were mapped one by one, all or some. Now they are the group, with its attributes.
    Joined,
    /// This group, or a block above it, maps the same already. This is the leaf at the group's address.
    Already(Descriptor<G>),
}

/// The entries of a group before it is mapped.
struct Before {
    /// Some are not mapped.
    holes: bool,
    /// Some are leaves.
    leaves: bool,
    /// Some are stale, and the flush of what was there may be pending.
    unflushed: bool,
}

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// Maps the first part of the grant by one contiguous group of leaves of `level`. Leaves that map the same memory are
    /// joined. Calls `dirty` with the address of each joined leaf in which hardware had recorded a write.
    ///
    /// Both addresses must be aligned to the group's size ([`Contiguous`]), and the grant must cover the group.
    ///
    /// # Errors
    ///
    /// As [`map`](Grant::map), and
    ///
    /// * [`Error::NoGroupAtLevel`] if leaves of `level` make no groups, the IPA space is smaller than one, or the tables
    ///   are not of a type with groups;
    /// * [`Error::GroupWithDbm`] if `attributes` has DBM;
    /// * [`Error::NotOneGroup`] if other memory is mapped there. Unmap it first.
    pub fn map_group(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Ipa),
    ) -> Result<Grouped<G>, Error> {
        self.check(group_size::<G>(level))?;
        self.stage2.map_group_to((self.ipa, self.pa), self.sample, level, attributes, tables, Some(dirty))
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// [`Grant::map_group`], for memory that is known to be granted. Without `dirty`, no leaf with DBM is joined
    /// ([`Error::NotOneGroup`]).
    pub(crate) fn map_group_to(
        &self,
        (ipa, pa): (Ipa, Pa),
        sample: Sample,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        mut dirty: Option<&mut dyn FnMut(Ipa)>,
    ) -> Result<Grouped<G>, Error> {
        self.check_leaf(ipa, pa, level)?;
        self.check_group((ipa, pa), level)?;
        attributes.check::<G>(self.features())?;
        if attributes.dirty_by_hardware {
            return Err(Error::GroupWithDbm);
        }
        let new = Descriptor::leaf(pa, level, attributes, self.features()).with_contiguous();
        self.give_deferred(tables);
        self.note_memory(attributes.memory);
        loop {
            let location = self.lockless_walk_out_of_line(ipa, level);
            self.check_sample(sample, &location, ipa)?;
            let old = location.entry;
            if location.level == level {
                if let Some(done) = self.fill_group(&location, ipa, new, &mut dirty) {
                    return done;
                }
            } else if old.is_leaf(location.level) {
                let start = ipa.align_down(self.geometry().granule().span(location.level));
                if old.address() + (ipa - start) == new.address() && old.memory_bits() == new.memory_bits() {
                    // W3: the walk has done it for an entry above `level`.
                    return Ok(Grouped::Already(old));
                }
                self.split_block(start, &location, location.level.below().unwrap_or(level), tables)?;
            } else if old.is_vacant() {
                self.add_table(&location, ipa, tables)?;
            } else {
                self.platform().pause(1);
            }
        }
    }

    /// Whether a group of `level` may map `ipa` to `pa`, which are aligned for a leaf.
    #[inline(always)] // a constant for tables without groups
    pub(crate) fn check_group(&self, (ipa, pa): (Ipa, Pa), level: Level) -> Result<(), Error> {
        let size = self.geometry().group_size(level).ok_or(Error::NoGroupAtLevel { level })?;
        if !ipa.is_aligned(size) {
            return Err(Error::Misaligned { address: ipa.raw(), size });
        }
        if !pa.is_aligned(size) {
            return Err(Error::Misaligned { address: pa.raw(), size });
        }
        Ok(())
    }

    /// Makes the group whose first entry a walk has found. Returns `None` if the caller has to walk again.
    fn fill_group(
        &self,
        location: &EntryLocation<'_, G>,
        ipa: Ipa,
        new: Descriptor<G>,
        dirty: &mut Option<&mut dyn FnMut(Ipa)>,
    ) -> Option<Result<Grouped<G>, Error>> {
        let (table, level, features) = (location.table, location.level, self.features());
        let mut locked = self.lock(location).and_then(Locked::quiet).ok()?;
        let indexes = group_around::<G>(location.index, level);
        let before = match look(&locked, indexes.clone(), ipa, new, dirty.is_some()) {
            Ok(Some(before)) => before,
            Ok(None) => return Some(Ok(Grouped::Already(locked.entry(indexes.start)))),
            Err(error) => return Some(Err(error)),
        };
        let attributes = new.attributes(features);
        if attributes.memory != Memory::Normal {
            locked.note_other_memory();
        }
        let all = CacheMaintenance::new(features, &attributes);
        let maintenance = if before.holes { all } else { all.cleaned() };
        let span = self.geometry().granule().span(level);
        // The entries of before, for all ways on from here: the counts have none of them any more.
        for index in indexes.clone() {
            locked.counts -= Counts::of(locked.entry(index), level);
        }
        let mut written = 0u128;
        if before.leaves || before.unflushed || maintenance.is_needed() {
            for (number, index) in indexes.clone().enumerate() {
                let cell = table.entry(index);
                // With DBM, hardware may record a write at any moment: an exchange returns the last record.
                if !cell.read().is_hardware_tracked() {
                    cell.set(Descriptor::BUSY);
                } else if cell.exchange(Descriptor::BUSY, self.platform()).is_hardware_dirty() {
                    written |= 1 << number;
                }
            }
            locked.counts += Counts::BUSY;
            drop(locked);
            let size = group_size::<G>(level);
            if before.leaves || before.unflushed {
                // Above level 3 a stale entry may have been a table.
                let tables = before.unflushed && level < Level::L3;
                let range = ipa..ipa + size;
                self.tlb().invalidate(&Scope { range, level: (!tables).then_some(level), tables });
            }
            cache::before_map(self.platform(), features, (new.address(), size), maintenance);
            locked = self.lock_whatever(table.pa(), table.len(), level);
            locked.counts -= Counts::BUSY;
        }
        // Frames and their content are visible before a walk can find them: the stores are relaxed.
        primitive::release_fence();
        table.fill(indexes.start, indexes.len(), new, span);
        locked.counts += Counts::of(new, level).times(indexes.len() as u64);
        drop(locked);
        self.publish();
        if let Some(dirty) = dirty {
            let numbers = (0..MOST_GROUPED as u64).filter(|number| written >> number & 1 == 1);
            numbers.for_each(|number| dirty(ipa + number * span));
        }
        Some(Ok(if before.leaves { Grouped::Joined } else { Grouped::New }))
    }
}

/// What the entries of a group at `ipa` hold, in a table without busy entries: `None` if they are the group `new` already,
/// or one that allows more. An error if one of them cannot be joined, as those with DBM unless `joins_tracked`.
fn look<G: Granule>(
    locked: &Locked<'_, impl Platform, G>,
    indexes: Range<usize>,
    ipa: Ipa,
    new: Descriptor<G>,
    joins_tracked: bool,
) -> Result<Option<Before>, Error> {
    let (level, span) = (locked.level, G::default().span(locked.level));
    let mut before = Before { holes: false, leaves: false, unflushed: false };
    let mut grouped = true;
    for (number, index) in indexes.enumerate() {
        let old = locked.entry(index);
        let at = number as u64 * span;
        if old.is_table(level) {
            return Err(Error::TableInTheWay { ipa: ipa + at, level });
        }
        if old.is_vacant() {
            before.holes = true;
            before.unflushed |= locked.stage2.is_unflushed(old, 0);
        } else if old.is_hardware_tracked() && !joins_tracked || !old.maps_as(new.advanced(at)) {
            return Err(Error::NotOneGroup { ipa: ipa + at, level });
        } else {
            before.leaves = true;
            grouped &= old.is_contiguous() && old.access().union(new.access()) == old.access();
        }
    }
    Ok((before.holes || !grouped).then_some(before))
}
