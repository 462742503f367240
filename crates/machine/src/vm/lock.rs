// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock around what vCPUs share.
//!
//! Invariant: the mutex is what keeps threads apart. Where the machine decides who runs and who sees what, a word beside it
//! is locked first, by the machine's own rules, so that nobody ever blocks on the mutex there.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use twofold_stage2::Platform;

/// The engine's platform, which in the unforgiving mode also has to know of the locks around the engine's tables.
pub trait Host: Platform + Clone {
    /// A lock is taken: returns once its word is this CPU's. The system's lock is enough for most.
    fn lock(&self, _word: &AtomicU64) {}

    /// And given back.
    fn unlock(&self, _word: &AtomicU64) {}
}

/// A value for one CPU at a time.
pub(super) struct Lock<H: Host, T> {
    host: H,
    word: AtomicU64,
    value: Mutex<T>,
}

/// What is locked, until this is dropped.
pub struct Locked<'a, H: Host, T> {
    // Dropped in this order.
    value: MutexGuard<'a, T>,
    _word: Word<'a, H>,
}

struct Word<'a, H: Host> {
    host: &'a H,
    word: &'a AtomicU64,
}

impl<H: Host, T> Lock<H, T> {
    pub(super) fn new(host: H, value: T) -> Self {
        Self { host, word: AtomicU64::new(0), value: Mutex::new(value) }
    }

    pub(super) fn lock(&self) -> Locked<'_, H, T> {
        self.host.lock(&self.word);
        let word = Word { host: &self.host, word: &self.word };
        // Who died with it did so in a defect of the engine's, or by a breach: what that tells is worth more than this.
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { value, _word: word }
    }

    pub(super) fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Host> Drop for Word<'_, H> {
    fn drop(&mut self) {
        self.host.unlock(self.word);
    }
}

impl<H: Host, T> Deref for Locked<'_, H, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<H: Host, T> DerefMut for Locked<'_, H, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
