// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write faults of one vCPU: while a dirty log has writes fault, the pages that this vCPU was the first to write.
//!
//! Invariant: only the thread that runs the vCPU adds, so adding needs no atomic read-modify-write. Any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many write faults of a vCPU were answered by a mapping, or by one that allows more.
#[derive(Debug, Default)]
pub struct WriteFaults(AtomicU64);

impl WriteFaults {
    /// How many there were so far. The number orders nothing.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more.
    pub(super) fn add(&self) {
        self.0.store(self.count() + 1, Ordering::Relaxed);
    }
}
