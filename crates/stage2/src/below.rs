// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables below one that is taken out: whoever is inside one of them has to be out before the flush.
//!
//! Invariant: each of them is locked by who takes them out, after the count ([`Unlinked`](crate::descent::Unlinked)) or
//! since before it, and unlocked before the flush. Who had the lock before has done what it had to do, and it is flushed;
//! who gets it after finds the count moved, and does nothing.
//!
//! They are of one level, since nothing is taken out as a whole that maps anything beyond the largest block, 1 GiB.
//!
//! Two ways, both from the table above, which is locked and in which nothing is busy:
//!
//! * *closing*: after the break, each is locked for a moment. Whoever faults there meanwhile finds what it would find
//!   in the end;
//! * *holding*: all are locked before the break, and unlocked after the count. Locking 512 tables takes its time: where
//!   the guest is to find something again after the flush, that is not inside the window (source S4). The table above
//!   has to wait for that, and with it whoever is to make another of its entries.
//!
//! Those that are held are beside each other, which is the one exception from "a table, then the one below it". Only who
//! has locked the table above locks more than one of them, and of those there is one, so nobody waits in a circle.

use crate::descent::{Locked, Moment, Moved};
use crate::platform::Platform;
use crate::primitive;
use crate::{Level, Pa, Stage2};

impl<P: Platform> Stage2<P> {
    /// Counts a table that is locked, and whose entry in the table above, locked too, was broken just now; waits until
    /// nobody is inside any table below. Tells what the count was.
    pub(crate) fn close(&self, locked: Locked<'_, P>) -> Moment {
        let then = self.unlinked.count(self.platform());
        self.wait_below(&locked);
        then
    }

    #[cfg_attr(feature = "checked", track_caller)]
    fn wait_below(&self, locked: &Locked<'_, P>) {
        primitive::step!(());
        locked.tables_below().for_each(|(table, level)| drop(self.lock_quiet(table, level)));
    }

    /// Locks all tables below one that is locked, until what is returned is dropped; there may be none. Where something is
    /// busy in one of them, none is kept from others meanwhile: the count has not moved yet, so there might always be more.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn hold_below<'a>(&'a self, above: &'a Locked<'a, P>) -> Result<HeldBelow<'a, P>, Moved> {
        let held = HeldBelow { above, count: 0, other_memory: above.has_other_memory() };
        // None below most: they lead to pages.
        if above.counts.tables() == 0 { Ok(held) } else { self.hold_each(held) }
    }

    #[cfg_attr(feature = "checked", track_caller)]
    fn hold_each<'a>(&'a self, mut held: HeldBelow<'a, P>) -> Result<HeldBelow<'a, P>, Moved> {
        primitive::step!(Ok(held));
        let above = held.above;
        for (table, level) in above.tables_below() {
            let locked = self.lock_whatever(table, above.table.len(), level).quiet()?;
            held.other_memory |= locked.has_other_memory();
            locked.keep();
            held.count += 1;
        }
        Ok(held)
    }

    /// Locks a table below one that is locked, when nothing in it is busy.
    fn lock_quiet(&self, table: Pa, level: Level) -> Locked<'_, P> {
        loop {
            if let Ok(locked) = self.lock_whatever(table, self.geometry().granule().entries(), level).quiet() {
                return locked;
            }
            // Whoever is at it needs the lock to be done.
            while self.platform().record(table).last().busy() > 0 {
                self.platform().pause(1);
            }
        }
    }
}

/// The locks of the first so many tables below one. They are given back before that one's, by which they are found.
#[must_use = "dropped at once, nothing is held"]
pub(crate) struct HeldBelow<'a, P: Platform> {
    above: &'a Locked<'a, P>,
    count: usize,
    /// Whether there may be leaves in any of them, or in that one, that are not normal memory.
    pub(crate) other_memory: bool,
}

impl<P: Platform> HeldBelow<'_, P> {
    fn release(&self) {
        let tables = (0..self.count).zip(self.above.tables_below());
        tables.for_each(|(_, (table, level))| drop(self.above.stage2.kept(table, level)));
    }
}

impl<P: Platform> Drop for HeldBelow<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.count > 0 {
            self.release();
        }
    }
}

impl<P: Platform> Locked<'_, P> {
    /// The tables that this one leads to, and their level.
    fn tables_below(&self) -> impl Iterator<Item = (Pa, Level)> {
        let entries = (0..self.table.len()).map(|index| self.entry(index));
        let tables = (0..self.counts.tables()).zip(entries.filter(|entry| entry.is_table(self.level)));
        tables.filter_map(|(_, table)| Some((table.address(), self.level.below()?)))
    }
}
