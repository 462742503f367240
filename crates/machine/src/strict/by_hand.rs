// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations for code other than the engine: for a hypervisor that writes its own tables.
//!
//! Such code states what the engine's accesses state by themselves: the word, the ordering, the lock, and the pages
//! that are tables. Its instructions go through the [platform](super::Machine::platform). The model treats both alike,
//! so both may work on the same tree, if the other code takes the engine's locks.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::Pa;
use twofold_stage2::primitive::Access;

use super::context::Context;
use super::machine::CpuHandle;
use super::observer::LOCKED;

impl CpuHandle {
    /// Loads the entry at `pa`.
    ///
    /// # Panics
    ///
    /// The machine has no word at `pa`.
    #[track_caller]
    pub fn read_entry(&self, pa: Pa, order: Ordering) -> u64 {
        self.access(order, |context, access| context.load(word(context, pa), access))
    }

    /// Stores to the entry at `pa`.
    ///
    /// # Panics
    ///
    /// The machine has no word at `pa`.
    #[track_caller]
    pub fn write_entry(&self, pa: Pa, value: u64, order: Ordering) {
        self.access(order, |context, access| context.store(word(context, pa), value, access));
    }

    /// Stores to the entry at `pa`, and returns the value it replaces, with what hardware added to that.
    ///
    /// # Panics
    ///
    /// The machine has no word at `pa`.
    #[track_caller]
    pub fn exchange_entry(&self, pa: Pa, value: u64, order: Ordering) -> u64 {
        let old = self.access(order, |context, access| context.update(word(context, pa), &mut |_| Some(value), access));
        old.unwrap_or_else(|now| now)
    }

    /// Stores to the entry at `pa` if it is `old`, and returns that.
    ///
    /// # Errors
    ///
    /// The entry's current value, if it is not `old`: hardware may have changed it.
    ///
    /// # Panics
    ///
    /// The machine has no word at `pa`.
    #[track_caller]
    pub fn replace_entry(&self, pa: Pa, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        let mut change = |now| (now == old).then_some(new);
        self.access(order, |context, access| context.update(word(context, pa), &mut change, access))
    }

    /// Takes the lock of the table at `page`; for a root of several pages, `page` is the first.
    ///
    /// # Panics
    ///
    /// The frame cannot be a table.
    #[track_caller]
    pub fn lock(&self, page: Pa) {
        self.access(Ordering::Acquire, |context, access| {
            while context.try_lock(lock_word(context, page), access).is_none() {
                context.pass();
            }
        });
    }

    /// Releases the lock. The engine's counters for the table do not change.
    ///
    /// # Panics
    ///
    /// The frame cannot be a table.
    #[track_caller]
    pub fn unlock(&self, page: Pa) {
        self.access(Ordering::Release, |context, access| {
            let lock = lock_word(context, page);
            context.unlock(lock, lock.load(Ordering::Relaxed) & !LOCKED, access);
        });
    }

    /// States that a page is a table from now on.
    #[track_caller]
    pub fn take_page(&self, page: Pa) {
        self.with_context(|context| context.event(|model, _| model.page_taken(page.raw())));
    }

    /// States that a page is no longer a table, and may get any use.
    #[track_caller]
    pub fn free_page(&self, page: Pa) {
        self.with_context(|context| context.event(|model, _| model.page_freed(page.raw())));
    }

    /// States that the memory at `start` is from now on a root of `entries` entries, for these registers.
    #[track_caller]
    pub fn make_root(&self, start: Pa, entries: usize, vttbr: u64, vtcr: u64) {
        self.with_context(|context| context.event(|model, _| model.root(start.raw(), Some(entries), vttbr, vtcr)));
    }

    /// States that it is no longer a root.
    #[track_caller]
    pub fn drop_root(&self, start: Pa, vttbr: u64, vtcr: u64) {
        self.with_context(|context| context.event(|model, _| model.root(start.raw(), None, vttbr, vtcr)));
    }

    /// States that this CPU reads the value behind a lock, or changes it. The program numbers its values as it likes.
    #[track_caller]
    pub fn reach_value(&self, number: u64, changes: bool) {
        self.with_context(|context| {
            context.point();
            context.reached((VALUES + number, 0), changes);
        });
    }

    #[track_caller]
    fn access<R>(&self, order: Ordering, body: impl FnOnce(&Context, Access) -> R) -> R {
        let site = Location::caller();
        self.with_context(|context| body(context, Access { order, site }))
    }

    /// Runs `body` with the caller's place as the place of its events.
    #[track_caller]
    pub(super) fn with_context<R>(&self, body: impl FnOnce(&Context) -> R) -> R {
        self.context.site.set(Some(Location::caller()));
        let result = body(&self.context);
        self.context.site.set(None);
        result
    }
}

/// The first number of a program's own value. The engine counts its values from 0 on.
const VALUES: u64 = 1 << 63;

fn word(context: &Context, pa: Pa) -> &AtomicU64 {
    context.shared.arena.word(pa).unwrap_or_else(|| panic!("the machine has no word at {pa}"))
}

/// The word of the page's lock.
fn lock_word(context: &Context, page: Pa) -> &AtomicU64 {
    let metadata = context.shared.arena.metadata(page).unwrap_or_else(|| panic!("the frame at {page} has no metadata"));
    // SAFETY: the metadata is two atomic words with the alignment of one, and every value is valid.
    unsafe { &*ptr::from_ref(metadata).cast::<AtomicU64>() }
}
