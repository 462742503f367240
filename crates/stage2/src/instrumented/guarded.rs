// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The value behind a lock, as `primitive::guarded` has it, each access reported.
//!
//! The value is no word, so the orderings of its accesses are not seen from inside. An observer knows them from the
//! words: two CPUs that reach the value, one of them to change it, must have synchronized between. Otherwise the lock
//! was left out, or did not order what it should order.

use core::cell::UnsafeCell;
#[cfg(all(feature = "checked", not(loom)))]
use core::sync::atomic::{AtomicU64, Ordering};

use super::word::observed;

/// A value that only the CPU with its lock reaches.
pub(crate) struct Guarded<T> {
    /// No other value of this process has it, also not one that is at the same place later.
    #[cfg(all(feature = "checked", not(loom)))]
    number: u64,
    value: UnsafeCell<T>,
}

impl<T> Guarded<T> {
    /// This value.
    pub(crate) fn new(value: T) -> Self {
        Self {
            #[cfg(all(feature = "checked", not(loom)))]
            number: next_number(),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, for a CPU that has no need of the lock.
    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// The value, for a CPU that has no need of the lock.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// What an observer knows the value by. A value that was moved has another identity: only one CPU had it then, and
    /// whatever gave it to other CPUs has synchronized them.
    #[cfg(all(feature = "checked", not(loom)))]
    fn identity(&self) -> (u64, usize) {
        (self.number, self.value.get().addr())
    }

    /// The value, to be read by the CPU that has the lock.
    #[inline(always)]
    pub(crate) fn to_read(&self) -> *const T {
        observed!(observer => { observer.reached(self.identity(), false); self.value.get() }, self.value.get())
    }

    /// The value, to be changed by the CPU that has the lock.
    #[inline(always)]
    pub(crate) fn to_change(&self) -> *mut T {
        observed!(observer => { observer.reached(self.identity(), true); self.value.get() }, self.value.get())
    }
}

/// The number of the next value.
#[cfg(all(feature = "checked", not(loom)))]
fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}
