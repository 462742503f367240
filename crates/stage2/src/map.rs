// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping one leaf, a page or a block, with the table pages that lead to it.
//!
//! What the entry held before decides what happens:
//!
//! * *Invalid*: the new entry is written at once. The architecture caches no entry that causes a translation fault, so
//!   no TLB invalidation is needed.
//! * *Stale* (`Descriptor::STALE` and `STALE_COUNTED`): something was removed here. If its flush may still be pending, the
//!   address is invalidated first. Otherwise the entry is as good as an invalid one.
//! * *A leaf of another output address or memory type*: break-before-make (Arm ARM DDI 0487K.a, D8.16.1). The entry
//!   becomes busy; then come flush, cache maintenance, and the new entry.
//! * *A block, where a smaller leaf is to be mapped*: the block is first replaced, also by break-before-make, with a
//!   table that maps the same memory.
//!
//! Several CPUs may fault on the same address at once. One of them finds the entry invalid, and maps. The others find
//! the leaf ([`Mapped::Already`]); they clean no cache and keep no table page. A table page is taken before the lock,
//! and given back if another CPU has linked a table meanwhile.

use crate::cache::CacheMaintenance;
use crate::counts::Counts;
use crate::lockless_walk::{EntryLocation, Retry};
use crate::platform::{Domain, Platform};
use crate::primitive::{self, Claim};
use crate::tlb::Scope;
use crate::withdraw::Sample;
use crate::{
    Attributes, Descriptor, Error, Grant, Granule, Ipa, Kib4, Leaf, Level, Memory, Pa, Stage2, TableMetadata,
    TablePage, TableSource, Unwatched, cache, frame,
};

/// What [`Grant::map`] found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Mapped<G: Granule = Kib4> {
    /// No leaf was there. The leaf is now mapped.
    New,
    /// Another leaf was there, and was replaced by break-before-make. This is its last value, with what hardware had
    /// recorded in it.
    Replaced(Descriptor<G>),
    /// The same output address is mapped already, by this leaf, which is of the wanted level or above. Nothing was
    /// changed. To allow more access, call [`Stage2::relax`].
    Already(Descriptor<G>),
}

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// Maps the first part of the grant with one leaf of `level`: a page at level 3, a block above.
    ///
    /// Both addresses must be aligned to the leaf's size, and the grant must cover the whole leaf. `tables` is asked
    /// for a page only if a table is missing.
    ///
    /// The CPU that installs the leaf does the cache maintenance that it needs, before the leaf is valid (Wang 2021:
    /// clean on map). The caller writes the frame's content before this call.
    ///
    /// # Errors
    ///
    /// * [`Error::Misaligned`], [`Error::OutsideIpa`], [`Error::OutsidePa`] or [`Error::NoLeafAtLevel`] if the
    ///   addresses or the level do not fit.
    /// * [`Error::NotGranted`] if the leaf is larger than the grant.
    /// * [`Error::ExecuteNeedsXnx`] if the access needs FEAT_XNX.
    /// * [`Error::TableInTheWay`] if smaller leaves are mapped there: [`coalesce`](Self::coalesce) replaces them.
    /// * [`Error::NoTablePage`] if `tables` is empty. The same call may be repeated.
    /// * [`Error::Withdrawn`] if lent memory was [withdrawn](Stage2::withdraw) since the grant was made, this memory or
    ///   another. Get the grant again. A [window](Stage2::open) is never withdrawn.
    #[inline(always)]
    pub fn map(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        self.check(self.stage2.geometry().granule().span(level))?;
        self.stage2.map_to(self.ipa, self.pa, self.sample, level, attributes, tables)
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// [`Grant::map`], for memory that is known to be granted.
    #[inline(always)] // the fast path, which only fills an entry, is short if the level is a constant
    pub(crate) fn map_to(
        &self,
        ipa: Ipa,
        pa: Pa,
        sample: Sample,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        self.check_leaf(ipa, pa, level)?;
        attributes.check::<G>(self.features())?;
        let new = Descriptor::leaf(pa, level, attributes, self.features());
        if attributes.memory != Memory::Normal {
            return self.map_slowly::<true>(ipa, new, sample, level, tables);
        }
        if !CacheMaintenance::new(self.features(), attributes).is_needed() {
            // The sample is W1, so W4 is also M3.
            let walked = match sample.snapshot() {
                Some(then) => self.lockless_walk_since(then, ipa, level),
                None => Ok(self.lockless_walk(ipa, level)),
            };
            if let Ok(location) = walked
                && location.level == level
                && location.entry == Descriptor::INVALID
                && let Ok(mut locked) = self.lock(&location)
                && location.cell.read() == Descriptor::INVALID
            {
                locked.make(location.cell, new);
                drop(locked);
                self.publish();
                return Ok(Mapped::New);
            }
        }
        self.map_slowly::<false>(ipa, new, sample, level, tables)
    }

    /// The slow path of [`map_to`](Self::map_to): tables are missing, the entry is not invalid, caches need
    /// maintenance, or the memory is `OTHER` than normal.
    #[cold]
    #[inline(never)]
    fn map_slowly<const OTHER: bool>(
        &self,
        ipa: Ipa,
        new: Descriptor<G>,
        sample: Sample,
        level: Level,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        // Decoded from the descriptor: keeping the attributes alive would slow down the fast path.
        let maintenance = CacheMaintenance::new(self.features(), &new.attributes(self.features()));
        self.map_with::<OTHER>(ipa, new, sample, level, maintenance, tables)
    }

    /// Maps with the given cache maintenance. `OTHER`: the memory is not normal.
    pub(crate) fn map_with<const OTHER: bool>(
        &self,
        ipa: Ipa,
        new: Descriptor<G>,
        sample: Sample,
        level: Level,
        maintenance: CacheMaintenance,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        loop {
            let location = self.lockless_walk_out_of_line(ipa, level);
            self.check_sample(sample, &location, ipa)?; // M3
            let old = location.entry;
            if old.is_leaf(location.level) {
                let inside = ipa - ipa.align_down(self.geometry().granule().span(location.level));
                if old.address() + inside == new.address() && old.memory_bits() == new.memory_bits() {
                    if self.is_still_linked(&location) {
                        return Ok(Mapped::Already(old));
                    }
                } else if old.is_contiguous() {
                    self.ungroup(&location, ipa);
                } else if location.level < level {
                    let below = location.level.below().unwrap_or(level);
                    let start = ipa.align_down(self.geometry().granule().span(location.level));
                    self.split_block(start, &location, below, tables)?;
                } else if let Ok(mapped) = self.fill_entry::<OTHER>(&location, ipa, new, maintenance) {
                    return Ok(mapped);
                }
            } else if old.is_vacant() && location.level < level {
                self.add_table(&location, ipa, tables)?;
            } else if old.is_vacant() {
                if let Ok(mapped) = self.fill_entry::<OTHER>(&location, ipa, new, maintenance) {
                    return Ok(mapped);
                }
            } else if old.is_table(location.level) {
                if self.is_still_linked(&location) {
                    return Err(Error::TableInTheWay { ipa, level });
                }
            } else {
                // Busy: another CPU is changing it.
                self.platform().pause(1);
            }
        }
    }

    /// Makes the entry of `location`, which must still hold what the walk saw there. Otherwise returns [`Retry`].
    fn fill_entry<const OTHER: bool>(
        &self,
        location: &EntryLocation<'_, G>,
        ipa: Ipa,
        new: Descriptor<G>,
        maintenance: CacheMaintenance,
    ) -> Result<Mapped<G>, Retry> {
        let mut locked = self.lock(location)?;
        if !location.cell.read().differs_by_records_only(location.entry) {
            return Err(Retry);
        }
        if OTHER {
            self.note_memory(new.attributes(self.features()).memory);
            locked.note_other_memory();
        }
        let span = self.geometry().granule().span(location.level);
        let was_there = location.entry.is_valid();
        let unflushed = !was_there && self.is_unflushed(location.entry, 0);
        // Cleaning one page takes little time, so the table stays locked. Anything longer makes the entry busy and
        // unlocks the table.
        if !was_there && !unflushed && (location.level == Level::L3 || !maintenance.is_needed()) {
            cache::before_map(self.platform(), self.features(), (new.address(), span), maintenance);
            locked.make(location.cell, new);
            drop(locked);
            self.publish();
            return Ok(Mapped::New);
        }
        let busy = locked.make_busy(location.cell)?;
        let old = busy.old;
        let mut maintenance = maintenance;
        if was_there {
            self.tlb().invalidate(&Scope { range: ipa..ipa + span, level: Some(location.level), tables: false });
            if old.address() != new.address() {
                let leaf = Leaf { ipa, level: location.level, descriptor: old };
                self.report_removed(leaf, &mut Unwatched, self.removal_id::<Unwatched>());
            } else if !old.has_memory_of(new) {
                maintenance = maintenance.with_cleaning();
            }
        } else if unflushed {
            self.flush_stale(ipa, location.level);
        }
        cache::before_map(self.platform(), self.features(), (new.address(), span), maintenance);
        busy.make(new);
        self.publish();
        Ok(if was_there { Mapped::Replaced(old) } else { Mapped::New })
    }

    /// Links an empty table at a vacant entry. Gives its page back if another CPU has filled the entry meanwhile.
    pub(crate) fn add_table(
        &self,
        location: &EntryLocation<'_, G>,
        ipa: Ipa,
        tables: &mut impl TableSource<G>,
    ) -> Result<(), Error> {
        let below = location.level.below().ok_or(Error::NoLeafAtLevel { level: location.level })?;
        self.give_deferred(tables);
        let Some(page) = frame::take(tables) else {
            let gone = location.cell.read() != location.entry;
            return if gone { Ok(()) } else { Err(Error::NoTablePage { ipa, level: below }) };
        };
        page.zero(self.platform());
        self.set_counts(&page, Counts::EMPTY, false);
        // The table maps nothing, so nothing of it can be withdrawn.
        if let Err(page) = self.link(ipa, location, page, Sample::NONE) {
            frame::give(tables, page);
        }
        Ok(())
    }

    /// Links a table at `ipa`'s entry, which the caller's walk has found. Returns `Err` with the page if the entry is no
    /// longer vacant, or if what the table maps was withdrawn since `sample`.
    ///
    /// If tables were unlinked since the caller's walk, which may be long ago, it walks again.
    pub(crate) fn link(
        &self,
        ipa: Ipa,
        found: &EntryLocation<'_, G>,
        page: TablePage<G>,
        sample: Sample,
    ) -> Result<(), TablePage<G>> {
        let new = Descriptor::table(page.pa());
        let mut location = *found;
        loop {
            if let Ok(mut locked) = self.lock(&location) {
                let old = location.cell.read();
                if location.level != found.level || !old.is_vacant() {
                    return Err(page);
                }
                // From here on the page belongs to the tree.
                if !self.is_unflushed(old, 0) {
                    locked.make(location.cell, new);
                    drop(locked);
                    self.publish();
                    return Ok(());
                }
                if let Ok(busy) = locked.make_busy(location.cell) {
                    self.flush_stale(ipa, location.level);
                    busy.make(new);
                    self.publish();
                    return Ok(());
                }
            }
            location = self.lockless_walk_out_of_line(ipa, found.level);
            if self.check_sample(sample, &location, ipa).is_err() {
                return Err(page);
            }
        }
    }

    /// Whether this vacant entry is stale, and the remover's flush may still be pending. `own` removals are the caller's. The
    /// caller has the table's lock, and has read the entry under it.
    #[inline(always)]
    pub(crate) fn is_unflushed(&self, vacant: Descriptor<G>, own: u64) -> bool {
        vacant != Descriptor::INVALID && (vacant == Descriptor::STALE || self.pending_removals.others(own))
    }

    /// Invalidates a stale entry of `level`: the leaf or table that it held was removed, and the remover's flush may
    /// still be pending.
    #[cold]
    fn flush_stale(&self, ipa: Ipa, level: Level) {
        let span = self.geometry().granule().span(level);
        let start = ipa.align_down(span);
        let leaf = (level == Level::L3).then_some(level);
        self.tlb().invalidate(&Scope { range: start..start + span, level: leaf, tables: level < Level::L3 });
    }

    /// Checks that a leaf of `level` may map `ipa` to `pa`.
    #[inline(always)]
    pub(crate) fn check_leaf(&self, ipa: Ipa, pa: Pa, level: Level) -> Result<(), Error> {
        if !self.geometry().has_leaves(level) {
            return Err(Error::NoLeafAtLevel { level });
        }
        let size = self.geometry().granule().span(level);
        // An aligned leaf is inside as a whole if its first byte is.
        let (ipa_bits, pa_bits) = (self.geometry().ipa_bits(), self.geometry().pa_bits());
        if (ipa.raw() | pa.raw()) & (size - 1) == 0 && ipa.raw() >> ipa_bits == 0 && pa.raw() >> pa_bits == 0 {
            return Ok(());
        }
        Err(why_no_leaf((ipa, ipa_bits), (pa, pa_bits), size))
    }

    /// Makes new entries visible to table walks. Without this barrier the guest might fault once more.
    #[inline(always)]
    pub(crate) fn publish(&self) {
        primitive::dsb(self.platform(), Domain::IshSt);
        primitive::claim(Claim::Visible);
    }

    /// Sets the counts of a table that is not linked yet, and whether it holds leaves that are not normal memory.
    pub(crate) fn set_counts(&self, page: &TablePage<G>, counts: Counts, other_memory: bool) {
        let metadata = self.platform().metadata(page.pa());
        metadata.reset(counts, self.platform());
        metadata.set_link(if other_memory { TableMetadata::OTHER_MEMORY } else { 0 });
    }
}

/// The error for a leaf of `size` bytes whose addresses do not fit.
#[cold]
fn why_no_leaf((ipa, ipa_bits): (Ipa, u32), (pa, pa_bits): (Pa, u32), size: u64) -> Error {
    if let Some(address) = [ipa.raw(), pa.raw()].into_iter().find(|address| address & (size - 1) != 0) {
        Error::Misaligned { address, size }
    } else if ipa.raw() >> ipa_bits != 0 {
        Error::OutsideIpa { ipa, bits: ipa_bits }
    } else {
        Error::OutsidePa { pa, bits: pa_bits }
    }
}
