// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table in memory, and the accesses to its entries.
//!
//! An entry of a linked table is touched by atomic accesses only, since walks read it and hardware may set its
//! access flag and dirty state at any time. Who holds the table's lock is the only software that writes:
//!
//! * a store where the old value is of no interest (invalid entries), and where hardware may add an access flag at
//!   most, which is then lost: the guest's next access sets it again;
//! * a read-modify-write where hardware may record a write (DBM), and wherever the old value counts.
//!
//! The accesses are as wide as an entry. Rows of eight are read and written one after the other with nothing between:
//! that is as fast as this CPU's vectors, as memory is what they wait for (`twofold bench engine`: `limit_read`).

use crate::platform::Platform;
use crate::primitive::{Ordering, Word};
use crate::{Descriptor, Pa};

/// The entries of a table, or of all the concatenated tables of a root.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    pa: Pa,
    entries: &'a [Word],
}

/// The entries of a cache line of 64 bytes; of a table, for the model checker.
pub(crate) const ROW: usize = if cfg!(loom) { 2 } else { 8 };

impl<'a> Table<'a> {
    /// The `entries` entries from `pa`.
    ///
    /// # Safety
    ///
    /// `pa` is a page or a root that was donated for tables, with so many entries.
    #[inline(always)]
    pub(crate) unsafe fn at<P: Platform>(platform: &'a P, pa: Pa, entries: usize) -> Self {
        let pointer = platform.pointer(pa).cast::<Word>();
        // SAFETY: a table page is donated memory, mapped while the platform lives and aligned to 4 KiB; it is only ever
        // accessed atomically or by instructions, and any 64 bits are a value of `Word`. That holds for what was a
        // table when it was looked up and is something else by now, too.
        Self { pa, entries: unsafe { core::slice::from_raw_parts(pointer.as_ptr(), entries) } }
    }

    #[inline(always)]
    pub(crate) fn pa(self) -> Pa {
        self.pa
    }

    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.entries.len()
    }

    #[inline(always)]
    pub(crate) fn entry(self, index: usize) -> Cell<'a> {
        Cell(&self.entries[index])
    }

    /// The entries from `start` to `end`.
    #[inline(always)]
    pub(crate) fn cells(self, start: usize, end: usize) -> &'a [Word] {
        &self.entries[start..end]
    }

    /// All entries, row by row: a table is made of whole rows.
    #[inline(always)]
    pub(crate) fn rows(self) -> &'a [[Word; ROW]] {
        self.entries.as_chunks().0
    }

    /// Writes `count` leaves from `first` on, each mapping `step` bytes behind the one before, into a table that no walk
    /// sees yet, or over invalid entries of a table that is locked.
    #[inline(always)]
    pub(crate) fn fill(self, index: usize, count: usize, first: Descriptor, step: u64) {
        let mut raw = first.raw();
        for cell in &self.entries[index..index + count] {
            cell.store(raw, Ordering::Relaxed);
            raw = raw.wrapping_add(step);
        }
    }
}

/// One entry in memory.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a>(&'a Word);

impl Cell<'_> {
    /// What is there now, for who descends. Acquire: who finds a table sees the entries that were written before it was
    /// linked, and who finds what came after a table was given away sees that it was.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn look(self) -> Descriptor {
        Descriptor::from_raw(self.0.load(Ordering::Acquire))
    }

    /// What is there now, for who holds the table's lock, has the table alone, or can do with what was there.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn read(self) -> Descriptor {
        Descriptor::from_raw(self.0.load(Ordering::Relaxed))
    }

    /// Writes an entry under the table's lock. Release: the table or the frame it leads to is ready, and the lock is taken;
    /// and who comes too late, to a page that is another table by now, sees that it is (module `descent`).
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn write(self, new: Descriptor) {
        self.0.store(new.raw(), Ordering::Release);
    }

    /// Changes a leaf in what it allows, under the table's lock and behind a release fence, or makes an entry busy, or writes
    /// into a table that nobody else has. Relaxed: what the leaf leads to was ready when it was made.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn set(self, new: Descriptor) {
        self.0.store(new.raw(), Ordering::Relaxed);
    }

    /// The store that follows may overwrite what hardware records in `old`, which is what the entry was. A trace states it: a
    /// store over an entry with DBM is a lost record everywhere else.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn unrecorded(self, old: Descriptor) {
        if old.is_armed() {
            self.0.unrecorded();
        }
    }

    /// Writes an entry that leads nowhere, and tells what it was at that moment, with what hardware had added to it.
    ///
    /// Relaxed, as the others below: who changes an entry has the table's lock, which orders that for whoever has it next;
    /// and to who comes too late, a read-modify-write orders what the store before it did.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn exchange<P: Platform>(self, new: Descriptor, platform: &P) -> Descriptor {
        platform.on_atomic();
        Descriptor::from_raw(self.0.swap(new.raw(), Ordering::Relaxed))
    }

    /// Clears these bits, and tells what the entry was at that moment.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn clear<P: Platform>(self, bits: u64, platform: &P) -> Descriptor {
        platform.on_atomic();
        Descriptor::from_raw(self.0.fetch_and(!bits, Ordering::Relaxed))
    }

    /// Replaces an entry, if it is still `old`: hardware may have recorded something in it. Whether it was.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn replace<P: Platform>(self, old: Descriptor, new: Descriptor, platform: &P) -> bool {
        platform.on_atomic();
        self.0.compare_exchange(old.raw(), new.raw(), Ordering::Relaxed).is_ok()
    }

    /// Changes a valid leaf in place by `change`, repeated until hardware did not interfere; returns old and new.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn update<P: Platform>(
        self,
        platform: &P,
        change: impl Fn(Descriptor) -> Descriptor,
    ) -> (Descriptor, Descriptor) {
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
