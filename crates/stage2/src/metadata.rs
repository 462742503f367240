// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of a table: its lock, and counts of its entries.
//!
//! Each frame that may become a table has a record beside it, never inside it. A frame may turn into guest memory while
//! a late CPU still waits for the lock that the frame had as a table.
//!
//! The counts change only under the lock. A CPU without the lock may read them; they were true a moment ago.
//!
//! With the counts, a walk skips 2 MiB or 1 GiB that has no work for it. Lock and counts share one word, so keeping the
//! counts costs no memory access: unlocking writes them.

use crate::platform::Platform;
use crate::primitive::{LOCKED, Ordering, Word};
use crate::{Descriptor, Level, Pa};
use core::ops::{AddAssign, SubAssign};

/// Metadata of a table, beside its frame: 16 bytes, zero at first.
///
/// The embedder keeps one for each frame that may become a table ([`Platform::record`]), and never reads or writes
/// it.
#[derive(Debug, Default)]
#[repr(align(16))]
pub struct Record {
    /// Bit 0 is the lock; the counts are above.
    state: Word,
    /// Of an unlinked table: the next table of its chain, and its address in the IPA space. Of any table:
    /// [`OTHER_MEMORY`](Self::OTHER_MEMORY).
    link: Word,
}

impl Record {
    /// The record of a frame that was never a table.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { state: Word::new(0), link: Word::new(0) }
    }

    /// Locks the table, and returns its counts. Only the CPU that holds the lock changes entries, except that hardware
    /// may set access flags and dirty state at any time.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock<P: Platform>(&self, platform: &P) -> Counts {
        platform.on_atomic();
        match self.state.try_lock() {
            Some(state) => Counts(state),
            None => self.lock_slowly(platform),
        }
    }

    /// Waits for the lock, with long pauses on purpose.
    ///
    /// CPUs that go through the same tables side by side would contend for each of them, and move the lock's cache line
    /// for every page. A CPU that pauses for longer than the other needs for the rest of a table falls one table
    /// behind, and they do not meet again (`twofold bench engine`: rows `sections` and `pages`).
    #[cold]
    #[cfg_attr(feature = "checked", track_caller)]
    fn lock_slowly<P: Platform>(&self, platform: &P) -> Counts {
        loop {
            platform.pause(PAUSES);
            if self.state.load(Ordering::Relaxed) & LOCKED != 0 {
                continue;
            }
            platform.on_atomic();
            if let Some(state) = self.state.try_lock() {
                return Counts(state);
            }
        }
    }

    /// Unlocks the table, and publishes its new counts.
    #[inline(always)]
    pub(crate) fn unlock(&self, counts: Counts) {
        self.state.unlock(counts.0);
    }

    /// The counts, without the lock; `None` while the table is locked.
    ///
    /// Acquire: a CPU that reads a count also sees the entries of that moment. An entry is changed after the lock is
    /// taken. So a CPU that has seen the change finds the table locked, or newer counts.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<Counts> {
        let state = self.state.load(Ordering::Acquire);
        (state & LOCKED == 0).then_some(Counts(state))
    }

    /// Sets the counts of a table that only this CPU has.
    ///
    /// Takes the lock for that: a late CPU may still hold the lock that the page had as another table, and would write
    /// that table's counts when it unlocks.
    pub(crate) fn reset<P: Platform>(&self, counts: Counts, platform: &P) {
        self.lock(platform);
        self.unlock(counts);
    }

    /// The state without the lock bit: the counts, or what replaced them in an unlinked table ([`Counts::from_raw`]).
    ///
    /// Exact if the caller holds the lock, has held it since the last change, or owns the table alone. Otherwise a
    /// hint.
    pub(crate) fn last(&self) -> Counts {
        Counts(self.state.load(Ordering::Relaxed) & !LOCKED)
    }

    /// The lock and the counts, in one word.
    #[cfg(feature = "checked")]
    pub(crate) fn word(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// Stores an unlinked table's place, and the next table of its chain.
    pub(crate) fn set_link(&self, link: u64) {
        self.link.store(link, Ordering::Relaxed);
    }

    pub(crate) fn link(&self) -> u64 {
        self.link.load(Ordering::Relaxed)
    }

    /// In the link: the table has, or once had, a leaf that is not normal memory.
    pub(crate) const OTHER_MEMORY: u64 = 1 << 2;

    /// Notes that a leaf which is not normal memory is about to be made in the table. The caller holds the table's
    /// lock, or has not linked the table yet, so a CPU that finds the leaf also finds the note.
    pub(crate) fn note_other_memory(&self) {
        self.set_link(self.link() | Self::OTHER_MEMORY);
    }

    /// Whether the table may have leaves that are not normal memory.
    #[inline(always)]
    pub(crate) fn has_other_memory(&self) -> bool {
        self.link() & Self::OTHER_MEMORY != 0
    }
}

/// Pauses between two reads of a lock: about 2 us, the time of faults on half a table.
const PAUSES: u32 = 128;

/// Counts of a table's entries. The fields have 14 bits, since a root of 16 tables has up to 8192 entries. Adding
/// counts adds words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(u64);

const FIELD: u64 = (1 << 14) - 1;
const WRITABLE_SHIFT: u32 = 1;
const ARMED_SHIFT: u32 = 15;
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
    pub(crate) const fn of(entry: Descriptor, level: Level) -> Self {
        let raw = entry.raw();
        if entry.is_table(level) {
            return Self(1 << LIVE_SHIFT | 1 << TABLES_SHIFT);
        }
        let valid = raw & 1;
        let armed = raw >> DBM_BIT & valid;
        let writable = raw >> WRITE_BIT & valid | armed;
        Self(valid << LIVE_SHIFT | armed << ARMED_SHIFT | writable << WRITABLE_SHIFT)
    }

    /// A word that replaces the counts of an unlinked table. Its bit 0 is clear.
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
    pub(crate) const fn armed(self) -> u64 {
        self.0 >> ARMED_SHIFT & FIELD
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
    pub(crate) fn arm(&mut self, leaves: u64, were_writable: u64) {
        self.0 += leaves << ARMED_SHIFT;
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

/// The records of some ranges of memory, for an embedder that keeps them in arrays.
#[derive(Clone, Copy, Debug)]
pub struct Records {
    /// Apart from the others: most machines have one range only.
    first: RecordRange,
    others: &'static [RecordRange],
}

/// The records of a contiguous range of frames.
#[derive(Clone, Copy, Debug)]
pub struct RecordRange {
    /// The address of the first frame.
    pub first: Pa,
    /// One record for each frame of 4 KiB from there on.
    pub records: &'static [Record],
}

impl Records {
    /// No records, for a platform that never makes a table.
    pub const NONE: Self = Self { first: RecordRange { first: Pa::new(0), records: &[] }, others: &[] };

    /// The records in these ranges.
    pub const fn new(ranges: &'static [RecordRange]) -> Self {
        match ranges {
            [first, others @ ..] => Self { first: *first, others },
            [] => Self::NONE,
        }
    }

    /// The ranges.
    pub fn ranges(&self) -> impl Iterator<Item = RecordRange> {
        core::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// The record of the frame at `pa`.
    ///
    /// # Panics
    ///
    /// If no range has a record for it.
    #[inline(always)]
    pub fn of(&self, pa: Pa) -> &'static Record {
        match self.first.of(pa) {
            Some(record) => record,
            None => self.of_others(pa),
        }
    }

    #[cold]
    fn of_others(&self, pa: Pa) -> &'static Record {
        let record = self.others.iter().find_map(|range| range.of(pa));
        record.unwrap_or_else(|| panic!("the frame at {pa} has no record, so it cannot be a table"))
    }
}

impl RecordRange {
    #[inline(always)]
    fn of(&self, pa: Pa) -> Option<&'static Record> {
        self.records.get((pa.raw().wrapping_sub(self.first.raw()) >> 12) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Attributes, Features};

    #[test]
    fn an_entry_counts_for_what_it_is() {
        let features = Features::NONE;
        let leaf = |access, dirty_by_hardware| {
            let attributes = Attributes { dirty_by_hardware, ..Attributes::ram(access) };
            Counts::of(Descriptor::leaf(Pa::new(0x1000), Level::L3, &attributes, &features), Level::L3)
        };
        let seen = |counts: Counts| (counts.live(), counts.tables(), counts.writable(), counts.armed());
        let mut both = Counts::of(Descriptor::table(Pa::new(0x1000)), Level::L2).times(3);
        both += leaf(Access::READ, false).times(2);
        assert_eq!((both.live(), both.tables(), both.leaves()), (5, 3, 2));
        assert_eq!(seen(leaf(Access::READ, false)), (1, 0, 0, 0));
        assert_eq!(seen(leaf(Access::READ_WRITE, false)), (1, 0, 1, 0));
        assert_eq!(seen(leaf(Access::READ, true)), (1, 0, 1, 1));
        assert_eq!(seen(leaf(Access::READ_WRITE, true)), (1, 0, 1, 1));
        let table = Descriptor::table(Pa::new(0x1000));
        assert_eq!(seen(Counts::of(table, Level::L2)), (1, 1, 0, 0));
        assert_eq!(seen(Counts::of(table, Level::L3)), (1, 0, 0, 0), "a page, not a table");
        assert_eq!(Counts::of(Descriptor::INVALID, Level::L3), Counts::EMPTY);
        assert_eq!(Counts::of(Descriptor::BUSY, Level::L2), Counts::EMPTY);
    }

    #[test]
    fn the_largest_root_fits_the_counts() {
        let all = Descriptor::leaf(
            Pa::new(0),
            Level::L1,
            &Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::ALL) },
            &Features::NONE,
        );
        let mut counts = Counts::of(all, Level::L1).times(8192);
        counts += Counts::BUSY;
        assert_eq!((counts.live(), counts.tables(), counts.writable(), counts.armed()), (8192, 0, 8192, 8192));
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

    fn leaked<T>(values: Vec<T>) -> &'static [T] {
        Box::leak(values.into_boxed_slice())
    }

    /// Two ranges of two frames each, with frames before, between and after them that have no record.
    fn records() -> Records {
        let range =
            |first| RecordRange { first: Pa::new(first), records: leaked(vec![Record::default(), Record::default()]) };
        Records::new(leaked(vec![range(0x8000_0000), range(0x9000_0000)]))
    }

    #[test]
    fn each_frame_has_the_record_at_its_place() {
        let records = records();
        for range in records.ranges() {
            for (number, record) in range.records.iter().enumerate() {
                for inside in [0, 0xfff] {
                    let pa = range.first + number as u64 * 0x1000 + inside;
                    assert!(core::ptr::eq(records.of(pa), record), "{pa}");
                }
            }
        }
    }

    #[test]
    fn a_frame_without_a_record_cannot_be_a_table() {
        for pa in [0, 0x7fff_f000, 0x8000_2000, 0x8fff_f000, 0x9000_2000] {
            let record = std::panic::catch_unwind(|| records().of(Pa::new(pa)));
            assert!(record.is_err(), "{pa:#x}");
        }
        assert!(std::panic::catch_unwind(|| Records::NONE.of(Pa::new(0))).is_err());
    }
}
