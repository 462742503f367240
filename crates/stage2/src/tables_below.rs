// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Step U4 of an unlink: every CPU that is inside a table below the unlinked one has to leave before the flush U6.
//!
//! The steps are those of page [`locking`](crate::pages::locking) and of module `lockless_walk`.
//!
//! **Invariant.** The unlinking CPU locks each table below, either after the count (U3) or from before it until after
//! it. A CPU that had such a lock earlier has finished its change before U6, which flushes it. A CPU that gets the lock
//! later finds the count changed (W4), and changes nothing.
//!
//! The tables below are all of one level: a table is unlinked as a whole only if it maps no more than the largest
//! block, 1 GiB.
//!
//! There are two ways. In both, the unlinked table is locked, and none of its entries is busy:
//!
//! * **Close** ([`Stage2::finish_unlink`], for an unmap): U2, U3, then U4 locks and unlocks one table after the other. A guest
//!   that faults there during U4 is to find nothing mapped anyway.
//! * **Hold** ([`Stage2::hold_below`], for a coalesce): lock all tables below, then U2, U3, U6, make the block, and
//!   unlock them. Locking and unlocking 512 tables takes time. After a coalesce the guest is to find its memory mapped
//!   again, so that time must not lie between break and make (Wang 2021: install before free). The price: the parent's
//!   lock is held while the tables are locked, so a CPU that changes another entry of the parent waits.
//!
//! **Lock order.** Held tables are siblings. That is the one exception to "a table, then a table below it". Only the
//! CPU that has locked the table above locks more than one of the siblings, so no two CPUs wait for each other.

use crate::lockless_walk::{Locked, Retry};
use crate::platform::Platform;
use crate::primitive;
use crate::sequence::Snapshot;
use crate::table::Cell;
use crate::{Granule, Level, Pa, Stage2};

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// U3 and U4, and U5 for the table itself: counts the unlink, and waits until no CPU is inside a table below.
    /// Returns the count before.
    ///
    /// The caller has locked the table and its parent (U1), and has broken the parent's entry (U2).
    pub(crate) fn finish_unlink(&self, locked: Locked<'_, P, G>) -> Snapshot {
        let then = self.sequence.count(self.platform());
        self.wait_below(&locked);
        then
    }

    #[cfg_attr(feature = "checked", track_caller)]
    fn wait_below(&self, locked: &Locked<'_, P, G>) {
        primitive::step!(());
        // Most tables lead to pages, and have no table below.
        if locked.counts.tables() > 0 {
            locked.tables_below().for_each(|(table, level)| drop(self.lock_quiet(table, level)));
        }
    }

    /// Locks all tables below a locked table, until the result is dropped. There may be none.
    ///
    /// If an entry of one of them is busy, unlocks all of them and returns [`Retry`]. Waiting with some of the locks
    /// could take for ever: before U3, other CPUs may always make more entries busy.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn hold_below<'a>(&'a self, above: &'a Locked<'a, P, G>) -> Result<HeldBelow<'a, P, G>, Retry> {
        let held = HeldBelow { above, count: 0, other_memory: above.has_other_memory() };
        // Most tables lead to pages, and have no table below.
        if above.counts.tables() == 0 { Ok(held) } else { self.hold_each(held) }
    }

    #[cfg_attr(feature = "checked", track_caller)]
    fn hold_each<'a>(&'a self, mut held: HeldBelow<'a, P, G>) -> Result<HeldBelow<'a, P, G>, Retry> {
        primitive::step!(Ok(held));
        let above = held.above;
        for (table, level) in above.tables_below() {
            let locked = self.lock_whatever(table, above.table.len(), level).quiet()?;
            held.other_memory |= locked.has_other_memory();
            locked.keep_locked();
            held.count += 1;
        }
        Ok(held)
    }

    /// Locks a table below a locked one, and waits until none of its entries is busy.
    fn lock_quiet(&self, table: Pa, level: Level) -> Locked<'_, P, G> {
        loop {
            if let Ok(locked) = self.lock_whatever(table, self.geometry().granule().entries(), level).quiet() {
                return locked;
            }
            // Without the lock: the owner of the busy entry needs it.
            while self.platform().metadata(table).last().busy() > 0 {
                self.platform().pause(1);
            }
        }
    }
}

/// The locks of the first `count` tables below `above`. They are released before the lock of `above`, since the entries
/// of `above` lead to them.
#[must_use = "dropped at once, it holds no lock"]
pub(crate) struct HeldBelow<'a, P: Platform, G: Granule> {
    above: &'a Locked<'a, P, G>,
    count: usize,
    /// Whether any of them, or `above`, may hold leaves that are not normal memory.
    pub(crate) other_memory: bool,
}

impl<P: Platform, G: Granule> HeldBelow<'_, P, G> {
    fn release(&self) {
        let tables = (0..self.count).zip(self.above.tables_below());
        tables.for_each(|(_, (table, level))| drop(self.above.stage2.still_locked(table, level)));
    }
}

impl<P: Platform, G: Granule> Drop for HeldBelow<'_, P, G> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.count > 0 {
            self.release();
        }
    }
}

impl<P: Platform, G: Granule> Locked<'_, P, G> {
    /// The tables that this table's entries lead to, with their level.
    fn tables_below(&self) -> impl Iterator<Item = (Pa, Level)> {
        let entries = self.table.all().iter().map(|word| Cell::<G>::of(word).read());
        let tables = (0..self.counts.tables()).zip(entries.filter(|entry| entry.is_table(self.level)));
        tables.filter_map(|(_, table)| Some((table.address(), self.level.below()?)))
    }
}
