// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metadata of a table: its lock, and counts of its entries.
//!
//! Each frame that may become a table has metadata beside it, never inside it. A frame may turn into guest memory while
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
/// The embedder keeps one for each frame that may become a table ([`Platform::metadata`]), and never reads or writes
/// it.
#[derive(Debug, Default)]
#[repr(align(16))]
pub struct TableMetadata {
    /// Bit 0 is the lock; the counts are above.
    state: Word,
    /// Its meaning follows the page's life:
    ///
    /// * a table of a tree: the flags [`OTHER_MEMORY`](Self::OTHER_MEMORY) and [`CLAIMED`](Self::CLAIMED);
    /// * an unlinked table: the address and the level of the next table in its chain (module `unlinked`). The next
    ///   table's IPA is in `state`, in place of the counts;
    /// * a page of a dropped flush: the address of the next page of the stack (module `deferred_free`).
    link: Word,
}

impl TableMetadata {
    /// The metadata of a frame that was never a table.
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

    /// Sets the link word: flags of a linked table, or what comes after an unlinked one.
    pub(crate) fn set_link(&self, link: u64) {
        self.link.store(link, Ordering::Relaxed);
    }

    /// The link word.
    pub(crate) fn link(&self) -> u64 {
        self.link.load(Ordering::Relaxed)
    }

    /// In the link word of a linked table: a CPU cleans for the block that is going to replace the table.
    pub(crate) const CLAIMED: u64 = 1;

    /// In the link word of a linked table: the table has, or once had, a leaf that is not normal memory.
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
    pub(crate) const fn of(entry: Descriptor, level: Level) -> Self {
        let raw = entry.raw();
        if entry.is_table(level) {
            return Self(1 << LIVE_SHIFT | 1 << TABLES_SHIFT);
        }
        let valid = raw & 1;
        let tracked = raw >> DBM_BIT & valid;
        let writable = raw >> WRITE_BIT & valid | tracked;
        Self(valid << LIVE_SHIFT | tracked << TRACKED_SHIFT | writable << WRITABLE_SHIFT)
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

/// The metadata of some ranges of memory, for an embedder that keeps it in arrays.
#[derive(Clone, Copy, Debug)]
pub struct MetadataMap {
    /// Apart from the others: most machines have one range only.
    first: MetadataRange,
    others: &'static [MetadataRange],
}

/// The metadata of a contiguous range of frames.
#[derive(Clone, Copy, Debug)]
pub struct MetadataRange {
    /// The address of the first frame.
    pub first: Pa,
    /// One element for each frame of 4 KiB from there on.
    pub metadata: &'static [TableMetadata],
}

impl MetadataMap {
    /// No metadata, for a platform that never makes a table.
    pub const NONE: Self = Self { first: MetadataRange { first: Pa::new(0), metadata: &[] }, others: &[] };

    /// The metadata in these ranges.
    pub const fn new(ranges: &'static [MetadataRange]) -> Self {
        match ranges {
            [first, others @ ..] => Self { first: *first, others },
            [] => Self::NONE,
        }
    }

    /// The ranges.
    pub fn ranges(&self) -> impl Iterator<Item = MetadataRange> {
        core::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// The metadata of the frame at `pa`.
    ///
    /// # Panics
    ///
    /// If no range has metadata for it.
    #[inline(always)]
    pub fn of(&self, pa: Pa) -> &'static TableMetadata {
        match self.first.of(pa) {
            Some(metadata) => metadata,
            None => self.of_others(pa),
        }
    }

    #[cold]
    fn of_others(&self, pa: Pa) -> &'static TableMetadata {
        let metadata = self.others.iter().find_map(|range| range.of(pa));
        metadata.unwrap_or_else(|| panic!("the frame at {pa} has no metadata, so it cannot be a table"))
    }
}

impl MetadataRange {
    #[inline(always)]
    fn of(&self, pa: Pa) -> Option<&'static TableMetadata> {
        self.metadata.get((pa.raw().wrapping_sub(self.first.raw()) >> 12) as usize)
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
        let seen = |counts: Counts| (counts.live(), counts.tables(), counts.writable(), counts.hardware_tracked());
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

    fn leaked<T>(values: Vec<T>) -> &'static [T] {
        Box::leak(values.into_boxed_slice())
    }

    /// Two ranges of two frames each, with frames before, between and after them that have no metadata.
    fn map() -> MetadataMap {
        let range = |first| MetadataRange {
            first: Pa::new(first),
            metadata: leaked(vec![TableMetadata::default(), TableMetadata::default()]),
        };
        MetadataMap::new(leaked(vec![range(0x8000_0000), range(0x9000_0000)]))
    }

    #[test]
    fn each_frame_has_the_metadata_at_its_place() {
        let map = map();
        for range in map.ranges() {
            for (number, metadata) in range.metadata.iter().enumerate() {
                for inside in [0, 0xfff] {
                    let pa = range.first + number as u64 * 0x1000 + inside;
                    assert!(core::ptr::eq(map.of(pa), metadata), "{pa}");
                }
            }
        }
    }

    #[test]
    fn a_frame_without_metadata_cannot_be_a_table() {
        for pa in [0, 0x7fff_f000, 0x8000_2000, 0x8fff_f000, 0x9000_2000] {
            let metadata = std::panic::catch_unwind(|| map().of(Pa::new(pa)));
            assert!(metadata.is_err(), "{pa:#x}");
        }
        assert!(std::panic::catch_unwind(|| MetadataMap::NONE.of(Pa::new(0))).is_err());
    }
}
