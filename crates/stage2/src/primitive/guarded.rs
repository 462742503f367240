// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The value behind a lock.

use core::cell::UnsafeCell;

/// A value that only the CPU with its lock reaches.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

impl<T> Guarded<T> {
    /// This value.
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The value, for a CPU that has no need of the lock.
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// The value, for a CPU that has no need of the lock.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The value, to be read by the CPU that has the lock.
    #[inline(always)]
    pub(crate) fn to_read(&self) -> *const T {
        self.0.get()
    }

    /// The value, to be changed by the CPU that has the lock.
    #[inline(always)]
    pub(crate) fn to_change(&self) -> *mut T {
        self.0.get()
    }
}
