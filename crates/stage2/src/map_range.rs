// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping a range in one call: tables are filled where no walk sees them, and linked when they are full.
//!
//! Where a table is there already, its invalid entries are filled under its lock, a run at a time. What is mapped
//! otherwise is replaced leaf by leaf, as [`Grant::map`] does.

use crate::cache::Upkeep;
use crate::descent::Place;
use crate::platform::Platform;
use crate::primitive;
use crate::record::Counts;
use crate::{
    Attributes, Descriptor, Error, Grant, Ipa, IpaRange, Level, Memory, Pa, Stage2, TableSource, cache, frame,
};

impl<P: Platform> Grant<'_, P> {
    /// Maps all that is granted, by the largest leaves that fit, but none above `largest`: 3 maps pages only. Where something
    /// smaller is mapped already it stays in pieces.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map). With [`Error::NoTablePage`] what was mapped so far stays, and the same call goes on.
    pub fn map_range(
        self,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<(), Error> {
        let bits = self.stage2.geometry().ipa_bits();
        let end = self.ipa.checked_add(self.size).ok_or(Error::OutsideIpa { ipa: self.ipa, bits })?;
        self.stage2.map_range_to(self.ipa..end, self.pa, largest, attributes, tables)
    }
}

impl<P: Platform> Stage2<P> {
    /// Maps what is granted ([`Grant::map_range`]).
    pub(crate) fn map_range_to(
        &self,
        range: IpaRange,
        pa: Pa,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<(), Error> {
        self.geometry().check(&range)?;
        let page = self.geometry().granule().size();
        let last = pa
            .checked_add(range.end - range.start - page)
            .ok_or(Error::OutsidePa { pa, bits: self.features().pa_bits })?;
        self.check_leaf(range.start, pa, Level::L3)?;
        attributes.access.check(self.features())?;
        self.check_leaf(range.start, last, Level::L3)?;
        self.give_kept(tables);
        self.note_memory(attributes.memory);
        let mut at = range.start;
        while at < range.end {
            let output = pa + (at - range.start);
            at = at + self.map_some(at..range.end, output, largest, attributes, tables)?;
        }
        self.publish();
        Ok(())
    }

    /// Maps as much from the start of `range` on as goes at once; returns how many bytes that are.
    fn map_some(
        &self,
        range: IpaRange,
        pa: Pa,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<u64, Error> {
        let (ipa, left) = (range.start, range.end - range.start);
        let place = self.descend(ipa, Level::L3);
        let span = self.geometry().granule().span(place.level);
        if place.entry != Descriptor::INVALID {
            // One leaf: where a page is in the way, or a block reaches farther than what is to be mapped.
            let fits = place.level >= largest && self.fits(ipa, pa, left, place.level);
            return self.map_one(ipa, pa, if fits { place.level } else { Level::L3 }, attributes, tables);
        }
        if place.level == Level::L3 {
            return Ok(self.fill_run(&place, ipa, pa, left, attributes));
        }
        if place.level >= largest && place.level > Level::L0 && self.fits(ipa, pa, left, place.level) {
            return self.map_one(ipa, pa, place.level, attributes, tables);
        }
        let below = place.level.below().unwrap_or(Level::L3);
        // A page always fits.
        let fits = below == Level::L3 || (below >= largest && self.fits(ipa, pa, left, below));
        if left >= span && ipa.is_aligned(span) && fits {
            return self.link_full(&place, below, (ipa, pa), attributes, tables);
        }
        self.add_table(&place, ipa, tables)?;
        Ok(0)
    }

    /// One leaf, unless a table is there by now.
    fn map_one(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<u64, Error> {
        match self.map_to(ipa, pa, level, attributes, tables) {
            Ok(_) => Ok(self.geometry().granule().span(level)),
            Err(Error::TableInTheWay { .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn fits(&self, ipa: Ipa, pa: Pa, left: u64, level: Level) -> bool {
        let span = self.geometry().granule().span(level);
        ipa.is_aligned(span) && pa.is_aligned(span) && left >= span
    }

    /// Links a table of `level` that is full where nothing is.
    fn link_full(
        &self,
        place: &Place<'_>,
        level: Level,
        (ipa, pa): (Ipa, Pa),
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<u64, Error> {
        let span = self.geometry().granule().span(place.level);
        let page = frame::take(tables).ok_or(Error::NoTablePage { ipa, level })?;
        let first = Descriptor::leaf(pa, level, attributes, self.features());
        let entries = self.geometry().granule().entries();
        self.table_in(&page).fill(0, entries, first, self.geometry().granule().span(level));
        let other_memory = attributes.memory != Memory::Normal;
        self.set_counts(&page, Counts::of(first, level).times(entries as u64), other_memory);
        cache::before_map(self.platform(), self.features(), (pa, span), Upkeep::new(self.features(), attributes));
        match self.link(ipa, place.level, page) {
            Ok(()) => Ok(span),
            Err(page) => {
                frame::give(tables, page);
                Ok(0)
            }
        }
    }

    /// Fills the invalid entries from a place of level 3 on; returns how many bytes that are.
    fn fill_run(&self, place: &Place<'_>, ipa: Ipa, pa: Pa, left: u64, attributes: &Attributes) -> u64 {
        let page = self.geometry().granule().size();
        let most = (place.table.len() - place.index).min((left / page) as usize);
        let free = |index: &usize| place.table.entry(place.index + index).read() == Descriptor::INVALID;
        // Caches before the lock. Fewer entries may be free when it is taken.
        let seen = (0..most).take_while(free).count();
        let upkeep = Upkeep::new(self.features(), attributes);
        cache::before_map(self.platform(), self.features(), (pa, seen as u64 * page), upkeep);
        // That may have taken its time.
        let place = self.descend(ipa, Level::L3);
        let free = |index: &usize| place.table.entry(place.index + index).read() == Descriptor::INVALID;
        if place.level != Level::L3 {
            return 0;
        }
        let Ok(mut locked) = self.lock(&place) else { return 0 };
        let count = (0..seen).take_while(free).count();
        let first = Descriptor::leaf(pa, Level::L3, attributes, self.features());
        // The frames are ready before a walk can find them.
        primitive::release_fence();
        if attributes.memory != Memory::Normal {
            locked.note_other_memory();
        }
        locked.table.fill(place.index, count, first, page);
        locked.counts += Counts::of(first, Level::L3).times(count as u64);
        count as u64 * page
    }
}
