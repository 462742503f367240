// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sequence count, by which a lockless walk finds that a table was unlinked meanwhile (module `lockless_walk`), and a
//! mapping that its memory may have been withdrawn (module `withdraw`).

use crate::platform::Platform;
use crate::primitive::{self, Ordering, Word};

/// The sequence count of a tree: how many tables were ever unlinked from it, and above that, how often memory was
/// withdrawn from it.
///
/// Both are in one word, so that one load under a table's lock checks both (W4). It has a cache line of its own: every
/// walk reads it, and few operations write it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct SequenceCount(Word);

impl SequenceCount {
    /// W1: a snapshot of the count.
    ///
    /// Acquire: the walk then sees each break (U2) that the snapshot counts. Otherwise it could follow a broken entry,
    /// and find the count unchanged in W3.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn now(&self) -> Snapshot {
        Snapshot(self.0.load(Ordering::Acquire))
    }

    /// W3: whether no table was unlinked since the snapshot, as far as this CPU can know from what it has read.
    ///
    /// Relaxed: the acquire of W2, or of the lock in W4, comes before.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn is_still(&self, then: Snapshot) -> bool {
        primitive::check(self.0.load(Ordering::Relaxed) == then.0)
    }

    /// U3: counts the unlink of one table, with all tables below it. Returns the count before.
    ///
    /// Release: the break (U2) comes before the count. If the result equals the caller's snapshot, no other CPU has
    /// counted since, so the caller has seen every earlier unlink.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn count<P: Platform>(&self, platform: &P) -> Snapshot {
        platform.on_atomic();
        Snapshot(self.0.fetch_add(1, Ordering::Release))
    }

    /// T2: counts a withdrawal. Walks that are under way start again.
    ///
    /// Relaxed: a mapper learns of it by a lock that the withdrawing CPU releases later (T5), or by a link that was made
    /// under such a lock (module `withdraw`). A read-modify-write continues the release sequences of the unlinks before it (U3).
    pub(crate) fn count_withdrawal<P: Platform>(&self, platform: &P) {
        platform.on_atomic();
        self.0.fetch_add(1 << UNLINKS_BITS, Ordering::Relaxed);
    }

    /// The number of unlinked tables.
    #[cfg(feature = "checked")]
    pub(crate) fn unlinks(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & ((1 << UNLINKS_BITS) - 1)
    }
}

/// The bits of the count that count unlinked tables. If they overflow, that counts as a withdrawal, which only costs a
/// retry. The other 36 bits count withdrawals: they do not return to a sample's value within hours.
const UNLINKS_BITS: u32 = 28;

/// A snapshot of the sequence count ([`SequenceCount`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot(u64);

impl Snapshot {
    /// The value of no snapshot: the count does not get there.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// How often memory was withdrawn.
    #[inline(always)]
    pub(crate) fn withdrawals(self) -> u64 {
        self.0 >> UNLINKS_BITS
    }

    /// The count after one more unlink.
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn unlinks_beyond_28_bits_count_as_a_withdrawal() {
        let last = Snapshot((1 << 28) - 1);
        assert_eq!([last, last.next()].map(Snapshot::withdrawals), [0, 1]);
    }
}
