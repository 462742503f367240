// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way down to an entry, without locks, and the lock at its end.
//!
//! Tables are taken out of the tree, and their pages used again, while others are on their way through them. What keeps
//! that safe is one count, [`Unlinked`], of the tables that were ever taken out:
//!
//! * whoever takes a table out breaks the entry that leads to it, then counts, while it holds the locks of the table and
//!   of the one above, or has made that entry busy; only later can the page become anything else;
//! * whoever descends reads the count first, and again after each entry that it is going to follow. Where it is still
//!   the same, every table it has come through was in the tree when its entry was read, so the entry is one;
//! * who has locked the table at the end, and finds the count still the same, has a table that is in the tree and
//!   stays there until it is unlocked: a break that it did not see would have been counted before it got the lock.
//!
//! Where the count has moved, the descent begins anew: it has done nothing yet. No reader writes anything, registers
//! anywhere, or makes a free wait.
//!
//! Why the check after an entry is enough: an entry that was read from a page given away meanwhile was written after
//! the count (program order, and the barriers of the flush in between), and is read with acquire before the count is
//! read again, so the count that is read is a new one.

use crate::platform::Platform;
use crate::primitive::{self, Ordering, Word};
use crate::record::{Counts, Record};
use crate::table::{Cell, Table};
use crate::{Descriptor, Ipa, Level, Pa, Stage2};

/// How many tables were ever taken out of a tree. Alone in its cache line, since everybody reads it and hardly anybody
/// writes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Unlinked(Word);

impl Unlinked {
    /// The count before a descent.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Acquire))
    }

    /// Whether nothing was taken out since, as far as everything is concerned that was read, with acquire, before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn is_still(&self, then: Moment) -> bool {
        primitive::check(self.0.load(Ordering::Relaxed) == then.0)
    }

    /// Counts one table, or a table and all below it, whose entry was broken. Tells what the count was.
    ///
    /// Release: the break comes first. Who finds that nobody else has counted since its descent began knows of all that was
    /// counted before.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn count<P: Platform>(&self, platform: &P) -> Moment {
        platform.on_atomic();
        Moment(self.0.fetch_add(1, Ordering::Release))
    }
}

#[cfg(feature = "checked")]
impl<P: Platform> Stage2<P> {
    /// How often a table was taken out of the tree, a table and all below it being once.
    pub fn taken_out(&self) -> u64 {
        self.unlinked.0.load(Ordering::Relaxed)
    }
}

/// What [`Unlinked`] was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The moment after one table more.
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Where a descent ended.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) table: Table<'a>,
    pub(crate) level: Level,
    pub(crate) index: usize,
    pub(crate) cell: Cell<'a>,
    /// What was found there. To be believed only after [`Stage2::is_still`], or under the lock.
    pub(crate) entry: Descriptor,
    pub(crate) then: Moment,
}

/// A table was taken out of the tree meanwhile, or somebody else is at it: the descent has to begin anew.
#[derive(Debug)]
pub(crate) struct Moved;

impl<P: Platform> Stage2<P> {
    /// Goes down towards `ipa`'s entry in the table of `level`, as far as there are tables. `ipa` is inside the IPA
    /// space.
    #[inline(always)]
    pub(crate) fn descend(&self, ipa: Ipa, level: Level) -> Place<'_> {
        loop {
            if let Ok(place) = self.descend_once(ipa, level) {
                return place;
            }
        }
    }

    #[inline(always)]
    fn descend_once(&self, ipa: Ipa, level: Level) -> Result<Place<'_>, Moved> {
        let then = self.unlinked.now();
        let mut at = self.geometry().root_level();
        let mut table = self.root();
        let mut shift = self.geometry().root_shift();
        let mut index = (ipa.raw() >> shift) as usize;
        let mut cell = table.entry(index);
        let mut entry = cell.look();
        // The root is never taken out: what is read there is an entry.
        while at < level && entry.is_table(at) {
            let Some(below) = at.below() else { break };
            table = self.table(entry);
            at = below;
            // Counted along: the root's level is known at run time only.
            shift -= self.geometry().granule().stride();
            index = (ipa.raw() >> shift) as usize & (self.geometry().granule().entries() - 1);
            cell = table.entry(index);
            entry = cell.look();
            if at < level && !self.unlinked.is_still(then) {
                return Err(Moved);
            }
        }
        Ok(Place { table, level: at, index, cell, entry, then })
    }

    /// Whether what was read at that place was there.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn is_still(&self, place: &Place<'_>) -> bool {
        self.unlinked.is_still(place.then)
    }

    /// Locks the table of a place, if it is still there.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock(&self, place: &Place<'_>) -> Result<Locked<'_, P>, Moved> {
        self.lock_table(place.table.pa(), place.table.len(), place.level, place.then)
    }

    /// Locks a table that was found at `then`, if it is still there.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock_table(
        &self,
        pa: Pa,
        entries: usize,
        level: Level,
        then: Moment,
    ) -> Result<Locked<'_, P>, Moved> {
        let locked = self.lock_whatever(pa, entries, level);
        if self.unlinked.is_still(then) { Ok(locked) } else { Err(Moved) }
    }

    /// Locks a table that cannot have been taken out, since the one above is locked, or something in it is busy.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock_whatever(&self, pa: Pa, entries: usize, level: Level) -> Locked<'_, P> {
        // SAFETY: the caller had it from a root or from an entry of this tree.
        let table = unsafe { Table::at(self.platform(), pa, entries) };
        let record = self.platform().record(pa);
        let counts = record.lock(self.platform());
        Locked { stage2: self, table, record, level, counts }
    }

    /// A table whose lock was [kept](Locked::keep) by this CPU.
    pub(crate) fn kept(&self, pa: Pa, level: Level) -> Locked<'_, P> {
        // SAFETY: as when it was locked: while it is, it stays what it is.
        let table = unsafe { Table::at(self.platform(), pa, self.geometry().granule().entries()) };
        let record = self.platform().record(pa);
        Locked { stage2: self, table, record, level, counts: record.last() }
    }
}

/// A table whose lock is held. Its counts are kept with every change, and its record is written when it is dropped.
pub(crate) struct Locked<'a, P: Platform> {
    pub(crate) stage2: &'a Stage2<P>,
    pub(crate) table: Table<'a>,
    record: &'a Record,
    pub(crate) level: Level,
    pub(crate) counts: Counts,
}

impl<'a, P: Platform> Locked<'a, P> {
    #[inline(always)]
    pub(crate) fn entry(&self, index: usize) -> Descriptor {
        self.table.entry(index).read()
    }

    /// Notes that a leaf which is going to be made here is not normal memory.
    pub(crate) fn note_other_memory(&self) {
        self.record.note_other_memory();
    }

    /// Whether there may be leaves here whose lines must not stay in caches when they have gone.
    #[inline(always)]
    pub(crate) fn leaves_lines(&self) -> bool {
        !self.stage2.features().forced_write_back || self.has_other_memory()
    }

    /// Whether there may be leaves here that are not normal memory.
    #[inline(always)]
    pub(crate) fn has_other_memory(&self) -> bool {
        self.record.has_other_memory()
    }

    /// Makes an entry that was invalid.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn make(&mut self, index: usize, new: Descriptor) {
        self.make_in(self.table.entry(index), new);
    }

    /// The same for an entry of this table that is at hand.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn make_in(&mut self, cell: Cell<'_>, new: Descriptor) {
        self.counts += Counts::of(new, self.level);
        cell.write(new);
    }

    /// Breaks an entry for good, and tells what it was in the end. The flush is to come.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn take(&mut self, index: usize) -> Descriptor {
        let cell = self.table.entry(index);
        let mut old = cell.read();
        // Where hardware records writes, by one access.
        if old.is_armed() {
            old = cell.exchange(Descriptor::STALE, self.stage2.platform());
        } else {
            cell.write(Descriptor::STALE);
        }
        self.counts -= Counts::of(old, self.level);
        old
    }

    /// The same where nobody asks what hardware recorded in it.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn take_unrecorded(&mut self, index: usize) {
        let cell = self.table.entry(index);
        self.take_unrecorded_in(cell, cell.read());
    }

    /// The same for an entry of this table that is at hand, and was read under the lock.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn take_unrecorded_in(&mut self, cell: Cell<'_>, old: Descriptor) {
        self.counts -= Counts::of(old, self.level);
        cell.unrecorded(old);
        cell.write(Descriptor::STALE);
    }

    /// Breaks an entry, and lets nobody else have it until [`Busy::make`].
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn make_busy(mut self, index: usize) -> Result<Busy<'a, P>, Moved> {
        if self.counts.is_as_busy_as_can_be() {
            let platform = self.stage2.platform();
            drop(self);
            platform.pause(1);
            return Err(Moved);
        }
        let cell = self.table.entry(index);
        let mut old = cell.read();
        // Who comes too late, and finds it busy, looks again: it orders nothing.
        if old.is_armed() {
            old = cell.exchange(Descriptor::BUSY, self.stage2.platform());
        } else {
            cell.set(Descriptor::BUSY);
        }
        self.counts -= Counts::of(old, self.level);
        self.counts += Counts::BUSY;
        Ok(Busy { stage2: self.stage2, table: self.table, level: self.level, index, old })
    }

    /// Takes bits from a valid leaf of which it does not matter what hardware records meanwhile: it is told already, or
    /// nobody asks.
    #[inline(always)]
    pub(crate) fn take_bits(&mut self, index: usize, bits: u64) {
        let cell = self.table.entry(index);
        let old = cell.read();
        cell.unrecorded(old);
        cell.set(old.without(bits));
        self.counts -= Counts::of(old, self.level);
        self.counts += Counts::of(old.without(bits), self.level);
    }

    /// Clears bits of a valid leaf, and tells what it was in the end.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn clear(&mut self, index: usize, bits: u64) -> Descriptor {
        let old = self.table.entry(index).clear(bits, self.stage2.platform());
        self.counts -= Counts::of(old, self.level);
        self.counts += Counts::of(old.without(bits), self.level);
        old
    }

    /// Changes a valid leaf, by a store where hardware records no writes in it; returns old and new.
    #[inline(always)]
    pub(crate) fn change(
        &mut self,
        index: usize,
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> (Descriptor, Descriptor) {
        let cell = self.table.entry(index);
        let (old, new) = self.change_cell(cell, change);
        self.counts += Counts::of(new, self.level);
        self.counts -= Counts::of(old, self.level);
        (old, new)
    }

    /// Replaces a valid leaf that is still `old` by `new`. Release: a pass that sees what the leaf allows now must find the
    /// lock, or what is counted then, not what was counted before. Where hardware records writes it is counted already.
    #[inline(always)]
    pub(crate) fn replace_in(&mut self, cell: Cell<'_>, old: Descriptor, new: Descriptor) -> Result<(), Moved> {
        if cell.read() != old {
            return Err(Moved);
        }
        if !old.is_armed() {
            cell.write(new);
        } else if !cell.replace(old, new, self.stage2.platform()) {
            return Err(Moved);
        }
        self.counts += Counts::of(new, self.level);
        self.counts -= Counts::of(old, self.level);
        Ok(())
    }

    #[inline(always)]
    fn change_cell(&self, cell: Cell<'_>, change: impl Fn(Descriptor) -> Descriptor) -> (Descriptor, Descriptor) {
        let old = cell.read();
        if old.is_armed() {
            return cell.update(self.stage2.platform(), change);
        }
        let new = change(old);
        if new != old {
            cell.set(new);
        }
        (old, new)
    }

    /// Keeps the lock of a table that was not changed, for [`Stage2::kept`] to find it again.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }

    /// The table, if nothing in it is busy; otherwise it is unlocked, and may be taken out once that is over.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn quiet(self) -> Result<Self, Moved> {
        if primitive::check(self.counts.busy() == 0) {
            return Ok(self);
        }
        // Not with the lock, which is what the owner of the busy entry needs.
        let platform = self.stage2.platform();
        drop(self);
        platform.pause(1);
        Err(Moved)
    }
}

impl<P: Platform> Drop for Locked<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        self.record.unlock(self.counts);
    }
}

/// An entry that is invalid and belongs to whoever broke it, while no lock is held: others wait for what it becomes.
#[must_use = "make() the entry, or everybody waits for ever"]
pub(crate) struct Busy<'a, P: Platform> {
    stage2: &'a Stage2<P>,
    table: Table<'a>,
    level: Level,
    index: usize,
    /// What was broken.
    pub(crate) old: Descriptor,
}

impl<P: Platform> Busy<'_, P> {
    /// Makes the entry.
    pub(crate) fn make(self, new: Descriptor) {
        let mut locked = self.stage2.lock_whatever(self.table.pa(), self.table.len(), self.level);
        locked.counts -= Counts::BUSY;
        locked.make(self.index, new);
    }
}
