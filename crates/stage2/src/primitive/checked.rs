// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who watches the engine's accesses, and does them in its place.
//!
//! One observer a process. It is called instead of the access, on the thread whose access it is, so it may do it at once
//! (a trace), or answer with anything that the memory model allows (a model).

use core::panic::Location;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::Claim;
use crate::Pa;

/// How an access is ordered, and where it is in the source.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Its ordering; of a read-modify-write, that of success.
    pub order: Ordering,
    /// Its call site.
    pub site: &'static Location<'static>,
}

/// Does the engine's accesses to words that CPUs share: entries of tables, the records beside the frames, counts.
///
/// # Safety
///
/// Each access has, for the thread whose it is, the effect that the memory model allows for one of its ordering: a lock is
/// given to one at a time, a load tells a value that was stored.
pub unsafe trait Observer: Sync {
    /// A load.
    fn load(&self, word: &AtomicU64, access: Access) -> u64;

    /// A store.
    fn store(&self, word: &AtomicU64, value: u64, access: Access);

    /// A read-modify-write: stores what `change` makes of the value there, if it makes anything of it. Tells the value
    /// before, as an error where nothing was stored.
    fn update(&self, word: &AtomicU64, change: &mut dyn FnMut(u64) -> Option<u64>, access: Access) -> Result<u64, u64>;

    /// Takes the lock in bit 0 unless it is taken; tells the word.
    fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64>;

    /// Gives the lock back by storing `value`, whose bit 0 is clear.
    fn unlock(&self, word: &AtomicU64, value: u64, access: Access);

    /// A release fence.
    fn release_fence(&self, site: &'static Location<'static>);

    /// A fence of all with all: `DMB ISH`.
    fn full_fence(&self, site: &'static Location<'static>);

    /// A page is now a table's.
    fn page_taken(&self, page: Pa, site: &'static Location<'static>);

    /// A page is no table's any more.
    fn page_freed(&self, page: Pa, site: &'static Location<'static>);

    /// The hypervisor wrote to memory of a guest's, past the observer.
    fn data_written(&self, start: Pa, size: u64, site: &'static Location<'static>);

    /// The memory at `start` is a root of so many entries from now on, or (`None`) none any more.
    fn root(&self, start: Pa, entries: Option<usize>, vttbr: u64, vtcr: u64, site: &'static Location<'static>);

    /// The engine relies on this from here on.
    fn claims(&self, claim: Claim, site: &'static Location<'static>);

    /// The next store of this thread to the entry may overwrite what hardware records there: the engine does not need it.
    fn unrecorded(&self, word: &AtomicU64, site: &'static Location<'static>);

    /// The platform's next instruction on this thread is at this place.
    fn about_to(&self, site: &'static Location<'static>);
}

static OBSERVER: AtomicPtr<&'static dyn Observer> = AtomicPtr::new(ptr::null_mut());

/// Has all accesses in this process done by `observer` from now on; by nobody with `None`.
pub fn observe(observer: Option<&'static &'static dyn Observer>) {
    let observer = observer.map_or(ptr::null_mut(), |observer| ptr::from_ref(observer).cast_mut());
    OBSERVER.store(observer, Ordering::Release);
}

#[inline]
#[cfg_attr(loom, allow(dead_code, reason = "the model checker watches by itself"))]
pub(super) fn observer() -> Option<&'static dyn Observer> {
    let observer = OBSERVER.load(Ordering::Acquire);
    // SAFETY: it is null, or was made from a reference that lives for ever.
    unsafe { observer.as_ref() }.copied()
}
