// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way to run other code than our engine on the machine: what a hypervisor does that writes its own tables.
//!
//! It says of itself what the engine's accesses say by themselves: which word, in which order, under whose lock, which
//! pages are tables. Instructions go through the [platform](super::Machine::platform). The model takes the one for the
//! other, so both may work on the same tree, as far as the other code keeps the engine's locks.

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
    /// Where the machine has no word.
    #[track_caller]
    pub fn read_entry(&self, pa: Pa, order: Ordering) -> u64 {
        self.access(order, |context, access| context.load(word(context, pa), access))
    }

    /// Stores to the entry at `pa`.
    ///
    /// # Panics
    ///
    /// Where the machine has no word.
    #[track_caller]
    pub fn write_entry(&self, pa: Pa, value: u64, order: Ordering) {
        self.access(order, |context, access| context.store(word(context, pa), value, access));
    }

    /// Stores to the entry at `pa`, and tells what it was at that moment, with what hardware had added to it.
    ///
    /// # Panics
    ///
    /// Where the machine has no word.
    #[track_caller]
    pub fn exchange_entry(&self, pa: Pa, value: u64, order: Ordering) -> u64 {
        let old = self.access(order, |context, access| context.update(word(context, pa), &mut |_| Some(value), access));
        old.unwrap_or_else(|now| now)
    }

    /// Stores to the entry at `pa` if it is `old`; the error is what it is instead.
    ///
    /// # Errors
    ///
    /// It is another value, as hardware may have changed it.
    ///
    /// # Panics
    ///
    /// Where the machine has no word.
    #[track_caller]
    pub fn replace_entry(&self, pa: Pa, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        let mut change = |now| (now == old).then_some(new);
        self.access(order, |context, access| context.update(word(context, pa), &mut change, access))
    }

    /// Takes the lock of the table at `page`; of a root of several pages, that of the first.
    ///
    /// # Panics
    ///
    /// Where no table may be.
    #[track_caller]
    pub fn lock(&self, page: Pa) {
        self.access(Ordering::Acquire, |context, access| {
            while context.try_lock(record(context, page), access).is_none() {
                context.pass();
            }
        });
    }

    /// Gives it back. What the engine counts of the table stays as it is.
    ///
    /// # Panics
    ///
    /// Where no table may be.
    #[track_caller]
    pub fn unlock(&self, page: Pa) {
        self.access(Ordering::Release, |context, access| {
            let record = record(context, page);
            context.unlock(record, record.load(Ordering::Relaxed) & !LOCKED, access);
        });
    }

    /// A page is a table's from now on.
    #[track_caller]
    pub fn take_page(&self, page: Pa) {
        self.tell(|context| context.event(|model, _| model.page_taken(page.raw())));
    }

    /// It is no table's any more, and may become anything.
    #[track_caller]
    pub fn free_page(&self, page: Pa) {
        self.tell(|context| context.event(|model, _| model.page_freed(page.raw())));
    }

    /// The memory at `start` is a root of so many entries from now on, for these registers.
    #[track_caller]
    pub fn make_root(&self, start: Pa, entries: usize, vttbr: u64, vtcr: u64) {
        self.tell(|context| context.event(|model, _| model.root(start.raw(), Some(entries), vttbr, vtcr)));
    }

    /// It is none any more.
    #[track_caller]
    pub fn drop_root(&self, start: Pa, vttbr: u64, vtcr: u64) {
        self.tell(|context| context.event(|model, _| model.root(start.raw(), None, vttbr, vtcr)));
    }

    #[track_caller]
    fn access<R>(&self, order: Ordering, body: impl FnOnce(&Context, Access) -> R) -> R {
        let site = Location::caller();
        self.tell(|context| body(context, Access { order, site }))
    }

    /// What is reported meanwhile is of the caller's place.
    #[track_caller]
    pub(super) fn tell<R>(&self, body: impl FnOnce(&Context) -> R) -> R {
        self.context.site.set(Some(Location::caller()));
        let result = body(&self.context);
        self.context.site.set(None);
        result
    }
}

fn word(context: &Context, pa: Pa) -> &AtomicU64 {
    context.shared.arena.word(pa).unwrap_or_else(|| panic!("the machine has no word at {pa}"))
}

/// The word of the lock.
fn record(context: &Context, page: Pa) -> &AtomicU64 {
    let record = context.shared.arena.record(page).unwrap_or_else(|| panic!("the frame at {page} has no record"));
    // SAFETY: a record is two atomic words, aligned to both, and any value is one of theirs.
    unsafe { &*ptr::from_ref(record).cast::<AtomicU64>() }
}
