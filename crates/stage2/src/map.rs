// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping: a page or a block, with the table pages that lead to it.
//!
//! From nothing to something needs no TLB invalidation: the architecture caches no entry that faults for
//! translation. But where something was removed and the flush may still be pending, it has to come first
//! (`Descriptor::STALE`). From something to something else goes by break-before-make (Arm ARM D8.16.1): invalid, flush,
//! cache maintenance, then the new entry. A block that is in the way of a smaller mapping is first replaced,
//! by the same rule, with a table that maps what it mapped.
//!
//! Several CPUs may fault for the same address at once. One of them finds nothing and maps; the others find it mapped
//! ([`Mapped::Already`]), and have cleaned no cache and kept no table page: pages are taken before the lock, and
//! go back if somebody else was faster.

use crate::cache::Upkeep;
use crate::descent::{Moved, Place};
use crate::platform::{Domain, Platform};
use crate::primitive::{self, Claim};
use crate::record::Counts;
use crate::tlb::Scope;
use crate::{
    Attributes, Descriptor, Error, Grant, Ipa, Leaf, Level, Memory, Pa, Record, Stage2, TablePage, TableSource,
    Unwatched, cache, frame,
};

/// What mapping found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Mapped {
    /// Nothing was there; the leaf is.
    New,
    /// Another leaf was there. It was broken, the TLB invalidated, the new one made; this is what it was in the
    /// end, with what hardware had recorded in it.
    Replaced(Descriptor),
    /// The same output address is mapped there already, by this leaf, at this level or above. Nothing was
    /// changed; to allow more use [`Stage2::relax`].
    Already(Descriptor),
}

impl<P: Platform> Grant<'_, P> {
    /// Maps the start of what is granted by one leaf of `level`: a page at level 3, a block above. Both addresses have to be
    /// aligned to what the leaf spans, and all of the leaf has to be granted.
    ///
    /// Cache maintenance for the new leaf is done here (module `cache`), by whoever really maps it; the frame's content
    /// has to be written before. `tables` is asked only when a table is missing.
    ///
    /// # Errors
    ///
    /// Addresses that do not fit; [`Error::NotGranted`]; [`Error::ExecuteNeedsXnx`]; [`Error::TableInTheWay`] where smaller
    /// mappings are ([`coalesce`](Self::coalesce) replaces them); [`Error::NoTablePage`], after which the same call may be
    /// repeated.
    #[inline(always)]
    pub fn map(self, level: Level, attributes: &Attributes, tables: &mut impl TableSource) -> Result<Mapped, Error> {
        self.check(self.stage2.geometry().granule().span(level))?;
        self.stage2.map_to(self.ipa, self.pa, level, attributes, tables)
    }
}

impl<P: Platform> Stage2<P> {
    /// Maps what is granted, by one leaf ([`Grant::map`]).
    #[inline(always)] // the way that has nothing to do but to fill an entry is short, above all for a level that is known
    pub(crate) fn map_to(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        self.check_leaf(ipa, pa, level)?;
        attributes.access.check(self.features())?;
        let new = Descriptor::leaf(pa, level, attributes, self.features());
        if attributes.memory != Memory::Normal {
            return self.map_slowly::<true>(ipa, new, level, tables);
        }
        if !Upkeep::new(self.features(), attributes).is_needed() {
            let place = self.descend(ipa, level);
            if place.level == level
                && place.entry == Descriptor::INVALID
                && let Ok(mut locked) = self.lock(&place)
                && place.cell.read() == Descriptor::INVALID
            {
                locked.make_in(place.cell, new);
                drop(locked);
                self.publish();
                return Ok(Mapped::New);
            }
        }
        self.map_slowly::<false>(ipa, new, level, tables)
    }

    /// The rest of [`map_to`](Self::map_to): tables are missing, something is there, or caches have to be cleaned; or it is `OTHER`
    /// memory than normal.
    #[cold]
    #[inline(never)]
    fn map_slowly<const OTHER: bool>(
        &self,
        ipa: Ipa,
        new: Descriptor,
        level: Level,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        // Read back: kept since the beginning, they would cost the short way something.
        let upkeep = Upkeep::new(self.features(), &new.attributes(self.features()));
        self.map_with::<OTHER>(ipa, new, level, upkeep, tables)
    }

    /// Maps with this maintenance of caches, `OTHER` memory than normal or not.
    pub(crate) fn map_with<const OTHER: bool>(
        &self,
        ipa: Ipa,
        new: Descriptor,
        level: Level,
        upkeep: Upkeep,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        loop {
            let place = self.descend(ipa, level);
            let old = place.entry;
            if old.is_leaf(place.level) {
                let inside = ipa - ipa.align_down(self.geometry().granule().span(place.level));
                if old.address() + inside == new.address() && old.memory_bits() == new.memory_bits() {
                    if self.is_still(&place) {
                        return Ok(Mapped::Already(old));
                    }
                } else if place.level < level {
                    let below = place.level.below().unwrap_or(level);
                    let start = ipa.align_down(self.geometry().granule().span(place.level));
                    self.split_block(start, &place, below, tables)?;
                } else if let Ok(mapped) = self.fill_entry::<OTHER>(&place, ipa, new, upkeep) {
                    return Ok(mapped);
                }
            } else if old.is_vacant() && place.level < level {
                self.add_table(&place, ipa, tables)?;
            } else if old.is_vacant() {
                if let Ok(mapped) = self.fill_entry::<OTHER>(&place, ipa, new, upkeep) {
                    return Ok(mapped);
                }
            } else if old.is_table(place.level) {
                if self.is_still(&place) {
                    return Err(Error::TableInTheWay { ipa, level });
                }
            } else {
                // Somebody is changing it.
                self.platform().pause(1);
            }
        }
    }

    /// Makes the entry of a place, over what was seen there.
    fn fill_entry<const OTHER: bool>(
        &self,
        place: &Place<'_>,
        ipa: Ipa,
        new: Descriptor,
        upkeep: Upkeep,
    ) -> Result<Mapped, Moved> {
        let mut locked = self.lock(place)?;
        if !locked.entry(place.index).differs_by_records_only(place.entry) {
            return Err(Moved);
        }
        if OTHER {
            self.note_memory(new.attributes(self.features()).memory);
            locked.note_other_memory();
        }
        let span = self.geometry().granule().span(place.level);
        let was_there = place.entry.is_valid();
        let stale = place.entry == Descriptor::STALE;
        // A page's lines are few: the table stays locked. All else takes its time: the entry is nobody else's meanwhile.
        if place.entry == Descriptor::INVALID && (place.level == Level::L3 || !upkeep.is_needed()) {
            cache::before_map(self.platform(), self.features(), (new.address(), span), upkeep);
            locked.make(place.index, new);
            drop(locked);
            self.publish();
            return Ok(Mapped::New);
        }
        let busy = locked.make_busy(place.index)?;
        let old = busy.old;
        let mut upkeep = upkeep;
        if was_there {
            self.tlb().invalidate(&Scope { range: ipa..ipa + span, level: Some(place.level), tables: false });
            if old.address() != new.address() {
                let leaf = Leaf { ipa, level: place.level, descriptor: old };
                self.tell_removed(leaf, &mut Unwatched, self.removal::<Unwatched>());
            } else if !old.has_memory_of(new) {
                upkeep = upkeep.with_cleaning();
            }
        } else if stale {
            self.flush_stale(ipa, place.level);
        }
        cache::before_map(self.platform(), self.features(), (new.address(), span), upkeep);
        busy.make(new);
        self.publish();
        Ok(if was_there { Mapped::Replaced(old) } else { Mapped::New })
    }

    /// Puts an empty table where nothing is, or gives its page back if somebody else was faster.
    pub(crate) fn add_table(&self, place: &Place<'_>, ipa: Ipa, tables: &mut impl TableSource) -> Result<(), Error> {
        let below = place.level.below().ok_or(Error::NoLeafAtLevel { level: place.level })?;
        self.give_kept(tables);
        let Some(page) = frame::take(tables) else {
            let gone = place.cell.read() != place.entry;
            return if gone { Ok(()) } else { Err(Error::NoTablePage { ipa, level: below }) };
        };
        page.zero(self.platform());
        self.set_counts(&page, Counts::EMPTY, false);
        if let Err(page) = self.link(ipa, place.level, page) {
            frame::give(tables, page);
        }
        Ok(())
    }

    /// Links a table to `ipa`'s entry of `level`; `Err` with the page where something is there by now. What was done since
    /// the last descent may have taken its time: so it goes down anew.
    pub(crate) fn link(&self, ipa: Ipa, level: Level, page: TablePage) -> Result<(), TablePage> {
        let new = Descriptor::table(page.pa());
        loop {
            let place = self.descend(ipa, level);
            let Ok(mut locked) = self.lock(&place) else { continue };
            let old = locked.entry(place.index);
            if place.level != level || !old.is_vacant() {
                return Err(page);
            }
            // From here on the tree owns the page.
            if old == Descriptor::INVALID {
                locked.make(place.index, new);
                drop(locked);
            } else if let Ok(busy) = locked.make_busy(place.index) {
                self.flush_stale(ipa, level);
                busy.make(new);
            } else {
                continue;
            }
            self.publish();
            return Ok(());
        }
    }

    /// Invalidates what an entry of `level` led to, a leaf or a table, that was removed by a change whose own flush may be
    /// still to come.
    #[cold]
    fn flush_stale(&self, ipa: Ipa, level: Level) {
        let span = self.geometry().granule().span(level);
        let start = ipa.align_down(span);
        let leaf = (level == Level::L3).then_some(level);
        self.tlb().invalidate(&Scope { range: start..start + span, level: leaf, tables: level < Level::L3 });
    }

    /// Whether a leaf of this kind may be there at all.
    #[inline(always)]
    pub(crate) fn check_leaf(&self, ipa: Ipa, pa: Pa, level: Level) -> Result<(), Error> {
        if level == Level::L0 || level < self.geometry().root_level() {
            return Err(Error::NoLeafAtLevel { level });
        }
        let size = self.geometry().granule().span(level);
        // Aligned, a leaf is inside as a whole if its first byte is.
        let (ipa_bits, pa_bits) = (self.geometry().ipa_bits(), self.features().pa_bits);
        if (ipa.raw() | pa.raw()) & (size - 1) == 0 && ipa.raw() >> ipa_bits == 0 && pa.raw() >> pa_bits == 0 {
            return Ok(());
        }
        Err(why_no_leaf((ipa, ipa_bits), (pa, pa_bits), size))
    }

    /// Makes new entries visible to walks before the guest is entered again; otherwise it might fault once more.
    #[inline(always)]
    pub(crate) fn publish(&self) {
        primitive::dsb(self.platform(), Domain::IshSt);
        primitive::claim(Claim::Visible);
    }

    /// Says what is in a table that is not linked yet, and whether there are leaves in it that are not normal memory.
    pub(crate) fn set_counts(&self, page: &TablePage, counts: Counts, other_memory: bool) {
        let record = self.platform().record(page.pa());
        record.reset(counts, self.platform());
        record.set_link(if other_memory { Record::OTHER_MEMORY } else { 0 });
    }
}

/// What is wrong with a leaf of `size` bytes that maps `ipa` to `pa`, where something is.
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
