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

use crate::Pa;
use crate::counts::Counts;
use crate::primitive::{LOCKED, Ordering, Word};

/// Metadata of a table, beside its frame: 16 bytes, zero at first.
///
/// The embedder keeps one for each frame that may become a table ([`Platform::metadata`](crate::Platform::metadata)), and never reads or writes
/// it.
#[derive(Debug, Default)]
#[repr(align(16))]
pub struct TableMetadata {
    /// Bit 0 is the lock; the counts are above.
    pub(crate) state: Word,
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

    /// The counts, without the lock; `None` while the table is locked.
    ///
    /// Acquire: a CPU that reads a count also sees the entries of that moment. An entry is changed after the lock is
    /// taken. So a CPU that has seen the change finds the table locked, or newer counts.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<Counts> {
        let state = self.state.load(Ordering::Acquire);
        (state & LOCKED == 0).then_some(Counts::from_raw(state))
    }

    /// The state without the lock bit: the counts, or what replaced them in an unlinked table ([`Counts::from_raw`]).
    ///
    /// Exact if the caller holds the lock, has held it since the last change, or owns the table alone. Otherwise a
    /// hint.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn last(&self) -> Counts {
        Counts::from_raw(self.state.load(Ordering::Relaxed) & !LOCKED)
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
    #[cfg_attr(feature = "checked", track_caller)]
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

    /// The metadata of the frame at `pa`; `None` if no range has it.
    #[inline]
    pub fn get(&self, pa: Pa) -> Option<&'static TableMetadata> {
        self.first.of(pa).or_else(|| self.others.iter().find_map(|range| range.of(pa)))
    }

    /// The metadata of the frame at `pa`, for a [`Platform`](crate::Platform), which has to return one.
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
                    assert!(map.get(pa).is_some_and(|got| core::ptr::eq(got, metadata)), "{pa}");
                }
            }
        }
    }

    #[test]
    fn a_frame_without_metadata_cannot_be_a_table() {
        for pa in [0, 0x7fff_f000, 0x8000_2000, 0x8fff_f000, 0x9000_2000] {
            let metadata = std::panic::catch_unwind(|| map().of(Pa::new(pa)));
            assert!(metadata.is_err(), "{pa:#x}");
            assert!(map().get(Pa::new(pa)).is_none(), "{pa:#x}");
        }
        assert!(std::panic::catch_unwind(|| MetadataMap::NONE.of(Pa::new(0))).is_err());
    }
}
