// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memslots of the guest that is sent, and which of their pages a round has had.

use alloc::vec;
use alloc::vec::Vec;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{SLOTS_MAX, SlotRow};

/// A memslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its number, which page records give.
    pub number: u16,
    /// Whether the guest cannot write to it.
    pub read_only: bool,
    /// Its guest physical address, divided by the page size.
    pub first: u64,
    /// Its size in pages, at least 1.
    pub pages: u64,
}

/// What is wrong with memslots, or with a page in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The record has another size than its rows.
    #[error("memslots of {0} bytes")]
    Size(usize),
    /// Reserved bits are set.
    #[error("reserved bits in memslot {0}")]
    Reserved(u16),
    /// A memslot is empty, out of the guest's addresses, overlaps the one before it, or has its number.
    #[error("memslot {number} with {pages} pages at page {first:#x} does not fit")]
    Fit {
        /// The memslot.
        number: u16,
        /// Its first page.
        first: u64,
        /// Its pages.
        pages: u64,
    },
    /// They do not add up to the memory of the hello.
    #[error("memslots of {found} pages, where the hello has {wanted}")]
    Sum {
        /// The pages of the memslots.
        found: u64,
        /// The pages of the hello.
        wanted: u64,
    },
    /// There is no such page.
    #[error("no memslot {slot} with pages {page:#x} and the {count} from there")]
    NoPage {
        /// The memslot.
        slot: u16,
        /// The page in the memslot.
        page: u64,
        /// How many from there.
        count: u64,
    },
    /// The round has had it.
    #[error("page {page:#x} of memslot {slot} comes twice in a round")]
    Repeated {
        /// The memslot.
        slot: u16,
        /// The page in the memslot.
        page: u64,
    },
}

/// The memslots, and a bit for each page that the round has had: a byte for each 8 pages.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Where each slot's bits start.
    starts: Vec<u64>,
    had: Vec<u64>,
    count: u64,
}

impl Slots {
    /// Checks the memslots of a guest with `memory` pages and `addresses` pages of address space.
    ///
    /// Invariant: takes memory in proportion to `memory`, and to nothing else that the stream says.
    pub fn new(slots: &[Slot], memory: u64, addresses: u64) -> Result<Self, SlotError> {
        if slots.len() > SLOTS_MAX {
            return Err(SlotError::Size(size_of_val(slots)));
        }
        let (mut found, mut end, mut starts) = (0, 0, Vec::with_capacity(slots.len()));
        for (index, &Slot { number, first, pages, .. }) in slots.iter().enumerate() {
            let fits = first.checked_add(pages).filter(|&last| pages > 0 && first >= end && last <= addresses);
            let fresh = slots[..index].iter().all(|before| before.number != number);
            end = fits.filter(|_| fresh).ok_or(SlotError::Fit { number, first, pages })?;
            starts.push(found);
            found += pages;
        }
        if found != memory {
            return Err(SlotError::Sum { found, wanted: memory });
        }
        Ok(Self { slots: slots.to_vec(), starts, had: vec![0; memory.div_ceil(64) as usize], count: 0 })
    }

    /// Begins a round.
    pub fn begin(&mut self) {
        if self.count > 0 {
            self.had.fill(0);
            self.count = 0;
        }
    }

    /// Notes that the round has `count` pages from `page` on: all of them, or with an error none.
    pub fn note(&mut self, slot: u16, page: u64, count: u64) -> Result<(), SlotError> {
        let no_page = SlotError::NoPage { slot, page, count };
        let index = self.slots.iter().position(|known| known.number == slot).ok_or(no_page)?;
        let end = page.checked_add(count).filter(|&end| count > 0 && end <= self.slots[index].pages).ok_or(no_page)?;
        let place = |page| (((self.starts[index] + page) / 64) as usize, 1_u64 << ((self.starts[index] + page) % 64));
        for page in page..end {
            let (word, mask) = place(page);
            if self.had[word] & mask != 0 {
                return Err(SlotError::Repeated { slot, page });
            }
        }
        for page in page..end {
            let (word, mask) = place(page);
            self.had[word] |= mask;
        }
        self.count += count;
        Ok(())
    }

    /// Checks a bitmap of pages from `first` on: a memslot's, and no bit beyond it. Returns the memslot's index.
    pub fn check_bits(&self, slot: u16, first: u64, words: &[U64]) -> Result<usize, SlotError> {
        let no_page = |page| SlotError::NoPage { slot, page, count: words.len() as u64 * 64 };
        let index = self.slots.iter().position(|known| known.number == slot).ok_or(no_page(first))?;
        let last = words.last().filter(|_| first.is_multiple_of(64)).ok_or(no_page(first))?.get();
        let highest = 64 * (words.len() as u64 - 1) + u64::from(last.checked_ilog2().unwrap_or(0));
        match first.checked_add(highest).filter(|&page| page < self.slots[index].pages) {
            Some(_) => Ok(index),
            None => Err(no_page(first)),
        }
    }

    /// Returns the number of pages that the round has had.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the memslots.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

impl Slot {
    pub(super) fn to_bytes(slots: &[Self]) -> Vec<u8> {
        let row = |slot: &Self| SlotRow {
            number: slot.number.into(),
            flags: u16::from(slot.read_only).into(),
            reserved: 0.into(),
            first: slot.first.into(),
            pages: slot.pages.into(),
        };
        slots.iter().map(row).collect::<Vec<_>>().as_bytes().to_vec()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Vec<Self>, SlotError> {
        let rows = <[SlotRow]>::ref_from_bytes(bytes).map_err(|_| SlotError::Size(bytes.len()))?;
        if rows.len() > SLOTS_MAX {
            return Err(SlotError::Size(bytes.len()));
        }
        let slot = |row: &SlotRow| {
            let number = row.number.get();
            if row.flags.get() > 1 || row.reserved.get() != 0 {
                return Err(SlotError::Reserved(number));
            }
            Ok(Self { number, read_only: row.flags.get() == 1, first: row.first.get(), pages: row.pages.get() })
        };
        rows.iter().map(slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u16, first: u64, pages: u64) -> Slot {
        Slot { number, read_only: false, first, pages }
    }

    #[test]
    fn memslots_fit_or_are_refused() {
        let new = |slots: &[Slot], memory| Slots::new(slots, memory, 100).map(|_| ());
        assert_eq!(new(&[slot(3, 0, 10), slot(1, 10, 90)], 100), Ok(()));
        assert_eq!(new(&[slot(1, 0, 10)], 11), Err(SlotError::Sum { found: 10, wanted: 11 }));
        for (second, why) in [
            (slot(2, 9, 5), "overlaps"),
            (slot(1, 10, 5), "has the first's number"),
            (slot(2, 10, 0), "is empty"),
            (slot(2, 96, 5), "leaves the address space"),
            (slot(2, u64::MAX, 2), "wraps"),
        ] {
            let Slot { number, first, pages, .. } = second;
            assert_eq!(new(&[slot(1, 0, 10), second], 15), Err(SlotError::Fit { number, first, pages }), "{why}");
        }
    }

    #[test]
    fn there_are_no_more_memslots_than_allowed() {
        let slots: Vec<_> = (0..=SLOTS_MAX as u64).map(|number| slot(number as u16, number, 1)).collect();
        assert_eq!(Slot::from_bytes(&Slot::to_bytes(&slots[1..])).map(|slots| slots.len()), Ok(SLOTS_MAX));
        let bytes = Slot::to_bytes(&slots);
        assert_eq!(Slot::from_bytes(&bytes), Err(SlotError::Size(bytes.len())));
    }

    /// No bit is beyond the memslot; words without bits may be.
    #[test]
    fn a_bitmap_is_within_its_memslot() {
        let slots = Slots::new(&[slot(7, 0, 128), slot(8, 128, 65)], 193, 1000).unwrap();
        assert_eq!(slots.count(), 0);
        let check = |slot, first, words: &[u64]| {
            slots.check_bits(slot, first, &words.iter().map(|word| U64::from(*word)).collect::<Vec<_>>())
        };
        let last = 1 << 63;
        assert_eq!((check(7, 0, &[0, last]), check(7, 64, &[last]), check(8, 0, &[last, 1])), (Ok(0), Ok(0), Ok(1)));
        assert_eq!((check(8, 0, &[1, 0]), check(8, 64, &[0])), (Ok(1), Ok(1)));
        for (slot, page, words) in [
            (8, 0, &[0, 2][..]),
            (8, 64, &[2]),
            (7, 128, &[0]),
            (7, 1, &[1]),
            (7, 0, &[]),
            (9, 0, &[1]),
            (7, u64::MAX - 63, &[0, 1]),
        ] {
            let error = SlotError::NoPage { slot, page, count: 64 * words.len() as u64 };
            assert_eq!(check(slot, page, words), Err(error));
        }
    }

    #[test]
    fn a_page_comes_once_a_round() {
        let mut slots = Slots::new(&[slot(7, 0, 65), slot(8, 65, 3)], 68, 100).unwrap();
        slots.begin();
        assert_eq!(slots.note(7, 0, 65), Ok(()));
        assert_eq!(slots.note(8, 0, 1), Ok(()));
        assert_eq!(slots.note(7, 64, 1), Err(SlotError::Repeated { slot: 7, page: 64 }));
        for (slot, page, count) in [(8, 3, 1), (8, 1, 3), (9, 0, 1), (8, 1, 0), (8, u64::MAX, 2)] {
            assert_eq!(slots.note(slot, page, count), Err(SlotError::NoPage { slot, page, count }));
        }
        assert_eq!(slots.count(), 66);
        slots.begin();
        assert_eq!((slots.count(), slots.note(7, 64, 1)), (0, Ok(())));
    }
}
