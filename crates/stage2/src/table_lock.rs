// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock of a table, in one word with the counts of its entries.
//!
//! The counts change only under the lock. Unlocking writes them, so keeping them costs no memory access.

use crate::TableMetadata;
use crate::counts::Counts;
use crate::platform::Platform;
use crate::primitive::{LOCKED, Ordering};

impl TableMetadata {
    /// Locks the table, and returns its counts. Only the CPU that holds the lock changes entries, except that hardware
    /// may set access flags and dirty state at any time.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock<P: Platform>(&self, platform: &P) -> Counts {
        platform.on_atomic();
        match self.state.try_lock() {
            Some(state) => Counts::from_raw(state),
            None => self.lock_slowly(platform),
        }
    }

    /// Waits for the lock, with long pauses on purpose.
    ///
    /// CPUs that go through the same tables side by side would contend for each of them, and move the lock's cache line
    /// for every page. A CPU that pauses for longer than the other needs for the rest of a table falls one table
    /// behind, and they do not meet again (`twofold bench engine`: rows `sections` and `pages`).
    #[cold]
    #[inline(never)]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_slowly<P: Platform>(&self, platform: &P) -> Counts {
        loop {
            platform.pause(PAUSES);
            if self.state.load(Ordering::Relaxed) & LOCKED != 0 {
                continue;
            }
            platform.on_atomic();
            if let Some(state) = self.state.try_lock() {
                return Counts::from_raw(state);
            }
        }
    }

    /// Unlocks the table, and publishes its new counts.
    #[inline(always)]
    pub(crate) fn unlock(&self, counts: Counts) {
        self.state.unlock(counts.raw());
    }

    /// Sets the counts of a table that only this CPU has.
    ///
    /// Takes the lock for that: a late CPU may still hold the lock that the page had as another table, and would write
    /// that table's counts when it unlocks.
    pub(crate) fn reset<P: Platform>(&self, counts: Counts, platform: &P) {
        self.lock(platform);
        self.unlock(counts);
    }
}

/// Pauses between two reads of a lock: about 2 us, the time of faults on half a table.
const PAUSES: u32 = 128;
