// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model checker's atomic, with two things put right that `loom` 0.7 passes over.
//!
//! * It remembers one access to an atomic, the last one, to see which orders of accesses differ: a thread's load hides
//!   another's before it, so that a store which follows is not tried before that one (loom's issues 166 and 392). Here each
//!   access is a read-modify-write of a second atomic too, which nothing hides and which orders nothing.
//! * It allows a store that was on its way when another thread's read-modify-write read the word to be overwritten by that
//!   one: a lock that was given back would be taken for ever. So a lock that is taken is not written to.

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

    /// Sets the bits of a lock: nothing is written where they are set.
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
