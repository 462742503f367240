// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table in memory, and the accesses to its entries.
//!
//! All accesses to an entry of a linked table are atomic: lockless walks read it, and hardware may set its access flag
//! and dirty state at any time. Software writes it only under the table's lock, by
//!
//! * a store, if the old value is not needed (an invalid entry), or if hardware can add no more than an access flag.
//!   The store may lose that flag: the guest's next access sets it again;
//! * a read-modify-write, if hardware may record a write (DBM), or if the old value is needed.
//!
//! Each access is as wide as an entry. Rows of eight entries are read and written one after the other, with nothing
//! between. That is as fast as the CPU's vector instructions, since memory is the limit (`twofold bench engine`:
//! `limit_read`).

use core::marker::PhantomData;

use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::{Descriptor, Granule, Pa};

/// The entries of a table, or of all the concatenated tables of a root.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a, G: Granule> {
    pa: Pa,
    entries: &'a [Word],
    granule: PhantomData<G>,
}

/// The entries of a 64-byte cache line. For the model checker, the entries of a table.
pub(crate) const ROW: usize = if cfg!(loom) { 2 } else { 8 };

impl<'a, G: Granule> Table<'a, G> {
    /// The `entries` entries from `pa` on.
    ///
    /// # Safety
    ///
    /// `pa` is a table page or a root, donated for tables, with `entries` entries. That is a power of two.
    #[inline(always)]
    pub(crate) unsafe fn at<P: Platform>(platform: &'a P, pa: Pa, entries: usize) -> Self {
        let pointer = platform.pointer(pa).cast::<Word>();
        // SAFETY: a table page is donated memory that is mapped while the platform lives, and aligned to 4 KiB. It is
        // accessed only atomically or by instructions, and any 64 bits are a valid `Word`. That also holds for a page
        // that was a table when it was looked up, and is none any more.
        let entries = unsafe { core::slice::from_raw_parts(pointer.as_ptr(), entries) };
        Self { pa, entries, granule: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn pa(self) -> Pa {
        self.pa
    }

    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.entries.len()
    }

    /// The entry at `index`, which the caller keeps below the number of entries. A release build would return the first
    /// entry instead of one that is not there: a program around this crate has no path that panics.
    #[inline(always)]
    pub(crate) fn entry(self, index: usize) -> Cell<'a, G> {
        debug_assert!(index < self.entries.len(), "a table of {} entries has none at {index}", self.entries.len());
        let inside = if index < self.entries.len() { index } else { 0 };
        // SAFETY: `inside` is below the number of entries, which is not 0 (`at`).
        Cell(unsafe { self.entries.get_unchecked(inside) }, PhantomData)
    }

    /// The entry at `index`, if there is one.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<Cell<'a, G>> {
        self.entries.get(index).map(|word| Cell(word, PhantomData))
    }

    /// All entries.
    #[inline(always)]
    pub(crate) fn all(self) -> &'a [Word] {
        self.entries
    }

    /// The entries from `start` up to, but not including, `end`. None if the table does not have them all.
    #[inline(always)]
    pub(crate) fn cells(self, start: usize, end: usize) -> &'a [Word] {
        debug_assert!(start <= end && end <= self.entries.len(), "{start} to {end} of {}", self.entries.len());
        self.entries.get(start..end).unwrap_or_default()
    }

    /// All entries, in rows: a table has a whole number of rows.
    #[inline(always)]
    pub(crate) fn rows(self) -> &'a [[Word; ROW]] {
        self.entries.as_chunks().0
    }

    /// Writes `count` leaves from `index` on. The first is `first`; each of the others maps `step` bytes after the one
    /// before.
    ///
    /// The table is not linked yet, or it is locked and these entries are invalid. Relaxed.
    #[inline(always)]
    pub(crate) fn fill(self, index: usize, count: usize, first: Descriptor<G>, step: u64) {
        let mut raw = first.raw();
        let cells = self.cells(index, index + count);
        if G::IS_PLAIN || first.advances_plainly(count as u64 * step) {
            // The loop over bare words is faster than one over descriptors.
            for cell in cells {
                cell.store(raw, Ordering::Relaxed);
                raw = raw.wrapping_add(step);
            }
        } else {
            for cell in cells {
                cell.store(raw, Ordering::Relaxed);
                raw = Descriptor::<G>::from_raw(raw).advanced(step).raw();
            }
        }
    }
}

/// One entry in memory.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a, G: Granule>(&'a Word, PhantomData<G>);

impl<'a, G: Granule> Cell<'a, G> {
    /// One of a table's [`cells`](Table::cells).
    #[inline(always)]
    pub(crate) const fn of(word: &'a Word) -> Self {
        Self(word, PhantomData)
    }

    /// W2: loads the entry for a lockless walk.
    ///
    /// Acquire: a CPU that finds a table sees the entries that were written before it was linked. A CPU that reads the
    /// new content of a reused page also sees the new sequence count (module `lockless_walk`).
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn look(self) -> Descriptor<G> {
        Descriptor::from_raw(self.0.load(Ordering::Acquire))
    }

    /// Loads the entry. Relaxed: the caller holds the table's lock, owns the table alone, or needs no more than a
    /// recent value.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn read(self) -> Descriptor<G> {
        Descriptor::from_raw(self.0.load(Ordering::Relaxed))
    }

    /// Writes an entry under the table's lock.
    ///
    /// Release: the table or frame that it leads to is ready, and the lock is taken. A late walk that reads the entry
    /// in a reused page also sees the new sequence count (module `lockless_walk`).
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn write(self, new: Descriptor<G>) {
        self.0.store(new.raw(), Ordering::Release);
    }

    /// Writes an entry with relaxed ordering. For three cases:
    ///
    /// * a change of what a leaf allows, under the lock and after a release fence: the leaf's memory was ready when it
    ///   was made;
    /// * a busy entry, from which a CPU uses nothing;
    /// * a table that is not linked.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn set(self, new: Descriptor<G>) {
        self.0.store(new.raw(), Ordering::Relaxed);
    }

    /// States that the next store may overwrite what hardware records in `old`, the entry's value. Everywhere else, a
    /// trace reports a store over an entry with DBM as a lost record.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn unrecorded(self, old: Descriptor<G>) {
        if old.is_hardware_tracked() {
            self.0.unrecorded();
        }
    }

    /// Replaces the entry with one that leads nowhere, and returns its last value, with what hardware added to it.
    ///
    /// Relaxed, as `clear_bits` and `update` below. The table's lock orders the change for the next CPU that locks it. A
    /// late walk is ordered by the last store with release: a read-modify-write continues its release sequence.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn exchange<P: Platform>(self, new: Descriptor<G>, platform: &P) -> Descriptor<G> {
        platform.on_atomic();
        Descriptor::from_raw(self.0.swap(new.raw(), Ordering::Relaxed))
    }

    /// Clears `bits`, and returns the entry's last value.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn clear_bits<P: Platform>(self, bits: u64, platform: &P) -> Descriptor<G> {
        platform.on_atomic();
        Descriptor::from_raw(self.0.fetch_and(!bits, Ordering::Relaxed))
    }

    /// Replaces the entry if it is still `old`: hardware may have recorded something in it. Returns whether it did.
    ///
    /// Release, as [`write`](Self::write): a CPU that finds what the leaf allows now changes nothing, and takes no lock.
    /// Its own barrier makes this change visible to its walks only if its walk here (W2) has acquired it.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn replace<P: Platform>(self, old: Descriptor<G>, new: Descriptor<G>, platform: &P) -> bool {
        platform.on_atomic();
        self.0.compare_exchange(old.raw(), new.raw(), Ordering::Release).is_ok()
    }

    /// Changes a valid leaf by `change`, repeated until hardware does not interfere. Returns the old and the new value.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn update<P: Platform>(
        self,
        platform: &P,
        change: impl Fn(Descriptor<G>) -> Descriptor<G>,
    ) -> (Descriptor<G>, Descriptor<G>) {
        let mut old = self.read();
        loop {
            let new = change(old);
            if new == old {
                return (old, new);
            }
            platform.on_atomic();
            match self.0.compare_exchange(old.raw(), new.raw(), Ordering::Relaxed) {
                Ok(_) => return (old, new),
                Err(now) => old = Descriptor::from_raw(now),
            }
        }
    }
}
