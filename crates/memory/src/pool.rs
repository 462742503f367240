// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free memory for the data of several guests whose pages leave, frame by frame.
//!
//! A guest's [`Frames`] take a page's frame here, and give it back here: what has left one guest is free to all. Tables, which
//! never leave, stay with the guest's own frames. The embedder decides how much each guest may take, by
//! [`set_limit`](crate::GuestMemory::set_limit): as long as the limits, or what a guest still has above its own, are together at
//! most [`count`](FramePool::count), a guest that is below its limit finds a frame.
//!
//! Invariant: a frame is free here, or one guest has it, since a [`Run`] is moved.

use core::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::{Lock, Platform, Run};

use crate::frames::{FRAME, Frames};

/// Frames for data.
pub struct FramePool {
    /// Its lock is the last in the lock order, after a guest's frames.
    frames: Lock<Frames>,
    count: u64,
    /// How many are free: written under the lock, read without it.
    free: AtomicU64,
}

impl FramePool {
    /// All of these frames.
    #[must_use]
    pub fn new(frames: Frames) -> Self {
        let count = frames.free();
        Self { frames: Lock::new(frames), count, free: AtomicU64::new(count) }
    }

    /// How many there are, free or not.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many are free.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    pub(crate) fn take<P: Platform>(&self, platform: &P, count: u64) -> Option<Run> {
        let mut frames = self.frames.lock(platform);
        let run = frames.take(count)?;
        self.free.store(frames.free(), Ordering::Relaxed);
        Some(run)
    }

    pub(crate) fn give<P: Platform>(&self, platform: &P, run: Run) {
        debug_assert!(run.size().is_multiple_of(FRAME), "{run:?} is whole frames");
        let mut frames = self.frames.lock(platform);
        frames.give_own(run);
        self.free.store(frames.free(), Ordering::Relaxed);
    }
}
