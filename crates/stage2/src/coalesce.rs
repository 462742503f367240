// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coalescing: a block takes the place of the table that maps the same memory in pieces (source S4).
//!
//! In this order: what the table did not map is cleaned (module `holes`); the tables below it are locked; the table's
//! entry is broken and counted; they are unlocked; the flush completes; the block is made; then the table is looked
//! through for what hardware had recorded in it, and freed. Between break and make, while the guest faults there, is
//! little beside the flush, but where the guest wrote past the caches: what takes longest, waiting for whoever is inside
//! and freeing, comes before and behind.
//!
//! The table that is broken is taken out as one that is unmapped (modules `unmap`, `below`): nobody is inside any more.
//! Its pages are freed at once: what may still come is stopped by the count, not by waiting (module `descent`).

use crate::cache::Upkeep;
use crate::descent::{Moved, Place};
use crate::detached::{Link, Look};
use crate::map::Mapped;
use crate::platform::Platform;
use crate::table::Table;
use crate::tlb::Scope;
use crate::{Attributes, Descriptor, Error, Grant, Ipa, Leaf, Level, Memory, Pa, Stage2, TableSource, cache};

/// What [`Grant::coalesce`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Coalesced {
    /// The block is there, and so many table pages less.
    Done {
        /// Pages that were given back.
        tables: u64,
    },
    /// There was no table: as [`Grant::map`] found it.
    Mapped(Mapped),
}

impl<P: Platform> Grant<'_, P> {
    /// Maps the start of what is granted by one block of `level`, which takes the place of smaller mappings. The frames behind what is
    /// mapped already have to be those of the block: nobody is told of others.
    ///
    /// `dirty` is told of each leaf, of the mappings that went, in which hardware had recorded a write. What is not
    /// mapped yet is cleaned as for a new mapping, if this CPU needs it; what was mapped as another type of memory is, after
    /// the flush. The caller must ensure that no mapping of another memory type is added in the range during the call, and
    /// that no flush of a removed one is pending.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn coalesce(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error> {
        self.coalesce_in_order::<false, false>(level, attributes, tables, dirty)
    }

    /// The same, with the old table freed before the block is made if it is to be `FREE_FIRST`, and no cache maintenance if
    /// that was done (`CLEANED`).
    pub(crate) fn coalesce_in_order<const FREE_FIRST: bool, const CLEANED: bool>(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error> {
        self.check(self.stage2.geometry().granule().span(level))?;
        self.stage2.coalesce_to::<FREE_FIRST, CLEANED>(self.ipa, self.pa, level, attributes, tables, dirty)
    }
}

impl<P: Platform> Stage2<P> {
    /// Puts a block that is granted in the place of smaller mappings ([`Grant::coalesce_in_order`]).
    pub(crate) fn coalesce_to<const FREE_FIRST: bool, const CLEANED: bool>(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error> {
        self.check_leaf(ipa, pa, level)?;
        attributes.access.check(self.features())?;
        let below = level.below().ok_or(Error::NoLeafAtLevel { level })?;
        let span = self.geometry().granule().span(level);
        let new = Descriptor::leaf(pa, level, attributes, self.features());
        let upkeep = Upkeep::new(self.features(), attributes);
        self.give_kept(tables);
        let mut ready = CLEANED || !upkeep.is_needed();
        let mut other_memory = false;
        loop {
            let place = self.descend(ipa, level);
            // A descent that ends above `level` ends at an entry that is no table.
            if !place.entry.is_table(level) {
                match self.map_to(ipa, pa, level, attributes, tables) {
                    Err(Error::TableInTheWay { .. }) => continue,
                    mapped => return mapped.map(Coalesced::Mapped),
                }
            }
            if !ready {
                // Pages that are mapped from here on are cleaned by whoever maps them.
                if let Ok(claim) = self.claim(&place, below, new, upkeep) {
                    if !claim.cleaned {
                        // Its only error, a range outside of the IPA space, `check_leaf` has ruled out: the claim is not left.
                        self.clean_holes(ipa, span, new)?;
                    }
                    cache::before_map(self.platform(), self.features(), (pa, span), upkeep.cleaned());
                    (ready, other_memory) = (true, claim.other_memory);
                }
                continue;
            }
            let Ok(parent) = self.lock(&place) else { continue };
            let entry = parent.entry(place.index);
            if !entry.is_table(level) {
                continue;
            }
            let entries = self.geometry().granule().entries();
            let Ok(child) = self.lock_whatever(entry.address(), entries, below).quiet() else { continue };
            // Before the break: it takes its time.
            let Ok(held) = self.hold_below(&child) else { continue };
            let other_memory = other_memory || held.other_memory || attributes.memory != Memory::Normal;
            if attributes.memory != Memory::Normal {
                self.note_memory(attributes.memory);
                parent.note_other_memory();
            }
            let Ok(busy) = parent.make_busy(place.index) else { continue };
            let _ = self.unlinked.count(self.platform());
            drop(held);
            drop(child);
            self.tlb().invalidate(&Scope { range: ipa..ipa + span, level: None, tables: true });
            if other_memory {
                // Until now the guest may have written past the caches, or left lines in them.
                self.clean_others(self.table(entry), below, new);
            }
            let mut harvest = |leaf: Leaf| {
                if leaf.descriptor.is_hardware_dirty() {
                    dirty(leaf);
                }
            };
            let link = Link { table: entry.address(), level: below, ipa };
            let mut free = || self.free_tree(link, Look::Armed, tables, &mut harvest);
            let freed_first = if FREE_FIRST { free() } else { 0 };
            busy.make(new);
            self.publish();
            return Ok(Coalesced::Done { tables: if FREE_FIRST { freed_first } else { free() } });
        }
    }

    /// Makes this CPU the one that cleans for the block which is going to replace a table: several may fault there at
    /// once, and cleaning takes its time (source S4).
    fn claim(&self, place: &Place<'_>, below: Level, new: Descriptor, upkeep: Upkeep) -> Result<Claim, Moved> {
        // Or it may be no table's, and have no record.
        if !self.is_still(place) {
            return Err(Moved);
        }
        let (table, entries) = (place.entry.address(), self.geometry().granule().entries());
        let record = self.platform().record(table);
        // Looked at before the lock, which is what the claimer needs in the end.
        if record.link() & CLAIMED != 0 {
            self.platform().pause(1);
            return Err(Moved);
        }
        let locked = self.lock_table(table, entries, below, place.then)?;
        if record.link() & CLAIMED != 0 {
            return Err(Moved);
        }
        record.set_link(record.link() | CLAIMED);
        let nothing_to_clean = Claim { cleaned: true, other_memory: false };
        Ok(if upkeep.cleans() { self.look_for(new, locked.table, below) } else { nothing_to_clean })
    }

    /// Looks at all leaves of a table that is locked, and of those below it: sooner done than the walk over the holes, which
    /// is not needed where there are none. The tables below are not locked, but stay tables: an entry that was changed
    /// meanwhile was cleaned by who did it, and so that it was is known by their locks, before the break.
    fn look_for(&self, new: Descriptor, table: Table<'_>, level: Level) -> Claim {
        let mut claim = Claim { cleaned: true, other_memory: false };
        for index in 0..table.len() {
            let old = table.entry(index).read();
            let here = match level.below() {
                Some(below) if old.is_table(level) => self.look_for(new, self.table(old), below),
                _ => {
                    let (leaf, same) = (old.is_leaf(level), old.memory_bits() == new.memory_bits());
                    Claim { cleaned: leaf && same, other_memory: leaf && !same }
                }
            };
            claim.cleaned &= here.cleaned;
            claim.other_memory |= here.other_memory;
        }
        claim
    }
}

/// In the record of a table that is linked: somebody cleans for the block that is going to replace it.
const CLAIMED: u64 = 1;

struct Claim {
    /// All that it maps is mapped, by leaves of the same type of memory: all of it was cleaned when they were made.
    cleaned: bool,
    /// Some are leaves of another type.
    other_memory: bool,
}
