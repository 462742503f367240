// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coalescing: a block replaces the table that maps the same memory in pieces (Wang 2021: install before free).
//!
//! * C1: clean the holes, which is what the block will map and the table does not (module `holes`). No lock is held.
//! * C2: lock the parent and the table (U1), and hold the tables below (module `tables_below`). Then read the count again,
//!   since lent memory may have been withdrawn through one of them (M3 in module `withdraw`).
//! * C3: break the parent's entry by making it busy (U2), and increment the sequence count (U3).
//! * C4: flush (U6). If the table held leaves of another memory type, clean their memory.
//! * C5: make the block.
//! * C6: unlock the table and the tables below (U5).
//! * C7: report the leaves in which hardware had recorded a write, and free the table's pages.
//!
//! The guest faults from C3 to C5. The flush takes nearly all of that time, unless C4 has memory to clean. What takes
//! long comes before (C1, C2) or after (C6, C7): to unlock 512 tables takes as long as a flush.
//!
//! With FEAT_BBM level 2, and a CPU that raises no conflict abort, a full table of pages is replaced without a break (module
//! `resize`).
//!
//! A CPU that waits for one of these locks meanwhile loses nothing: it would find the parent's entry busy.
//!
//! C7 needs no wait. From C2 to C6 no other CPU holds a lock of these tables, and the count (C3) turns back each CPU
//! that comes later (W3, W4 in module `lockless_walk`). Hardware cannot reach the tables after C4, so their records are
//! final.

use crate::cache::CacheMaintenance;
use crate::lockless_walk::{EntryLocation, Retry};
use crate::map::Mapped;
use crate::metadata::TableMetadata;
use crate::platform::Platform;
use crate::table::Table;
use crate::tlb::Scope;
use crate::unlinked::{Look, UnlinkedTable};
use crate::withdraw::Sample;
use crate::{
    Attributes, Descriptor, Error, Grant, Granule, Ipa, Kib4, Leaf, Level, Memory, Pa, Stage2, TableSource, cache,
};

/// What [`Grant::coalesce`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Coalesced<G: Granule = Kib4> {
    /// The block replaced a table.
    Done {
        /// Table pages that were given back.
        tables: u64,
    },
    /// No table was there, so the block was mapped by [`Grant::map`], with this result.
    Mapped(Mapped<G>),
}

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// Maps the start of the grant by one block of `level`, which replaces smaller mappings. The smaller mappings must
    /// map the block's own frames: other frames are not reported.
    ///
    /// Calls `dirty` with each replaced leaf in which hardware had recorded a write. Memory that was not mapped is
    /// cleaned as for a new mapping, if this CPU needs it. Memory that was mapped with another memory type is cleaned
    /// after the flush. The caller must ensure that no mapping of another memory type is added in the range during the
    /// call, and that no flush of a removed one is pending.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map). A block of level 0 (FEAT_LPA2) replaces no table: [`Error::TableInTheWay`].
    pub fn coalesce(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error> {
        self.coalesce_in_order::<false, false>(level, attributes, tables, dirty)
    }

    /// [`coalesce`](Self::coalesce), with two baselines: `FREE_FIRST` frees the old table before the block is made (C7
    /// before C6), and `CLEANED` does no cache maintenance, since the caller has done it.
    pub(crate) fn coalesce_in_order<const FREE_FIRST: bool, const CLEANED: bool>(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error> {
        self.check(self.stage2.geometry().granule().span(level))?;
        let Self { stage2, ipa, pa, sample, .. } = self;
        stage2.coalesce_to::<FREE_FIRST, CLEANED>((ipa, pa), sample, level, attributes, tables, dirty)
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Replaces smaller mappings by a block, under a grant that was checked ([`Grant::coalesce_in_order`]).
    pub(crate) fn coalesce_to<const FREE_FIRST: bool, const CLEANED: bool>(
        &self,
        (ipa, pa): (Ipa, Pa),
        sample: Sample,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error> {
        self.check_leaf(ipa, pa, level)?;
        attributes.check::<G>(self.features())?;
        let below = level.below().ok_or(Error::NoLeafAtLevel { level })?;
        if G::LARGEST == Level::L0 && level == Level::L0 {
            // The tables below are of two levels, and too many to be held.
            return self.map_to(ipa, pa, sample, level, attributes, tables).map(Coalesced::Mapped);
        }
        let span = self.geometry().granule().span(level);
        let new = Descriptor::leaf(pa, level, attributes, self.features());
        let maintenance = CacheMaintenance::new(self.features(), attributes);
        self.give_deferred(tables);
        let mut ready = CLEANED || !maintenance.is_needed();
        let mut other_memory = false;
        let mut claimed = None;
        loop {
            let location = self.lockless_walk(ipa, level);
            if let Err(error) = self.check_sample(sample, &location, ipa) {
                claimed.into_iter().for_each(|table| self.give_up_claim(ipa, level, table));
                return Err(error);
            }
            // A walk that ends above `level` ends at an entry that is no table.
            if !location.entry.is_table(level) {
                match self.map_to(ipa, pa, sample, level, attributes, tables) {
                    Err(Error::TableInTheWay { .. }) => continue,
                    mapped => return mapped.map(Coalesced::Mapped),
                }
            }
            if !ready {
                // C1. A page that another CPU maps from here on is cleaned by that CPU.
                if let Ok(claim) = self.claim(&location, below, new, maintenance) {
                    claimed = Some(location.entry.address());
                    if !claim.cleaned {
                        // The only error is a range outside the IPA space, which `check_leaf` has ruled out. So the
                        // claim is never left behind.
                        self.clean_holes(ipa, span, new)?;
                    }
                    cache::before_fetch(self.platform(), self.features(), (pa, span), maintenance);
                    (ready, other_memory) = (true, claim.other_memory);
                }
                continue;
            }
            let Ok(parent) = self.lock(&location) else { continue }; // C2
            let entry = location.cell.read();
            if !entry.is_table(level) {
                continue;
            }
            let entries = self.geometry().granule().entries();
            let Ok(child) = self.lock_whatever(entry.address(), entries, below).quiet() else { continue };
            // Before the break: locking up to 512 tables takes time.
            let Ok(held) = self.hold_below(&child) else { continue };
            // M3. A withdrawal may have locked one of these tables after the parent's W4.
            if !self.is_still_linked(&location) {
                continue;
            }
            let other_memory = other_memory || held.other_memory || attributes.memory != Memory::Normal;
            if attributes.memory != Memory::Normal {
                self.note_memory(attributes.memory);
                parent.note_other_memory();
            }
            let link = UnlinkedTable { table: entry.address(), level: below, ipa };
            let mut harvest = |leaf: Leaf<G>| {
                if leaf.descriptor.is_hardware_dirty() {
                    dirty(leaf);
                }
            };
            if !FREE_FIRST && self.features().resizes_live() && self.is_whole_block(&child, new) {
                drop(held);
                self.replace_table((parent, child), &location, ipa, new); // C3 to C6, without a break
                let tables = self.free_tree(link, Look::HardwareTracked, tables, &mut harvest);
                return Ok(Coalesced::Done { tables });
            }
            let Ok(busy) = parent.make_busy(location.cell) else { continue }; // C3
            let _ = self.sequence.count(self.platform());
            self.tlb().invalidate(&Scope { range: ipa..ipa + span, level: None, tables: true }); // C4
            if other_memory {
                // Until the flush, the guest may have written past the caches, or left lines in them.
                self.clean_others(self.table(entry), below, new);
            }
            let mut free = || self.free_tree(link, Look::HardwareTracked, tables, &mut harvest);
            if FREE_FIRST {
                drop(held);
                drop(child);
                let tables = free();
                busy.make(new);
                self.publish();
                return Ok(Coalesced::Done { tables });
            }
            busy.make(new); // C5
            self.publish();
            drop(held); // C6
            drop(child);
            return Ok(Coalesced::Done { tables: free() }); // C7
        }
    }

    /// Makes this CPU the one that cleans the holes of a table (C1). Several CPUs may fault there at once, and only one
    /// of them should spend the time to clean (Wang 2021: clean on map).
    fn claim(
        &self,
        location: &EntryLocation<'_, G>,
        below: Level,
        new: Descriptor<G>,
        maintenance: CacheMaintenance,
    ) -> Result<Claim, Retry> {
        // W3: before it, the entry may not be a table's, and the page may have no metadata.
        if !self.is_still_linked(location) {
            return Err(Retry);
        }
        let (table, entries) = (location.entry.address(), self.geometry().granule().entries());
        let metadata = self.platform().metadata(table);
        // Without the lock, which the CPU with the claim needs in C2.
        if metadata.link() & TableMetadata::CLAIMED != 0 {
            self.platform().pause(1);
            return Err(Retry);
        }
        let locked = self.lock_table(table, entries, below, location.then)?;
        if metadata.link() & TableMetadata::CLAIMED != 0 {
            return Err(Retry);
        }
        metadata.set_link(metadata.link() | TableMetadata::CLAIMED);
        let nothing_to_clean = Claim { cleaned: true, other_memory: false };
        Ok(if maintenance.cleans() { self.look_for(new, locked.table, below) } else { nothing_to_clean })
    }

    /// Gives up the claim of a table (C1), unless the table was unlinked meanwhile.
    ///
    /// No W3 for the last entry. If the table that has the entry was unlinked during the walk, the claimed one was unlinked
    /// with it, or before. If the entry leads to the claimed table all the same, W4 finds the count changed.
    #[cold]
    pub(crate) fn give_up_claim(&self, ipa: Ipa, level: Level, table: Pa) {
        let Some(below) = level.below() else { return };
        loop {
            let location = self.lockless_walk(ipa, level);
            if location.entry != Descriptor::table(table) {
                return;
            }
            let entries = self.geometry().granule().entries();
            if let Ok(_locked) = self.lock_table(table, entries, below, location.then) {
                let metadata = self.platform().metadata(table);
                metadata.set_link(metadata.link() & !TableMetadata::CLAIMED);
                return;
            }
        }
    }

    /// Looks at all leaves of a locked table, and of the tables below it. That is faster than the walk over the holes,
    /// which is not needed if there are none.
    ///
    /// The tables below are not locked, but stay linked. A CPU that maps there during this look cleans what it maps. C2
    /// takes the locks of those tables before the break, so that cleaning is complete by then.
    fn look_for(&self, new: Descriptor<G>, table: Table<'_, G>, level: Level) -> Claim {
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

struct Claim {
    /// There are no holes: every entry is a leaf of the block's memory type, and was cleaned when it was made.
    cleaned: bool,
    /// Some leaves have another memory type.
    other_memory: bool,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::hosted::Hosted;
    use crate::{Access, Geometry, Vmid};

    /// Another CPU may have claimed the table that is there by now.
    #[test]
    fn a_claim_of_another_table_is_not_given_up() {
        let (platform, memory) = Hosted::new(6 << 20);
        let geometry = Geometry::new(Kib4, 40, &Hosted::features()).unwrap();
        let (mut tables, root, ram) = platform.cut(memory, &geometry).unwrap();
        let stage2 = Stage2::new(platform, Hosted::features(), geometry, Vmid::new(1), root).unwrap();
        let at = [0, 2 << 20].map(Ipa::new);
        let lent = stage2.lend(ram, at[0], at[0]..at[1] + 4096);
        let [first, second] = at.map(|ipa| {
            let grant = stage2.grant(&lent, ipa, 4096).unwrap();
            assert_eq!(grant.map(Level::L3, &Attributes::ram(Access::READ), &mut tables), Ok(Mapped::New));
            let table = stage2.lockless_walk(ipa, Level::L2).entry.address();
            stage2.platform().metadata(table).set_link(TableMetadata::CLAIMED);
            table
        });
        let claimed = || [first, second].map(|table| stage2.platform().metadata(table).link());
        stage2.give_up_claim(at[0], Level::L2, second);
        assert_eq!(claimed(), [TableMetadata::CLAIMED; 2]);
        stage2.give_up_claim(at[0], Level::L2, first);
        assert_eq!(claimed(), [0, TableMetadata::CLAIMED]);
        let (root, _) = stage2.destroy(&mut tables, crate::Unwatched);
        assert!(root.reclaim(lent).is_ok());
    }
}
