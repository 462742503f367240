// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long ago each page was accessed, in rounds: one byte a page, and four for a page that has left.
//!
//! Everything here is a hint. A page that is wrong in it leaves too early or too late, and nothing else happens: leaving
//! checks all by itself (`write_out`).
//!
//! Invariant: the counts are the number of bytes of each value, in all parts.

use alloc::boxed::Box;
use alloc::vec::Vec;

use twofold_stage2::{Ipa, IpaRange};

use crate::frames::{FRAME, HUGE_PAGE, PAGES};

/// Pages whose bytes are allocated together: 128 MiB.
const PART: usize = 64 * PAGES as usize;
/// The highest number of rounds that is stored. It means this long ago, or longer, or never.
pub(super) const OLDEST: u8 = 63;

/// What is known of one page: its [`Class`] in the upper two bits, and below them the rounds since its last access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Age(u8);

/// What a page is to the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It has no frame, as far as is known.
    Away,
    /// It came lately, and has to show that it is used. It leaves before those that are protected.
    Probation,
    /// It was used again.
    Protected,
    /// It is in memory, and is not chosen before the next round judges it.
    Undecided,
}

impl Age {
    const NEVER: Self = Self::new(Class::Away, OLDEST);

    pub(super) const fn new(class: Class, rounds: u8) -> Self {
        Self((class as u8) << 6 | rounds)
    }

    pub(super) fn class(self) -> Class {
        match self.0 >> 6 {
            0 => Class::Away,
            1 => Class::Probation,
            2 => Class::Protected,
            _ => Class::Undecided,
        }
    }

    /// Rounds since the last access.
    pub(super) fn rounds(self) -> u8 {
        self.0 & OLDEST
    }

    pub(super) fn with(self, class: Class) -> Self {
        Self::new(class, self.rounds())
    }

    /// The same page one round later. A page that was not decided is protected then, if it was ever accessed, and else
    /// on probation.
    #[inline(always)]
    fn next(self) -> Self {
        let Self(byte) = self;
        if byte == Self::new(Class::Undecided, OLDEST).0 {
            return Self::new(Class::Probation, OLDEST);
        }
        let decided = if byte >= (Class::Undecided as u8) << 6 { byte - 64 } else { byte };
        Self(decided + u8::from(decided & OLDEST != OLDEST))
    }
}

/// A page in the table: the index of its slot, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    slot: usize,
    page: usize,
}

impl At {
    pub(super) const FIRST: Self = Self { slot: 0, page: 0 };

    /// The page behind it, or the end of its slot.
    pub(super) fn next(self) -> Self {
        Self { page: self.page + 1, ..self }
    }
}

/// The table of a guest's pages.
pub(super) struct Ages {
    slots: Vec<SlotAges>,
    counts: [u64; 256],
    /// Something could not be allocated since the slots were taken over.
    pub(super) is_partial: bool,
}

struct SlotAges {
    range: IpaRange,
    /// The start of the slot's first huge page: page 0.
    start: Ipa,
    parts: Vec<Option<Part>>,
}

struct Part {
    ages: Box<[Age]>,
    /// The number of the departure by which the page left; 0 for one that has not left, or has come back.
    left: Box<[u32]>,
}

impl Ages {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), counts: [0; 256], is_partial: false }
    }

    /// Takes over the slots as they are now. What is known of a slot that stays is kept.
    pub(super) fn set_slots(&mut self, ranges: impl Iterator<Item = IpaRange>) {
        let mut old = core::mem::take(&mut self.slots);
        self.is_partial = false;
        for range in ranges {
            let known = old.iter().position(|slot| slot.range == range).map(|at| old.swap_remove(at));
            let slot = known.or_else(|| SlotAges::new(range));
            self.is_partial |= slot.is_none() || self.slots.try_reserve(1).is_err();
            if self.slots.len() < self.slots.capacity() {
                self.slots.extend(slot);
            }
        }
        self.recount();
    }

    /// The addresses of the slot with this index; `None` behind the last.
    pub(super) fn range(&self, slot: usize) -> Option<IpaRange> {
        self.slots.get(slot).map(|slot| slot.range.clone())
    }

    /// The page of this slot at `ipa`.
    pub(super) fn at(&self, slot: usize, ipa: Ipa) -> At {
        At { slot, page: ((ipa - self.slots[slot].start) / FRAME) as usize }
    }

    pub(super) fn ipa(&self, at: At) -> Ipa {
        self.slots[at.slot].start + at.page as u64 * FRAME
    }

    pub(super) fn get(&self, at: At) -> Age {
        self.part(at).map_or(Age::NEVER, |part| part.ages[at.page % PART])
    }

    /// Sets what is known of a page. Without memory on the heap nothing changes.
    pub(super) fn set(&mut self, at: At, age: Age) {
        let Some(part) = self.part_mut(at) else {
            self.is_partial = true;
            return;
        };
        let old = core::mem::replace(&mut part.ages[at.page % PART], age);
        self.counts[old.0 as usize] -= 1;
        self.counts[age.0 as usize] += 1;
    }

    /// Notes that the page has left.
    pub(super) fn set_left(&mut self, at: At, departure: u32) {
        if let Some(part) = self.part_mut(at) {
            part.left[at.page % PART] = departure;
        }
    }

    /// The departure by which the page left, if it did. Forgets it.
    pub(super) fn take_left(&mut self, at: At) -> Option<u32> {
        let Some(Some(part)) = self.slots[at.slot].parts.get_mut(at.page / PART) else { return None };
        let left = core::mem::take(&mut part.left[at.page % PART]);
        (left != 0).then_some(left)
    }

    /// Whether nothing is known of the 2 MiB around the page.
    pub(super) fn is_blank(&self, at: At) -> bool {
        self.part(at).is_none()
    }

    /// A round has passed for every page.
    pub(super) fn pass_round(&mut self) {
        for part in self.slots.iter_mut().flat_map(|slot| slot.parts.iter_mut().flatten()) {
            part.ages.iter_mut().for_each(|age| *age = age.next());
        }
        self.recount();
    }

    /// How many pages have this age.
    pub(super) fn count(&self, age: Age) -> u64 {
        self.counts[age.0 as usize]
    }

    /// How many pages of these classes were accessed less than `rounds` rounds ago.
    pub(super) fn accessed(&self, classes: &[Class], rounds: u8) -> u64 {
        let of = |class: Class| (0..rounds.min(OLDEST)).map(move |rounds| Age::new(class, rounds));
        classes.iter().flat_map(|class| of(*class)).map(|age| self.count(age)).sum()
    }

    /// How many pages are in this class.
    pub(super) fn in_class(&self, class: Class) -> u64 {
        let first = Age::new(class, 0).0 as usize;
        self.counts[first..=first + OLDEST as usize].iter().sum()
    }

    /// How many pages have a frame, as far as is known.
    pub(super) fn in_memory(&self) -> u64 {
        self.counts[64..].iter().sum()
    }

    /// The greatest age in this class; `None` if it has no page.
    pub(super) fn oldest(&self, class: Class) -> Option<Age> {
        (0..=OLDEST).rev().map(|rounds| Age::new(class, rounds)).find(|age| self.count(*age) > 0)
    }

    /// The next page from `from` on, around and around, of this age.
    pub(super) fn find(&self, age: Age, from: At) -> Option<At> {
        // A slot that went may have been the hand's: it has no pages then.
        let later = (from.slot + 1..self.slots.len()).chain(0..=from.slot).map(|slot| (slot, 0));
        core::iter::once((from.slot, from.page)).chain(later).find_map(|(slot, page)| {
            let page = self.slots.get(slot)?.find(age, page)?;
            Some(At { slot, page })
        })
    }

    fn part(&self, at: At) -> Option<&Part> {
        self.slots.get(at.slot)?.parts.get(at.page / PART)?.as_ref()
    }

    /// The part of the page. It is allocated if it is new.
    fn part_mut(&mut self, at: At) -> Option<&mut Part> {
        let part = self.slots.get_mut(at.slot)?.parts.get_mut(at.page / PART)?;
        if part.is_none() {
            *part = Some(Part::new()?);
            self.counts[Age::NEVER.0 as usize] += PART as u64;
        }
        part.as_mut()
    }

    fn recount(&mut self) {
        self.counts = [0; 256];
        for part in self.slots.iter().flat_map(|slot| slot.parts.iter().flatten()) {
            part.ages.iter().for_each(|age| self.counts[age.0 as usize] += 1);
        }
    }
}

impl SlotAges {
    /// `None` if the heap is full.
    fn new(range: IpaRange) -> Option<Self> {
        let start = range.start.align_down(HUGE_PAGE);
        let count = (range.end - start).div_ceil(PART as u64 * FRAME) as usize;
        let mut parts = Vec::new();
        parts.try_reserve_exact(count).ok()?;
        parts.resize_with(count, || None);
        Some(Self { range, start, parts })
    }

    fn find(&self, age: Age, from: usize) -> Option<usize> {
        let parts = self.parts.iter().enumerate().skip(from / PART);
        let mut parts = parts.filter_map(|(number, part)| Some((number * PART, part.as_ref()?)));
        parts.find_map(|(first, part)| {
            let skipped = from.saturating_sub(first);
            Some(first + skipped + position(&part.ages[skipped..], age)?)
        })
    }
}

impl Part {
    /// `None` if the heap is full.
    fn new() -> Option<Self> {
        Some(Self { ages: filled(Age::NEVER)?, left: filled(0)? })
    }
}

fn filled<T: Clone>(value: T) -> Option<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(PART).ok()?;
    values.resize(PART, value);
    Some(values.into_boxed_slice())
}

/// The first page of this age. It looks at 64 bytes at a time, which the compiler makes a few vector instructions.
fn position(ages: &[Age], age: Age) -> Option<usize> {
    let mut blocks = ages.chunks(64);
    let block = blocks.position(|block| block.iter().fold(false, |found, other| found | (*other == age)))?;
    let within = ages[block * 64..].iter().position(|other| *other == age)?;
    Some(block * 64 + within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ages_pages_and_decides_those_that_wait() {
        let next = |class, rounds| Age::new(class, rounds).next();
        for class in [Class::Away, Class::Probation, Class::Protected] {
            assert_eq!(next(class, 5), Age::new(class, 6));
            assert_eq!(next(class, OLDEST), Age::new(class, OLDEST));
        }
        for rounds in [0, 5] {
            assert_eq!(next(Class::Undecided, rounds), Age::new(Class::Protected, rounds + 1));
        }
        assert_eq!(next(Class::Undecided, OLDEST), Age::new(Class::Probation, OLDEST));
    }

    #[test]
    fn pages_are_found_in_their_order_around_and_around() {
        let mut ages = Ages::new();
        assert_eq!((ages.in_memory(), ages.is_partial), (0, false));
        let start = Ipa::new(HUGE_PAGE - FRAME);
        let second = Ipa::new(1 << 40);
        ages.set_slots([start..start + (PART as u64 + 600) * FRAME, second..second + FRAME].into_iter());
        let old = Age::new(Class::Protected, 7);
        let at = |slot, ipa| ages.at(slot, ipa);
        let pages = [at(0, start), at(0, start + 70 * FRAME), at(0, start + (PART as u64 + 3) * FRAME), at(1, second)];
        pages.iter().for_each(|page| ages.set(*page, old));
        assert_eq!((ages.count(old), ages.in_memory(), ages.oldest(Class::Protected)), (4, 4, Some(old)));
        let mut hand = At::FIRST;
        for page in pages.iter().chain(&pages) {
            assert_eq!(ages.find(old, hand), Some(*page));
            hand = page.next();
        }
        ages.pass_round();
        assert_eq!((ages.find(old, hand), ages.count(Age::new(Class::Protected, 8))), (None, 4));
        assert_eq!((ages.ipa(pages[2]), ages.ipa(pages[3])), (start + (PART as u64 + 3) * FRAME, second));
        ages.set_slots(core::iter::once(second..second + FRAME));
        assert_eq!(ages.in_memory(), 1, "the other slot is forgotten");
        assert!(!ages.is_partial);
        let young = Age::new(Class::Probation, 0);
        ages.set(ages.at(0, second), young);
        assert_eq!((ages.in_memory(), ages.find(young, pages[3])), (1, Some(At::FIRST)), "its hand is behind the last");
    }

    #[test]
    fn a_departure_is_known_until_the_page_comes_back() {
        let mut ages = Ages::new();
        ages.set_slots(core::iter::once(Ipa::new(0)..Ipa::new(HUGE_PAGE)));
        let page = ages.at(0, Ipa::new(5 * FRAME));
        assert_eq!(ages.take_left(page), None);
        ages.set_left(page, 9);
        assert_eq!((ages.take_left(page), ages.take_left(page)), (Some(9), None));
    }
}
