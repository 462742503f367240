// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping: a page or a block, with the table pages that lead to it.
//!
//! From nothing to something needs no TLB invalidation: the architecture caches no entry that faults for
//! translation. From something to something else goes by break-before-make (Arm ARM D8.16.1): invalid, flush,
//! cache maintenance, then the new entry. A block that is in the way of a smaller mapping is first replaced,
//! by the same rule, with a table that maps what it mapped.

use crate::platform::{Domain, Platform};
use crate::table::Cell;
use crate::tlb::Scope;
use crate::{Attributes, Descriptor, Error, Ipa, Level, Memory, Pa, Stage2, TablePage, TableSource, cache};

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

impl<P: Platform> Stage2<P> {
    /// Maps `pa` at `ipa` by one leaf of `level`: a page at level 3, a block above. Both addresses have to be
    /// aligned to what the leaf spans.
    ///
    /// Cache maintenance for the new leaf is done here (module `cache`); the frame's content has to be written
    /// before.
    ///
    /// # Errors
    ///
    /// Addresses that do not fit; [`Error::TableInTheWay`] where smaller mappings are; [`Error::NoTablePage`],
    /// after which the same call may be repeated.
    #[inline(always)] // the way that has nothing to do but to fill an entry is short, above all for a level that is known
    pub fn map(
        &mut self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        if level == Level::L0 || level < self.geometry().root_level() {
            return Err(Error::NoLeafAtLevel { level });
        }
        let size = self.geometry().granule().span(level);
        self.check_leaf(ipa, pa, size)?;

        let new = Descriptor::leaf(pa, level, attributes, self.features());
        match self.linked(ipa, level) {
            Some(cell) if !cell.load().is_valid() => {
                self.make(cell, new, (pa, size), attributes);
                Ok(Mapped::New)
            }
            _ => self.map_slowly(ipa, new, level, attributes, tables),
        }
    }

    /// The rest of [`map`](Self::map): tables are missing, or something is there.
    #[cold]
    fn map_slowly(
        &mut self,
        ipa: Ipa,
        new: Descriptor,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        let pa = new.address();
        let cell = match self.descend(ipa, Some((pa, attributes.memory)), level, tables)? {
            Found::Entry(cell) => cell,
            Found::Covered(block) => return Ok(Mapped::Already(block)),
        };
        let old = cell.load();
        if old.is_table(level) {
            return Err(Error::TableInTheWay { ipa, level });
        }
        let same_memory = old.attributes(self.features()).memory == attributes.memory;
        if old.is_valid() && old.address() == pa && same_memory {
            return Ok(Mapped::Already(old));
        }
        let outcome = if old.is_valid() { Mapped::Replaced(self.break_leaf(cell, ipa, level)) } else { Mapped::New };
        self.make(cell, new, (pa, self.geometry().granule().span(level)), attributes);
        Ok(outcome)
    }

    /// Makes a leaf where nothing is: the frame first, then the entry.
    #[inline(always)]
    fn make(&self, cell: Cell<'_>, new: Descriptor, frame: (Pa, u64), attributes: &Attributes) {
        cache::before_map(self.platform(), self.features(), frame, attributes.memory, attributes.access);
        cell.make(new);
        self.publish();
    }

    /// The entry for `ipa` in the table of `level`, where that table is there already.
    #[inline(always)]
    fn linked(&self, ipa: Ipa, level: Level) -> Option<Cell<'_>> {
        let mut at = self.geometry().root_level();
        let mut cell = self.root().entry(self.geometry().index(ipa, at));
        while at < level {
            let entry = cell.load();
            if !entry.is_table(at) {
                return None;
            }
            at = at.below()?;
            cell = self.table(entry).entry(self.geometry().index_below_root(ipa, at));
        }
        Some(cell)
    }

    /// Replaces a block by a table that maps the same, so that its parts can be changed. `Ok` where `ipa` is
    /// the first address of a leaf, or unmapped, already.
    pub(crate) fn split_before(&mut self, ipa: Ipa, tables: &mut impl TableSource) -> Result<(), Error> {
        while let Some(leaf) = self.look_up(ipa) {
            if leaf.ipa == ipa {
                break;
            }
            let below = leaf.level.below().ok_or(Error::NoLeafAtLevel { level: leaf.level })?;
            self.descend(ipa, None, below, tables)?;
            self.publish();
        }
        Ok(())
    }

    #[inline(always)]
    fn check_leaf(&self, ipa: Ipa, pa: Pa, size: u64) -> Result<(), Error> {
        // Aligned, a leaf is inside as a whole if its first byte is.
        let (ipa_bits, pa_bits) = (self.geometry().ipa_bits(), self.features().pa_bits);
        if (ipa.raw() | pa.raw()) & (size - 1) == 0 && ipa.raw() >> ipa_bits == 0 && pa.raw() >> pa_bits == 0 {
            return Ok(());
        }
        Err(why_no_leaf((ipa, ipa_bits), (pa, pa_bits), size))
    }

    /// Goes down to `ipa`'s entry in the table of `level`, making the tables that are missing and splitting the
    /// blocks on the way, but for one that maps `ipa` to `unless`, as this type of memory, already.
    fn descend(
        &self,
        ipa: Ipa,
        unless: Option<(Pa, Memory)>,
        level: Level,
        tables: &mut impl TableSource,
    ) -> Result<Found<'_>, Error> {
        let mut at = self.geometry().root_level();
        let mut table = self.root();
        loop {
            let cell = table.entry(self.geometry().index(ipa, at));
            let below = match at.below() {
                Some(below) if at < level => below,
                _ => return Ok(Found::Entry(cell)),
            };
            let mut entry = cell.load();
            if !entry.is_table(at) {
                let span = self.geometry().granule().span(at);
                let output = entry.address() + (ipa - ipa.align_down(span));
                let memory = entry.attributes(self.features()).memory;
                if entry.is_valid() && unless == Some((output, memory)) {
                    return Ok(Found::Covered(entry));
                }
                let page = tables.take().ok_or(Error::NoTablePage { ipa, level: below })?;
                if entry.is_valid() {
                    let block = self.break_leaf(cell, ipa.align_down(span), at);
                    self.fill_from_block(&page, block, below);
                } else {
                    page.zero(self.platform());
                }
                entry = Descriptor::table(page.pa());
                // From here on the tree owns the page.
                cell.make(entry);
            }
            table = self.table(entry);
            at = below;
        }
    }

    /// Breaks a leaf and waits until no TLB holds it.
    fn break_leaf(&self, cell: Cell<'_>, ipa: Ipa, level: Level) -> Descriptor {
        let old = cell.take();
        let span = self.geometry().granule().span(level);
        self.tlb().invalidate(&Scope { range: ipa..ipa + span, level: Some(level), tables: false });
        old
    }

    /// Fills a page that no walk sees yet with leaves of `level` that map what `block` mapped, with its
    /// attributes and what hardware recorded.
    fn fill_from_block(&self, page: &TablePage, block: Descriptor, level: Level) {
        let attributes = block.attributes(self.features());
        let span = self.geometry().granule().span(level);
        let table = self.unlinked(page);
        for index in 0..table.len() {
            let output = block.address() + index as u64 * span;
            table.entry(index).fill(Descriptor::leaf(output, level, &attributes, self.features()));
        }
    }

    /// Makes new entries visible to walks before the guest is entered again; otherwise it might fault once more.
    fn publish(&self) {
        self.platform().dsb(Domain::IshSt);
    }
}

/// What a descent ended at.
enum Found<'a> {
    /// The entry in the table of the level asked for.
    Entry(Cell<'a>),
    /// A block above, which maps the address already to where it should go.
    Covered(Descriptor),
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
