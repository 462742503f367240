// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table in memory, and the accesses to its entries.
//!
//! An entry of a linked table is touched by atomic accesses only, since walks read it and hardware may set its
//! access flag and dirty state at any time: a store where the old value is of no interest (invalid entries),
//! a read-modify-write everywhere else.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::platform::Platform;
use crate::{Descriptor, Pa};

/// The entries of a table, or of all the concatenated tables of a root.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a>(&'a [AtomicU64]);

impl<'a> Table<'a> {
    /// The `entries` entries from `pa`.
    ///
    /// # Safety
    ///
    /// `pa` is a table page or a root of this tree's, with so many entries, and stays one for `'a`.
    pub(crate) unsafe fn at<P: Platform>(platform: &'a P, pa: Pa, entries: usize) -> Self {
        let pointer = platform.pointer(pa).cast::<AtomicU64>();
        // SAFETY: a table page is donated memory, mapped while the platform lives and aligned to 4 KiB; `AtomicU64`
        // is the only type that ever refers to it, and any 64 bits are a value of it.
        Self(unsafe { core::slice::from_raw_parts(pointer.as_ptr(), entries) })
    }

    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    pub(crate) fn entry(self, index: usize) -> Cell<'a> {
        Cell(&self.0[index])
    }
}

/// One entry in memory.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'a>(&'a AtomicU64);

impl Cell<'_> {
    /// What is there now. Acquire: who finds a table sees the entries that were written before it was linked.
    pub(crate) fn load(self) -> Descriptor {
        Descriptor::from_raw(self.0.load(Ordering::Acquire))
    }

    /// Makes an entry that was invalid. Release: the table or the frame it leads to is ready.
    pub(crate) fn make(self, new: Descriptor) {
        self.0.store(new.raw(), Ordering::Release);
    }

    /// Writes an entry of a table that is not linked yet, or not any more.
    pub(crate) fn fill(self, new: Descriptor) {
        self.0.store(new.raw(), Ordering::Relaxed);
    }

    /// Breaks an entry, and tells what it was at that moment, with what hardware had added to it.
    pub(crate) fn take(self) -> Descriptor {
        Descriptor::from_raw(self.0.swap(Descriptor::INVALID.raw(), Ordering::AcqRel))
    }

    /// Changes a valid leaf in place by `change`, repeated until hardware did not interfere; returns old and new.
    pub(crate) fn update(self, change: impl Fn(Descriptor) -> Descriptor) -> (Descriptor, Descriptor) {
        let mut old = self.load();
        loop {
            let new = change(old);
            if new == old {
                return (old, new);
            }
            let exchanged = self.0.compare_exchange_weak(old.raw(), new.raw(), Ordering::AcqRel, Ordering::Acquire);
            match exchanged {
                Ok(_) => return (old, new),
                Err(now) => old = Descriptor::from_raw(now),
            }
        }
    }
}
