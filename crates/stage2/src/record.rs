// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of a table: its lock, and what is in it.
//!
//! Each frame that may become a table has a record beside it, never inside: a frame can turn into guest memory while
//! somebody who came too late still waits for the lock that it had as a table. What is counted is changed under the
//! lock alone; without it, the counts are a hint that was true a moment ago.
//!
//! The counts are what lets a walk pass over 2 MiB or 1 GiB where nothing is to do. They are one word with the lock, so
//! that keeping them costs no access to memory: unlocking writes them.

use crate::platform::Platform;
use crate::primitive::{LOCKED, Ordering, Word};
use crate::{Descriptor, Level, Pa};
use core::ops::{AddAssign, SubAssign};

/// What the engine keeps about a frame while it is a table: 16 bytes, zero at first.
///
/// An embedder keeps one for each frame that may become a table ([`Platform::record`](crate::Platform::record)), and
/// never looks inside.
#[derive(Debug, Default)]
#[repr(align(16))]
pub struct Record {
    /// The lock in bit 0, the counts above.
    state: Word,
    /// Of a table that was taken out of its tree: the next one, and where it was. In any table:
    /// [`OTHER_MEMORY`](Self::OTHER_MEMORY).
    link: Word,
}

impl Record {
    /// The record of a frame that was no table yet.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { state: Word::new(0), link: Word::new(0) }
    }

    /// Locks the table, and tells its counts. Whoever holds the lock is the only one who changes its entries, but for
    /// access flags and dirty state, which hardware sets at any time.
    #[inline(always)]
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn lock<P: Platform>(&self, platform: &P) -> Counts {
        platform.on_atomic();
        match self.state.try_lock() {
            Some(state) => Counts(state),
            None => self.lock_slowly(platform),
        }
    }

    /// Waits, and takes its time: CPUs that go through the same tables side by side would meet at each of them, and take
    /// the line from each other for every page. Who has waited for longer than the other needs for the rest of a table
    /// is one table behind, and they do not meet again (`twofold bench engine`: rows `sections` and `pages`).
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

    /// Unlocks it, with these counts from now on.
    #[inline(always)]
    pub(crate) fn unlock(&self, counts: Counts) {
        self.state.unlock(counts.0);
    }

    /// What was counted a moment ago; `None` while somebody is changing it. Acquire: who finds a count as it was left sees
    /// the entries as they were left. An entry is changed after the lock is taken, so whoever has seen the change finds
    /// the lock, or what was counted after it.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<Counts> {
        let state = self.state.load(Ordering::Acquire);
        (state & LOCKED == 0).then_some(Counts(state))
    }

    /// Says what is in a table that nobody else has. Somebody who came too late may still hold the lock that the page had as
    /// another table, and would write what was counted in that.
    pub(crate) fn reset<P: Platform>(&self, counts: Counts, platform: &P) {
        self.lock(platform);
        self.unlock(counts);
    }

    /// What was kept for a table that was taken out ([`Counts::from_raw`]), or counted in one that nobody else changes:
    /// whoever asks has its lock, has had it since, or has it alone. Otherwise a hint.
    pub(crate) fn last(&self) -> Counts {
        Counts(self.state.load(Ordering::Relaxed) & !LOCKED)
    }

    /// The lock and the counts, as they are.
    #[cfg(feature = "checked")]
    pub(crate) fn word(&self) -> u64 {
        self.state.load(Ordering::Acquire)
    }

    /// Remembers where a table that was taken out was, and the next one of its chain.
    pub(crate) fn set_link(&self, link: u64) {
        self.link.store(link, Ordering::Relaxed);
    }

    pub(crate) fn link(&self) -> u64 {
        self.link.load(Ordering::Relaxed)
    }

    /// In the link: some leaf of the table is not normal memory, or was not.
    pub(crate) const OTHER_MEMORY: u64 = 1 << 2;

    /// Notes that a leaf which is going to be made in the table is not normal memory. Under the table's lock, or before it is
    /// linked: whoever finds the leaf finds the note.
    pub(crate) fn note_other_memory(&self) {
        self.set_link(self.link() | Self::OTHER_MEMORY);
    }

    /// Whether there may be leaves in the table that are not normal memory.
    #[inline(always)]
    pub(crate) fn has_other_memory(&self) -> bool {
        self.link() & Self::OTHER_MEMORY != 0
    }
}

/// Pauses between two looks at a lock: about 2 us, half a table's worth of faults.
const PAUSES: u32 = 128;

/// What is in a table. Fields of 14 bits, since a root of 16 tables has up to 8192 entries; adding is adding words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(u64);

const FIELD: u64 = (1 << 14) - 1;
const WRITABLE_SHIFT: u32 = 1;
const ARMED_SHIFT: u32 = 15;
const LIVE_SHIFT: u32 = 29;
const TABLES_SHIFT: u32 = 43;
const BUSY_SHIFT: u32 = 57;

impl Counts {
    /// Nothing.
    pub(crate) const EMPTY: Self = Self(0);
    /// An entry that somebody is changing.
    pub(crate) const BUSY: Self = Self(1 << BUSY_SHIFT);
    /// The most entries that may be busy at once.
    const MOST_BUSY: u64 = (1 << 7) - 1;

    /// What one entry of a table at `level` counts for.
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

    /// A word that is kept where counts were. Bit 0 is clear.
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// That word.
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// So many times this.
    pub(crate) const fn times(self, count: u64) -> Self {
        Self(self.0 * count)
    }

    /// Entries that are valid.
    pub(crate) const fn live(self) -> u64 {
        self.0 >> LIVE_SHIFT & FIELD
    }

    /// Entries that are tables.
    pub(crate) const fn tables(self) -> u64 {
        self.0 >> TABLES_SHIFT & FIELD
    }

    /// Leaves that the guest may write, or that hardware would make writable.
    pub(crate) const fn writable(self) -> u64 {
        self.0 >> WRITABLE_SHIFT & FIELD
    }

    /// Leaves whose writes hardware records (DBM).
    pub(crate) const fn armed(self) -> u64 {
        self.0 >> ARMED_SHIFT & FIELD
    }

    /// Leaves.
    pub(crate) const fn leaves(self) -> u64 {
        self.live() - self.tables()
    }

    /// Entries that somebody is changing.
    pub(crate) const fn busy(self) -> u64 {
        self.0 >> BUSY_SHIFT
    }

    /// Whether no further entry may become busy.
    pub(crate) const fn is_as_busy_as_can_be(self) -> bool {
        self.busy() == Self::MOST_BUSY
    }

    /// So many leaves more whose writes hardware records, some of which could be written before.
    pub(crate) fn arm(&mut self, leaves: u64, were_writable: u64) {
        self.0 += leaves << ARMED_SHIFT;
        self.0 += (leaves - were_writable) << WRITABLE_SHIFT;
    }

    /// So many leaves fewer that may be written, none of which hardware records.
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
    /// Apart from the others, since most machines have no more.
    first: RecordRange,
    others: &'static [RecordRange],
}

/// The records of the frames from one on.
#[derive(Clone, Copy, Debug)]
pub struct RecordRange {
    /// The first frame.
    pub first: Pa,
    /// One record for each frame of 4 KiB from there on.
    pub records: &'static [Record],
}

impl Records {
    /// No records: where no table is ever made.
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
    /// Where there is none.
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

    /// One more than fit would be none.
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

    /// Two ranges of two frames, with frames before, between and behind them.
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
