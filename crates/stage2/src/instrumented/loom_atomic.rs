// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model checker's atomic, with workarounds for two limits of `loom` 0.7.
//!
//! * **Missed orders.** To find orders of accesses that differ, loom remembers only the last access to an atomic. So a
//!   thread's load hides an earlier load of another thread, and loom does not try a later store before that one (loom's
//!   issues 166 and 392). Here each access is also a relaxed read-modify-write of a second atomic, which no access
//!   hides and which orders nothing.
//! * **Lost unlocks.** Loom lets a read-modify-write overwrite a store of another thread that it did not read. A lock
//!   that was released would then stay taken for ever. So [`AtomicU64::lock`] does not write to a lock that is taken.

use core::sync::atomic::Ordering;

#[derive(Debug, Default)]
pub(super) struct AtomicU64 {
    value: loom::sync::atomic::AtomicU64,
    accessed: loom::sync::atomic::AtomicU64,
}

impl AtomicU64 {
    fn value(&self) -> &loom::sync::atomic::AtomicU64 {
        self.accessed.fetch_add(1, Ordering::Relaxed);
        &self.value
    }

    pub(super) fn load(&self, order: Ordering) -> u64 {
        self.value().load(order)
    }

    pub(super) fn store(&self, value: u64, order: Ordering) {
        self.value().store(value, order);
    }

    pub(super) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.value().swap(value, order)
    }

    pub(super) fn fetch_and(&self, mask: u64, order: Ordering) -> u64 {
        self.value().fetch_and(mask, order)
    }

    pub(super) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.value().fetch_add(value, order)
    }

    pub(super) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.value().fetch_sub(value, order)
    }

    pub(super) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        self.value().fetch_or(bits, order)
    }

    /// Sets the bits of a lock. Writes nothing if they are set already.
    pub(super) fn lock(&self, bits: u64, order: Ordering) -> u64 {
        let (value, mut old) = (self.value(), 0);
        while old & bits != bits {
            match value.compare_exchange(old, old | bits, order, Ordering::Relaxed) {
                Ok(old) => return old,
                Err(now) => old = now,
            }
        }
        old
    }

    pub(super) fn compare_exchange(&self, old: u64, new: u64, order: Ordering, failure: Ordering) -> Result<u64, u64> {
        self.value().compare_exchange(old, new, order, failure)
    }
}
