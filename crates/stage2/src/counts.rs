// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts of a table's entries, in one word with the table's lock.

use core::ops::{AddAssign, SubAssign};

use crate::{Descriptor, Granule, Level};

/// Counts of a table's entries. The fields have 14 bits, since a root of 16 tables has up to 8192 entries. Adding
/// counts adds words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(u64);

const FIELD: u64 = (1 << 14) - 1;
const WRITABLE_SHIFT: u32 = 1;
const TRACKED_SHIFT: u32 = 15;
const LIVE_SHIFT: u32 = 29;
const TABLES_SHIFT: u32 = 43;
const BUSY_SHIFT: u32 = 57;

impl Counts {
    /// No entries.
    pub(crate) const EMPTY: Self = Self(0);
    /// One busy entry.
    pub(crate) const BUSY: Self = Self(1 << BUSY_SHIFT);
    /// The most entries that may be busy at once.
    const MOST_BUSY: u64 = (1 << 7) - 1;

    /// The counts of one entry of a table at `level`.
    #[inline(always)]
    pub(crate) const fn of<G: Granule>(entry: Descriptor<G>, level: Level) -> Self {
        let raw = entry.raw();
        if entry.is_table(level) {
            return Self(1 << LIVE_SHIFT | 1 << TABLES_SHIFT);
        }
        let valid = raw & 1;
        let tracked = raw >> DBM_BIT & valid;
        let writable = raw >> WRITE_BIT & valid | tracked;
        Self(valid << LIVE_SHIFT | tracked << TRACKED_SHIFT | writable << WRITABLE_SHIFT)
    }

    /// The counts in a word whose bit 0 is clear, or what replaced them in an unlinked table.
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The counts as one word.
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// This, `count` times.
    pub(crate) const fn times(self, count: u64) -> Self {
        Self(self.0 * count)
    }

    /// Valid entries.
    pub(crate) const fn live(self) -> u64 {
        self.0 >> LIVE_SHIFT & FIELD
    }

    /// Entries that lead to tables.
    pub(crate) const fn tables(self) -> u64 {
        self.0 >> TABLES_SHIFT & FIELD
    }

    /// Leaves that the guest may write, or that hardware would make writable (DBM).
    pub(crate) const fn writable(self) -> u64 {
        self.0 >> WRITABLE_SHIFT & FIELD
    }

    /// Hardware-tracked leaves (DBM).
    pub(crate) const fn hardware_tracked(self) -> u64 {
        self.0 >> TRACKED_SHIFT & FIELD
    }

    /// Valid entries that are leaves.
    pub(crate) const fn leaves(self) -> u64 {
        self.live() - self.tables()
    }

    /// Busy entries.
    pub(crate) const fn busy(self) -> u64 {
        self.0 >> BUSY_SHIFT
    }

    /// Whether no further entry may become busy.
    pub(crate) const fn is_as_busy_as_can_be(self) -> bool {
        self.busy() == Self::MOST_BUSY
    }

    /// Adds `leaves` hardware-tracked leaves, of which `were_writable` were counted as writable already.
    pub(crate) fn set_dbm(&mut self, leaves: u64, were_writable: u64) {
        self.0 += leaves << TRACKED_SHIFT;
        self.0 += (leaves - were_writable) << WRITABLE_SHIFT;
    }

    /// Subtracts `count` writable leaves, none of which is hardware-tracked.
    pub(crate) fn remove_writable(&mut self, count: u64) {
        self.0 -= count << WRITABLE_SHIFT;
    }
}

const WRITE_BIT: u32 = 7;
const DBM_BIT: u32 = 51;

impl AddAssign for Counts {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

impl SubAssign for Counts {
    #[inline(always)]
    fn sub_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_sub(other.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::primitive::LOCKED;
    use crate::{Access, Attributes, Features, Pa};

    #[test]
    fn an_entry_counts_for_what_it_is() {
        let features = Features::NONE;
        let leaf = |access, dirty_by_hardware| {
            let attributes = Attributes { dirty_by_hardware, ..Attributes::ram(access) };
            Counts::of(<Descriptor>::leaf(Pa::new(0x1000), Level::L3, &attributes, &features), Level::L3)
        };
        let seen = |counts: Counts| (counts.live(), counts.tables(), counts.writable(), counts.hardware_tracked());
        let mut both = Counts::of(<Descriptor>::table(Pa::new(0x1000)), Level::L2).times(3);
        both += leaf(Access::READ, false).times(2);
        assert_eq!((both.live(), both.tables(), both.leaves()), (5, 3, 2));
        assert_eq!(seen(leaf(Access::READ, false)), (1, 0, 0, 0));
        assert_eq!(seen(leaf(Access::READ_WRITE, false)), (1, 0, 1, 0));
        assert_eq!(seen(leaf(Access::READ, true)), (1, 0, 1, 1));
        assert_eq!(seen(leaf(Access::READ_WRITE, true)), (1, 0, 1, 1));
        let table = <Descriptor>::table(Pa::new(0x1000));
        assert_eq!(seen(Counts::of(table, Level::L2)), (1, 1, 0, 0));
        assert_eq!(seen(Counts::of(table, Level::L3)), (1, 0, 0, 0), "a page, not a table");
        assert_eq!(Counts::of(<Descriptor>::INVALID, Level::L3), Counts::EMPTY);
        assert_eq!(Counts::of(<Descriptor>::BUSY, Level::L2), Counts::EMPTY);
    }

    #[test]
    fn the_largest_root_fits_the_counts() {
        let all = <Descriptor>::leaf(
            Pa::new(0),
            Level::L1,
            &Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::ALL) },
            &Features::NONE,
        );
        let mut counts = Counts::of(all, Level::L1).times(8192);
        counts += Counts::BUSY;
        assert_eq!(
            (counts.live(), counts.tables(), counts.writable(), counts.hardware_tracked()),
            (8192, 0, 8192, 8192)
        );
        assert_eq!((counts.busy(), counts.0 & LOCKED), (1, 0));
    }

    /// One busy entry more would overflow to a count of 0.
    #[test]
    fn as_many_entries_are_busy_as_can_be_counted() {
        let mut counts = Counts::EMPTY;
        for busy in 0..127 {
            assert_eq!((counts.busy(), counts.is_as_busy_as_can_be()), (busy, false));
            counts += Counts::BUSY;
        }
        assert_eq!((counts.busy(), counts.is_as_busy_as_can_be()), (127, true));
        counts += Counts::BUSY;
        assert_eq!(counts.busy(), 0);
    }
}
