// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lockless walk to an entry, and the table lock at its end.
//!
//! A CPU walks the tables while other CPUs unlink tables and reuse their pages. One sequence count for each tree
//! (module `sequence`) keeps that safe: it counts the tables that were ever unlinked. The walk writes nothing, registers
//! nowhere, and delays no free.
//!
//! # Steps
//!
//! Page [`locking`](crate::pages::locking) has the whole protocol. The walk, and where each step is here:
//!
//! * **W1**: read the sequence count, with acquire (`SequenceCount::now`). A map by a grant of lent memory starts with the
//!   grant's sample, which is older, and serves as well (module `withdraw`).
//! * **W2**: load an entry with acquire ([`Cell::look`]).
//! * **W3**: before following or using the entry, read the count again (`SequenceCount::is_still`). If it changed, go back
//!   to W1.
//! * **W4**: to change the entry, lock its table, then read the count again ([`Stage2::lock`]). If it changed, unlock
//!   and go back to W1.
//!
//! The steps of an unlink that the argument needs:
//!
//! * **U1**: lock the parent, then the table.
//! * **U2**: break the parent's entry.
//! * **U3**: increment the count, with release (`SequenceCount::count`).
//! * **U4**: take and release the lock of each table below (module `tables_below`).
//! * **U5**: unlock. **U6**: flush; only then is the page freed (module `unlinked`).
//!
//! A coalesce makes the parent's entry busy in U2 and unlocks the parent at once. It holds the table's lock until after
//! U3.
//!
//! [`Stage2::lockless_walk`] does W1 to W3 for each entry above the level that it is asked for. An entry of that level is
//! returned after W2 only: the caller does W3 ([`Stage2::is_still_linked`]) or W4 ([`Stage2::lock`]) before it relies on it.
//!
//! # Why it is safe
//!
//! * **No walk follows a link that W1 counted as gone.** U2 comes before U3. W1 reads what U3 released, so each later
//!   load of this walk sees the break.
//! * **An entry that passes W3 was read from a table.** Suppose that the page was freed and reused before W2. Its new
//!   content was written after U3: between them lie the flush U6, the hand-over of the page
//!   ([`TableSource`](crate::TableSource)), and the release fence of `frame::take`. W2 is an acquire, so a CPU that
//!   reads new content reads the new count in W3, and goes back to W1.
//! * **An unlinked table that is not reused yet does no harm.** Its entries lead only to tables that were unlinked with
//!   it, and the next W3 covers those.
//! * **A table that passes W4 is linked, and stays linked until it is unlocked.** An unlink of this table takes its
//!   lock (U1), and counts (U3) before it releases that lock. An unlink of a table above takes this table's lock after
//!   U3 (U4), or holds it across U3 (coalesce). So a CPU that gets the lock afterwards sees the new count. A CPU that
//!   gets it before finishes its change before the flush U6.
//! * **W4 may take the lock of a page that is no table any more.** That does no harm: the metadata is beside the frame,
//!   and outlives the table. The CPU finds the count changed, and unlocks.
//! * **Going back to W1 is always possible.** The walk has changed nothing yet.
//!
//! The root is never unlinked, so an entry of the root needs no W3.
//!
//! The model checker runs walks against unlinks and reuse in `loom::late` and `loom::reused`.

use crate::counts::Counts;
use crate::metadata::TableMetadata;
use crate::platform::Platform;
use crate::primitive;
use crate::sequence::Snapshot;
use crate::table::{Cell, Table};
use crate::{Descriptor, Granule, Ipa, Level, Pa, Stage2};

/// Where a lockless walk ended.
#[derive(Clone, Copy)]
pub(crate) struct EntryLocation<'a, G: Granule> {
    pub(crate) table: Table<'a, G>,
    pub(crate) level: Level,
    pub(crate) index: usize,
    pub(crate) cell: Cell<'a, G>,
    /// The entry, as W2 loaded it. At the level that was asked for, it is valid only after W3 ([`Stage2::is_still_linked`]).
    /// Read it again under the lock (W4).
    pub(crate) entry: Descriptor<G>,
    /// The snapshot of W1.
    pub(crate) then: Snapshot,
}

/// Retry from W1: a table was unlinked since the snapshot, or another CPU is changing the entry.
#[derive(Debug)]
pub(crate) struct Retry;

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Walks without locks towards `ipa`'s entry in the table of `level`, as far as there are tables. `ipa` must be
    /// inside the IPA space.
    #[inline(always)]
    pub(crate) fn lockless_walk(&self, ipa: Ipa, level: Level) -> EntryLocation<'_, G> {
        loop {
            let then = self.sequence.now(); // W1
            if let Ok(location) = self.lockless_walk_since(then, ipa, level) {
                return location;
            }
        }
    }

    /// [`lockless_walk`](Self::lockless_walk), for an operation that does much else. Inlined everywhere, the walk would be a
    /// large part of the code.
    #[inline(never)]
    pub(crate) fn lockless_walk_out_of_line(&self, ipa: Ipa, level: Level) -> EntryLocation<'_, G> {
        self.lockless_walk(ipa, level)
    }

    /// One [`lockless_walk`](Self::lockless_walk), whose snapshot of W1 the caller has taken.
    #[inline(always)]
    pub(crate) fn lockless_walk_since(
        &self,
        then: Snapshot,
        ipa: Ipa,
        level: Level,
    ) -> Result<EntryLocation<'_, G>, Retry> {
        let index = (ipa.raw() >> self.geometry().root_shift()) as usize;
        self.lockless_walk_from((index, self.root().entry(index)), then, ipa, level)
    }

    /// The index and the cell of `ipa`'s entry in the root; `None` if `ipa` is outside the IPA space.
    #[inline(always)]
    pub(crate) fn root_entry(&self, ipa: Ipa) -> Option<(usize, Cell<'_, G>)> {
        let index = (ipa.raw() >> self.geometry().root_shift()) as usize;
        Some((index, self.root().get(index)?))
    }

    /// [`lockless_walk_since`](Self::lockless_walk_since), from `ipa`'s entry in the root.
    #[inline(always)]
    pub(crate) fn lockless_walk_from<'a>(
        &'a self,
        (mut index, mut cell): (usize, Cell<'a, G>),
        then: Snapshot,
        ipa: Ipa,
        level: Level,
    ) -> Result<EntryLocation<'a, G>, Retry> {
        let mut at = self.geometry().root_level();
        let mut table = self.root();
        let mut shift = self.geometry().root_shift();
        let mut entry = cell.look();
        // No W3 for the root's entry: the root is never unlinked.
        while at < level && entry.is_table(at) {
            let Some(below) = at.below() else { break };
            table = self.table(entry);
            at = below;
            // DeferredFree along the way: the root's level is known at run time only.
            shift -= G::STRIDE;
            index = (ipa.raw() >> shift) as usize & (self.geometry().granule().entries() - 1);
            cell = table.entry(index);
            entry = cell.look(); // W2
            // W3. At `level` it is the caller's.
            if at < level && !self.sequence.is_still(then) {
                return Err(Retry);
            }
        }
        Ok(EntryLocation { table, level: at, index, cell, entry, then })
    }

    /// W3 for the last entry: whether the table was linked when the entry was read.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn is_still_linked(&self, location: &EntryLocation<'_, G>) -> bool {
        self.sequence.is_still(location.then)
    }

    /// W4: locks the table of an entry, if it is still linked.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock(&self, location: &EntryLocation<'_, G>) -> Result<Locked<'_, P, G>, Retry> {
        self.lock_table(location.table.pa(), location.table.len(), location.level, location.then)
    }

    /// W4 for a table that was found after the snapshot `then`.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock_table(
        &self,
        pa: Pa,
        entries: usize,
        level: Level,
        then: Snapshot,
    ) -> Result<Locked<'_, P, G>, Retry> {
        let locked = self.lock_whatever(pa, entries, level);
        if self.sequence.is_still(then) { Ok(locked) } else { Err(Retry) }
    }

    /// Locks a table without a look at the count. Either the table cannot be unlinked, since the table above is locked
    /// or an entry of it is busy, or the caller looks at the count next (W4).
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock_whatever(&self, pa: Pa, entries: usize, level: Level) -> Locked<'_, P, G> {
        // SAFETY: the caller has `pa` from the root or from an entry of this tree, so it is a table page or was one.
        let table = unsafe { Table::at(self.platform(), pa, entries) };
        let metadata = self.platform().metadata(pa);
        let counts = metadata.lock(self.platform());
        Locked { stage2: self, table, metadata, level, counts }
    }

    /// A table whose lock this CPU has [kept](Locked::keep_locked).
    pub(crate) fn still_locked(&self, pa: Pa, level: Level) -> Locked<'_, P, G> {
        // SAFETY: as when it was locked: a locked table stays a table.
        let table = unsafe { Table::at(self.platform(), pa, self.geometry().granule().entries()) };
        let metadata = self.platform().metadata(pa);
        Locked { stage2: self, table, metadata, level, counts: metadata.last() }
    }
}

/// A table whose lock this CPU holds.
///
/// Each change of an entry updates `counts`. Dropping this writes them to the table's metadata, and unlocks it.
pub(crate) struct Locked<'a, P: Platform, G: Granule> {
    pub(crate) stage2: &'a Stage2<P, G>,
    pub(crate) table: Table<'a, G>,
    metadata: &'a TableMetadata,
    pub(crate) level: Level,
    pub(crate) counts: Counts,
}

impl<'a, P: Platform, G: Granule> Locked<'a, P, G> {
    #[inline(always)]
    pub(crate) fn entry(&self, index: usize) -> Descriptor<G> {
        self.table.entry(index).read()
    }

    /// Notes that a leaf of this table is about to be something else than normal memory.
    pub(crate) fn note_other_memory(&self) {
        self.metadata.note_other_memory();
    }

    /// Whether the table may hold leaves whose lines must be cleaned from the caches when the leaves are removed.
    #[inline(always)]
    pub(crate) fn leaves_lines(&self) -> bool {
        !self.stage2.features().forced_write_back || self.has_other_memory()
    }

    /// Whether the table may hold leaves that are not normal memory.
    #[inline(always)]
    pub(crate) fn has_other_memory(&self) -> bool {
        self.metadata.has_other_memory()
    }

    /// Makes an entry of this table valid that was invalid.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn make(&mut self, cell: Cell<'_, G>, new: Descriptor<G>) {
        self.counts += Counts::of(new, self.level);
        cell.write(new);
    }

    /// Removes an entry, and returns its last value. The entry is left as `stale`.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn take(&mut self, index: usize, stale: Descriptor<G>) -> Descriptor<G> {
        let cell = self.table.entry(index);
        let mut old = cell.read();
        // With DBM, hardware may record a write at any moment: an exchange returns the last record.
        if old.is_hardware_tracked() {
            old = cell.exchange(stale, self.stage2.platform());
        } else {
            cell.write(stale);
        }
        self.counts -= Counts::of(old, self.level);
        old
    }

    /// Removes an entry whose last value is not needed. A write that hardware records at this moment is lost.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn take_unrecorded(&mut self, index: usize, stale: Descriptor<G>) {
        let cell = self.table.entry(index);
        self.take_unrecorded_in(cell, cell.read(), stale);
    }

    /// [`take_unrecorded`](Self::take_unrecorded), for a caller that has the cell, and has read `old` under the lock.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn take_unrecorded_in(&mut self, cell: Cell<'_, G>, old: Descriptor<G>, stale: Descriptor<G>) {
        self.counts -= Counts::of(old, self.level);
        cell.unrecorded(old);
        cell.write(stale);
    }

    /// Breaks an entry, and reserves it for this CPU until [`Busy::make`]. Unlocks the table.
    ///
    /// Returns [`Retry`] if the table's count of busy entries is at its maximum.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn make_busy(mut self, cell: Cell<'a, G>) -> Result<Busy<'a, P, G>, Retry> {
        if self.counts.is_as_busy_as_can_be() {
            let platform = self.stage2.platform();
            drop(self);
            platform.pause(1);
            return Err(Retry);
        }
        let mut old = cell.read();
        // Relaxed: a CPU that reads BUSY retries. No ordering is needed, because it uses nothing else it read.
        if old.is_hardware_tracked() {
            old = cell.exchange(Descriptor::BUSY, self.stage2.platform());
        } else {
            cell.set(Descriptor::BUSY);
        }
        self.counts -= Counts::of(old, self.level);
        self.counts += Counts::BUSY;
        Ok(Busy { stage2: self.stage2, table: self.table, level: self.level, cell, old })
    }

    /// Clears bits of a valid leaf by a plain store, which loses a write that hardware records at this moment. Only for
    /// a leaf whose record the caller has already, or does not need.
    #[inline(always)]
    pub(crate) fn take_bits(&mut self, cell: Cell<'_, G>, bits: u64) {
        let old = cell.read();
        cell.unrecorded(old);
        cell.set(old.without(bits));
        self.counts -= Counts::of(old, self.level);
        self.counts += Counts::of(old.without(bits), self.level);
    }

    /// Clears bits of a valid leaf by a read-modify-write, and returns its last value.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn clear(&mut self, index: usize, bits: u64) -> Descriptor<G> {
        let old = self.table.entry(index).clear_bits(bits, self.stage2.platform());
        self.counts -= Counts::of(old, self.level);
        self.counts += Counts::of(old.without(bits), self.level);
        old
    }

    /// Changes a valid leaf, and returns the old and the new value. A leaf without DBM is changed by a store, a leaf
    /// with DBM by a read-modify-write.
    #[inline(always)]
    pub(crate) fn change(
        &mut self,
        index: usize,
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> (Descriptor<G>, Descriptor<G>) {
        let cell = self.table.entry(index);
        let (old, new) = self.change_cell(cell, change);
        self.counts += Counts::of(new, self.level);
        self.counts -= Counts::of(old, self.level);
        (old, new)
    }

    /// Replaces a valid leaf by `new` if it is still `old`.
    ///
    /// Release, for two reasons. A pass that sees what the leaf allows now must find the table locked, or its new counts.
    /// A CPU that sees it returns to its guest without the lock ([`Relaxed::Already`](crate::Relaxed)), and relies on its
    /// own barrier to make the leaf visible to its walks.
    #[inline(always)]
    pub(crate) fn replace_in(
        &mut self,
        cell: Cell<'_, G>,
        old: Descriptor<G>,
        new: Descriptor<G>,
    ) -> Result<(), Retry> {
        if cell.read() != old {
            return Err(Retry);
        }
        if !old.is_hardware_tracked() {
            cell.write(new);
        } else if !cell.replace(old, new, self.stage2.platform()) {
            return Err(Retry);
        }
        self.counts += Counts::of(new, self.level);
        self.counts -= Counts::of(old, self.level);
        Ok(())
    }

    #[inline(always)]
    fn change_cell(
        &self,
        cell: Cell<'_, G>,
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> (Descriptor<G>, Descriptor<G>) {
        let old = cell.read();
        if old.is_hardware_tracked() {
            return cell.update(self.stage2.platform(), change);
        }
        let new = change(old);
        if new != old {
            cell.set(new);
        }
        (old, new)
    }

    /// Keeps the lock of a table that was not changed. [`Stage2::still_locked`] returns the table later.
    pub(crate) fn keep_locked(self) {
        core::mem::forget(self);
    }

    /// U1: the table, if none of its entries is busy. Otherwise unlocks it, waits a moment, and returns [`Retry`]: a
    /// table with a busy entry is not unlinked.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn quiet(self) -> Result<Self, Retry> {
        if primitive::check(self.counts.busy() == 0) {
            return Ok(self);
        }
        // Unlock first: the owner of the busy entry needs this lock to make the entry.
        let platform = self.stage2.platform();
        drop(self);
        platform.pause(1);
        Err(Retry)
    }
}

impl<P: Platform, G: Granule> Drop for Locked<'_, P, G> {
    #[inline(always)]
    fn drop(&mut self) {
        self.metadata.unlock(self.counts);
    }
}

/// An entry that is invalid for hardware, and reserved for the CPU that broke it. No lock is held. Other CPUs retry
/// until it is made.
#[must_use = "make() the entry, or every CPU that needs it waits for ever"]
pub(crate) struct Busy<'a, P: Platform, G: Granule> {
    stage2: &'a Stage2<P, G>,
    table: Table<'a, G>,
    level: Level,
    cell: Cell<'a, G>,
    /// The last value before the break.
    pub(crate) old: Descriptor<G>,
}

impl<P: Platform, G: Granule> Busy<'_, P, G> {
    /// Makes the entry valid, and ends the reservation.
    pub(crate) fn make(self, new: Descriptor<G>) {
        let mut locked = self.stage2.lock_whatever(self.table.pa(), self.table.len(), self.level);
        locked.counts -= Counts::BUSY;
        locked.make(self.cell, new);
    }
}
