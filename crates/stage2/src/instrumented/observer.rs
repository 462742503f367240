// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An observer of the engine's accesses, which does them in the engine's place.
//!
//! A process has at most one observer. It is called instead of the access, on the accessing thread. So it may do the
//! access at once (a trace), or return any result that the memory model allows (a model).

use core::panic::Location;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::Pa;
use crate::primitive::Claim;

/// The ordering of an access, and its place in the source.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Its ordering; for a read-modify-write, the ordering on success.
    pub order: Ordering,
    /// Its call site.
    pub site: &'static Location<'static>,
}

/// Does the engine's accesses to words that CPUs share: entries of tables, metadata beside the frames, counts.
///
/// # Safety
///
/// Each access has an effect, for the accessing thread, that the memory model allows for its ordering. For example, one
/// thread at a time has a lock, and a load returns a value that was stored.
pub unsafe trait Observer: Sync {
    /// A load.
    fn load(&self, word: &AtomicU64, access: Access) -> u64;

    /// A store.
    fn store(&self, word: &AtomicU64, value: u64, access: Access);

    /// A read-modify-write: calls `change` with the current value, and stores the result if it is `Some`. Returns the
    /// value before, as an error if nothing was stored.
    fn update(&self, word: &AtomicU64, change: &mut dyn FnMut(u64) -> Option<u64>, access: Access) -> Result<u64, u64>;

    /// Takes the lock in bit 0, and returns the word's other bits. `None` if the lock is taken.
    fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64>;

    /// Unlocks by storing `value`, whose bit 0 is clear.
    fn unlock(&self, word: &AtomicU64, value: u64, access: Access);

    /// This thread reads the value behind a lock, or changes it (`changes`). `value` is its number and its address. The
    /// lock's own accesses say whether the thread may.
    fn reached(&self, value: (u64, usize), changes: bool) {
        let _ = (value, changes);
    }

    /// A release fence.
    fn release_fence(&self, site: &'static Location<'static>);

    /// A full fence: `DMB ISH`.
    fn full_fence(&self, site: &'static Location<'static>);

    /// A page becomes a table.
    fn page_taken(&self, page: Pa, site: &'static Location<'static>);

    /// A page is no table any more.
    fn page_freed(&self, page: Pa, site: &'static Location<'static>);

    /// The hypervisor wrote to guest memory, not through the observer.
    fn data_written(&self, start: Pa, size: u64, site: &'static Location<'static>);

    /// The memory at `start` becomes a root with this number of entries, or (`None`) stops being one.
    fn root(&self, start: Pa, entries: Option<usize>, vttbr: u64, vtcr: u64, site: &'static Location<'static>);

    /// The engine relies on `claim` from here on.
    fn claims(&self, claim: Claim, site: &'static Location<'static>);

    /// This thread's next store to the entry may overwrite what hardware records there: the engine does not need that
    /// record.
    fn unrecorded(&self, word: &AtomicU64, site: &'static Location<'static>);

    /// The platform's next instruction on this thread comes from this place in the source.
    fn about_to(&self, site: &'static Location<'static>);
}

static OBSERVER: AtomicPtr<&'static dyn Observer> = AtomicPtr::new(ptr::null_mut());

/// From now on, `observer` does all accesses in this process. With `None`, the engine does them itself.
pub fn observe(observer: Option<&'static &'static dyn Observer>) {
    let observer = observer.map_or(ptr::null_mut(), |observer| ptr::from_ref(observer).cast_mut());
    OBSERVER.store(observer, Ordering::Release);
}

#[inline]
#[cfg_attr(loom, allow(dead_code, reason = "the model checker watches by itself"))]
pub(crate) fn observer() -> Option<&'static dyn Observer> {
    let observer = OBSERVER.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or was made from a `'static` reference.
    unsafe { observer.as_ref() }.copied()
}
