// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping a range in one call.
//!
//! Where no table is linked yet, a whole table is filled before it is linked, so no walk sees it half full. Where a
//! table is linked already, runs of its invalid entries are filled under its lock. Entries that are not invalid are
//! mapped leaf by leaf, as [`Grant::map`] does.

use crate::cache::CacheMaintenance;
use crate::contiguous::{group_around, group_length, group_size};
use crate::counts::Counts;
use crate::lockless_walk::EntryLocation;
use crate::platform::Platform;
use crate::primitive;
use crate::withdraw::Sample;
use crate::{
    Attributes, Descriptor, Error, Grant, Granule, Ipa, IpaRange, Level, Memory, Pa, Stage2, TableSource, cache, frame,
};

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// Maps the whole grant with the largest leaves that fit, but none above level `largest`. `Level::L3` maps pages
    /// only.
    ///
    /// Where smaller leaves are mapped already, the range stays in smaller leaves. With [`Contiguous`](crate::Contiguous)
    /// tables, leaves make contiguous groups wherever they fit.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map). After [`Error::NoTablePage`] the part that was mapped stays mapped, and the same call
    /// continues. After [`Error::Withdrawn`] it also stays mapped, except for what was withdrawn.
    pub fn map_range(
        self,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<(), Error> {
        let bits = self.stage2.geometry().ipa_bits();
        let end = self.ipa.checked_add(self.size).ok_or(Error::OutsideIpa { ipa: self.ipa, bits })?;
        self.stage2.map_range_to(self.ipa..end, self.pa, self.sample, largest, attributes, tables)
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// [`Grant::map_range`], for memory that is known to be granted.
    pub(crate) fn map_range_to(
        &self,
        range: IpaRange,
        pa: Pa,
        sample: Sample,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<(), Error> {
        self.geometry().check(&range)?;
        let page = self.geometry().granule().size();
        let last = pa
            .checked_add(range.end - range.start - page)
            .ok_or(Error::OutsidePa { pa, bits: self.geometry().pa_bits() })?;
        self.check_leaf(range.start, pa, Level::L3)?;
        attributes.check::<G>(self.features())?;
        self.check_leaf(range.start, last, Level::L3)?;
        self.give_deferred(tables);
        self.note_memory(attributes.memory);
        let mut at = range.start;
        while at < range.end {
            let output = pa + (at - range.start);
            at = at + self.map_some(at..range.end, output, sample, largest, attributes, tables)?;
        }
        self.publish();
        Ok(())
    }

    /// Maps one step from the start of `range`: a table, a run of pages, or one leaf. Returns the number of bytes
    /// mapped; 0 means retry.
    fn map_some(
        &self,
        range: IpaRange,
        pa: Pa,
        sample: Sample,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<u64, Error> {
        let (ipa, left) = (range.start, range.end - range.start);
        let location = self.lockless_walk(ipa, Level::L3);
        self.check_sample(sample, &location, ipa)?;
        let span = self.geometry().granule().span(location.level);
        if location.entry != Descriptor::INVALID {
            // A single leaf: the entry is stale, busy or mapped. If no leaf of the entry's size fits, map a page.
            let fits = location.level >= largest && self.fits(ipa, pa, left, location.level);
            if fits
                && location.entry.is_vacant()
                && self.map_group_of((ipa, pa), sample, left, location.level, attributes, tables)
            {
                return Ok(group_size::<G>(location.level));
            }
            return self.map_one((ipa, pa), sample, if fits { location.level } else { Level::L3 }, attributes, tables);
        }
        if location.level == Level::L3 {
            return Ok(self.fill_run(&location, (ipa, pa), sample, left, attributes));
        }
        if location.level >= largest
            && self.geometry().may_have_leaves(location.level)
            && self.fits(ipa, pa, left, location.level)
        {
            if self.map_group_of((ipa, pa), sample, left, location.level, attributes, tables) {
                return Ok(group_size::<G>(location.level));
            }
            return self.map_one((ipa, pa), sample, location.level, attributes, tables);
        }
        let below = location.level.below().unwrap_or(Level::L3);
        // A page always fits.
        let fits = below == Level::L3 || (below >= largest && self.fits(ipa, pa, left, below));
        if left >= span && ipa.is_aligned(span) && fits {
            return self.link_full(&location, below, (ipa, pa), sample, attributes, tables);
        }
        self.add_table(&location, ipa, tables)?;
        Ok(0)
    }

    /// Maps one leaf and returns its bytes, or 0 if a table is there now.
    fn map_one(
        &self,
        (ipa, pa): (Ipa, Pa),
        sample: Sample,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<u64, Error> {
        match self.map_to(ipa, pa, sample, level, attributes, tables) {
            Ok(_) => Ok(self.geometry().granule().span(level)),
            Err(Error::TableInTheWay { .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Maps a contiguous group of `level`, if it fits. Returns whether it did.
    #[inline(always)]
    fn map_group_of(
        &self,
        (ipa, pa): (Ipa, Pa),
        sample: Sample,
        left: u64,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> bool {
        // The call refuses what makes no group.
        G::GROUPS
            && left >= group_size::<G>(level)
            && self.map_group_to((ipa, pa), sample, level, attributes, tables, None).is_ok()
    }

    /// Whether a contiguous group of `level` may map `ipa` to `pa`, if it lies in the range.
    #[inline(always)]
    fn groups(&self, addresses: (Ipa, Pa), level: Level, attributes: &Attributes) -> bool {
        !attributes.dirty_by_hardware && self.check_group(addresses, level).is_ok()
    }

    fn fits(&self, ipa: Ipa, pa: Pa, left: u64, level: Level) -> bool {
        let span = self.geometry().granule().span(level);
        ipa.is_aligned(span) && pa.is_aligned(span) && left >= span
    }

    /// Fills a table of `level` and links it at a vacant entry. Returns the bytes that it maps, or 0 if the entry is no
    /// longer vacant, or the memory was withdrawn.
    #[inline(always)] // a call costs 5 % of the whole range
    fn link_full(
        &self,
        location: &EntryLocation<'_, G>,
        level: Level,
        (ipa, pa): (Ipa, Pa),
        sample: Sample,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<u64, Error> {
        let span = self.geometry().granule().span(location.level);
        let page = frame::take(tables).ok_or(Error::NoTablePage { ipa, level })?;
        let mut first = Descriptor::leaf(pa, level, attributes, self.features());
        if self.groups((ipa, pa), level, attributes) {
            first = first.with_contiguous();
        }
        let entries = self.geometry().granule().entries();
        self.table_in(&page).fill(0, entries, first, self.geometry().granule().span(level));
        let other_memory = attributes.memory != Memory::Normal;
        self.set_counts(&page, Counts::of(first, level).times(entries as u64), other_memory);
        cache::before_map(
            self.platform(),
            self.features(),
            (pa, span),
            CacheMaintenance::new(self.features(), attributes),
        );
        match self.link(ipa, location, page, sample) {
            Ok(()) => Ok(span),
            Err(page) => {
                frame::give(tables, page);
                Ok(0)
            }
        }
    }

    /// Fills the run of invalid level 3 entries that begins at `location`. Returns the number of bytes mapped.
    fn fill_run(
        &self,
        location: &EntryLocation<'_, G>,
        (ipa, pa): (Ipa, Pa),
        sample: Sample,
        left: u64,
        attributes: &Attributes,
    ) -> u64 {
        let page = self.geometry().granule().size();
        let most = (location.table.len() - location.index).min((left / page) as usize);
        let free = |index: &usize| location.table.entry(location.index + index).read() == Descriptor::INVALID;
        // Cache maintenance comes before the lock. Fewer entries may be invalid once the lock is taken.
        let seen = (0..most).take_while(free).count();
        let maintenance = CacheMaintenance::new(self.features(), attributes);
        cache::before_map(self.platform(), self.features(), (pa, seen as u64 * page), maintenance);
        // The maintenance may have taken long, so walk again.
        let location = self.lockless_walk(ipa, Level::L3);
        let free = |index: &usize| location.table.entry(location.index + index).read() == Descriptor::INVALID;
        if location.level != Level::L3 || self.check_sample(sample, &location, ipa).is_err() {
            return 0;
        }
        let Ok(mut locked) = self.lock(&location) else { return 0 };
        let count = (0..seen).take_while(free).count();
        let first = Descriptor::leaf(pa, Level::L3, attributes, self.features());
        // Frames and their content are visible before a walk can find them: `fill` stores with relaxed ordering.
        primitive::release_fence();
        if attributes.memory != Memory::Normal {
            locked.note_other_memory();
        }
        if G::GROUPS {
            let mut done = 0;
            while done < count {
                let at = done as u64 * page;
                let length = group_length::<G>(Level::L3);
                let whole = count - done >= length && self.groups((ipa + at, pa + at), Level::L3, attributes);
                // Up to the next group, or the end.
                let index = location.index + done;
                let here = (group_around::<G>(index, Level::L3).end - index).min(count - done);
                let leaf = first.advanced(at);
                locked.table.fill(index, here, if whole { leaf.with_contiguous() } else { leaf }, page);
                done += here;
            }
        } else {
            locked.table.fill(location.index, count, first, page);
        }
        locked.counts += Counts::of(first, Level::L3).times(count as u64);
        count as u64 * page
    }
}
