// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words that CPUs share, their locks, and fences.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// 64 bits that CPUs share: an entry, a word of a table's metadata, a count, bits of a log.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU64);

/// The bit of a word that is a lock.
pub(crate) const LOCKED: u64 = 1;

impl Word {
    /// A word with this value.
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The value.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Writes the value.
    #[inline(always)]
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    /// States for a trace: this CPU's next store to this entry may overwrite what hardware records in it. The caller
    /// has that record, or does not need it.
    #[inline(always)]
    pub(crate) fn unrecorded(&self) {}

    /// Writes `value`, and returns the value before.
    #[inline(always)]
    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    /// Clears the bits that are not in `mask`, and returns the value before.
    #[inline(always)]
    pub fn fetch_and(&self, mask: u64, order: Ordering) -> u64 {
        self.0.fetch_and(mask, order)
    }

    /// Sets the bits in `mask`, and returns the value before.
    #[inline(always)]
    pub fn fetch_or(&self, mask: u64, order: Ordering) -> u64 {
        self.0.fetch_or(mask, order)
    }

    /// Adds `value`, and returns the value before.
    #[inline(always)]
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    /// Subtracts `value`, and returns the value before.
    #[inline(always)]
    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, order)
    }

    /// Writes `new` if the value is `old`, and returns `old`. Otherwise returns the current value as an error. `order`
    /// is the ordering on success. A failure orders nothing.
    #[inline(always)]
    pub fn compare_exchange(&self, old: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, order, Ordering::Relaxed)
    }

    /// Takes the lock in bit 0, and returns the other bits. `None` if the lock is taken.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<u64> {
        let state = self.0.fetch_or(LOCKED, Ordering::Acquire);
        (state & LOCKED == 0).then_some(state)
    }

    /// Unlocks, and writes the other bits.
    #[inline(always)]
    pub(crate) fn unlock(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// Orders all earlier accesses before all later stores.
#[inline(always)]
pub(crate) fn release_fence() {
    fence(Ordering::Release);
}

/// Orders all earlier accesses before all later ones. If two CPUs each write a word, call this, and then read the
/// other's word, at least one of them sees the other's write.
#[inline(always)]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The result of a check that validates earlier reads, for example step W3. A mutant may leave the check out.
#[inline(always)]
pub(crate) fn check(result: bool) -> bool {
    result
}

/// Marks a function as a step of a protocol, which a mutant may leave out: it then returns the argument. Nothing here.
macro_rules! step {
    ($otherwise:expr) => {};
}
pub(crate) use step;
