// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the drivers need of the embedder's program: a clock, and threads if it has any.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

/// A clock, and a way to work on several streams at once. The crate has no thread and no clock of its own.
pub trait Runtime: Sync {
    /// The time since any fixed moment.
    fn now(&self) -> Duration;

    /// Returns after this time. It may return earlier.
    fn wait(&self, time: Duration);

    /// Does the work for each stream, and returns when all of it is done. An embedder with threads does it on a thread
    /// for each stream.
    fn each<S: Send>(&self, streams: &mut [S], work: impl Fn(&mut S) + Sync) {
        streams.iter_mut().for_each(work);
    }
}

/// The time between two looks at pages that are on their way to or from a store.
pub(crate) const LOOK: Duration = Duration::from_micros(50);

/// Cancels a migration, from any thread, at any time.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// Not cancelled yet.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Ends the migration. If the guest was not offered yet, it goes on at the source.
    pub fn cancel(&self) {
        // Relaxed: nothing that was written before is read by the thread that sees this.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the migration was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
