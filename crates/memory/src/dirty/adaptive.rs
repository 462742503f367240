// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which sections are hardware-tracked: decided by what their writes cost so far.
//!
//! A write to a protected page costs a fault. A hardware-tracked section of 64 pages costs a read of its descriptors in
//! each round, written or not; that is a small part of a fault. Ending the tracking takes an atomic access for each
//! descriptor, as much as many reads. So this is the ski-rental rule: rent until renting has cost as much as buying.
//!
//! * A section's second fault sets DBM on the section ([`Heat`]). The first is forgotten after some rounds
//!   ([`MEMORY`]). Where pages are written once and never again, this is [`Tracker::Manual`](super::Tracker::Manual).
//! * [`TABLE`] faults in a round in one table's 2 MiB set DBM on all of it, and [`GROUP`] faults in 32 MiB on all of
//!   that: reading the descriptors costs less than the faults that would follow. Where most pages are written, this is
//!   [`Tracker::Hardware`](super::Tracker::Hardware) after the first few faults.
//! * A section that was clean for [`COLD`] rounds in a row ends ([`Cold`]): reading it has cost as much as ending it. A
//!   round ends no more sections than its reads pay for, so no `get` takes several times as long as the one before.
//!
//! A hardware-tracked section stays so when it is cleared, and a round flushes only if it ends sections. The last
//! round, for which the guest waits, looks only at sections that were written lately.
//!
//! `docs/adaptive.md` has the measurements that the constants come from.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use twofold_stage2::primitive::{Ordering, Word};

use super::bits::{Bits, WORD, zeroed};
use super::options::WORD_PAGES;

/// Faults in a round after which a table's 2 MiB are hardware-tracked.
const TABLE: u64 = 4;
/// Faults in a round after which the 32 MiB around are hardware-tracked.
const GROUP: u64 = 8;
/// Rounds after which the sections that had a fault are forgotten.
const MEMORY: u64 = 8;
/// Rounds without a write after which a section ends.
const COLD: u8 = 64;
/// Reads of a section that cost as much as ending one: reads of its descriptors against atomic accesses to them.
const LOOKS: u64 = 32;
/// Sections that may end in a round although no reads pay for them.
const FREE: u64 = 16;

// Costs are of pages, so these are numbers of pages with every granule. Names and bytes are those of the 4 KiB granule.
const TABLE_PAGES: u64 = 512;
const GROUP_PAGES: u64 = 16 * TABLE_PAGES;

/// How many faults there were, and where. Faulting vCPUs count without a lock, so a count may be lost; that only delays
/// a decision.
pub(super) struct Heat {
    /// Sections that had a fault in the last rounds.
    sections: Bits,
    tables: Box<[Word]>,
    groups: Box<[Word]>,
    round: Word,
}

/// For how many rounds in a row each section was clean, and how many sections may end in this round.
pub(super) struct Cold {
    rounds: Box<[u8]>,
    /// Reads of sections in this round that have not paid for an end yet.
    paid: u64,
}

impl Heat {
    /// Counters for a slot of `pages` pages, or `None` if the heap is full.
    pub(super) fn new(pages: u64) -> Option<Self> {
        Some(Self {
            sections: Bits::new(pages.div_ceil(WORD_PAGES))?,
            tables: zeroed(pages / TABLE_PAGES + 1)?,
            groups: zeroed(pages / GROUP_PAGES + 1)?,
            round: Word::default(),
        })
    }

    /// Counts a write fault at `page`. Returns the pages on which to set DBM now; they may reach beyond the slot.
    pub(super) fn fault(&self, page: u64) -> Option<Range<u64>> {
        let round = self.round.load(Ordering::Relaxed);
        let group = count(&self.groups[(page / GROUP_PAGES) as usize], round);
        let table = count(&self.tables[(page / TABLE_PAGES) as usize], round);
        let pages = if group == GROUP {
            GROUP_PAGES
        } else if table == TABLE {
            TABLE_PAGES
        } else if self.sections.is_set(page / WORD_PAGES) {
            WORD_PAGES
        } else {
            self.sections.set(page / WORD_PAGES);
            return None;
        };
        let first = page / pages * pages;
        Some(first..first + pages)
    }

    /// The pages of the last [`fault`](Self::fault) at `page` were left to the next one, in part: if they were a group's, the
    /// next fault there returns them again.
    pub(super) fn left_over(&self, page: u64) {
        let round = self.round.load(Ordering::Relaxed) & u64::from(u32::MAX);
        self.groups[(page / GROUP_PAGES) as usize].store(round << 32 | (GROUP - 1), Ordering::Relaxed);
    }

    /// Begins a round.
    pub(super) fn next_round(&self) {
        let round = self.round.load(Ordering::Relaxed).wrapping_add(1);
        self.round.store(round, Ordering::Relaxed);
        if round.is_multiple_of(MEMORY) {
            self.sections.clear();
        }
    }
}

/// Adds one to the count of this round. The cell has the round's number in its upper half.
fn count(cell: &Word, round: u64) -> u64 {
    let old = cell.load(Ordering::Relaxed);
    let new = if old >> 32 == round & u64::from(u32::MAX) { old + 1 } else { round << 32 | 1 };
    cell.store(new, Ordering::Relaxed);
    new & u64::from(u32::MAX)
}

impl Cold {
    /// Counters for a slot of `pages` pages, or `None` if the heap is full.
    pub(super) fn new(pages: u64) -> Option<Self> {
        let sections = pages.div_ceil(WORD_PAGES) as usize;
        let mut rounds = Vec::new();
        rounds.try_reserve_exact(sections).ok()?;
        rounds.resize(sections, 0);
        Some(Self { rounds: rounds.into_boxed_slice(), paid: 0 })
    }

    /// Forgets all rounds: a log starts.
    pub(super) fn forget(&mut self) {
        self.rounds.fill(0);
    }

    /// Begins a round.
    pub(super) fn next_round(&mut self) {
        self.paid = FREE * LOOKS;
    }

    /// Counts a read of the `tracked` (hardware-tracked) sections of a word, of which the `dirty` ones had a write.
    /// Returns the sections to end: those that were clean for [`COLD`] rounds, as far as reads have paid for them.
    pub(super) fn looked(&mut self, word: u64, tracked: u64, dirty: u64) -> u64 {
        let sections = self.rounds.get_mut((word * WORD) as usize..).unwrap_or_default();
        let count = sections.len().min(WORD as usize);
        let (sections, clean) = (&mut sections[..count], tracked & !dirty);
        let mut longest = 0;
        for (bit, rounds) in sections.iter_mut().enumerate() {
            *rounds = if clean >> bit & 1 == 1 { rounds.saturating_add(1) } else { 0 };
            longest = longest.max(*rounds);
        }
        self.paid += u64::from(tracked.count_ones());
        let mut ended = 0;
        if longest >= COLD {
            for (bit, rounds) in sections.iter_mut().enumerate().filter(|(_, rounds)| **rounds >= COLD) {
                if self.paid >= LOOKS {
                    self.paid -= LOOKS;
                    *rounds = 0;
                    ended |= 1 << bit;
                }
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 4 * GROUP_PAGES;

    fn heat() -> Heat {
        let heat = Heat::new(PAGES).unwrap();
        heat.next_round();
        heat
    }

    #[test]
    fn the_second_fault_sets_dbm_on_a_section_unless_the_first_is_long_ago() {
        let heat = heat();
        assert_eq!(heat.fault(65), None);
        heat.next_round();
        assert_eq!(heat.fault(130), None);
        assert_eq!(heat.fault(127), Some(64..128));
        (0..MEMORY).for_each(|_| heat.next_round());
        assert_eq!(heat.fault(131), None);
    }

    #[test]
    fn faults_that_lie_close_set_dbm_on_a_table_and_then_a_group() {
        let heat = heat();
        let faults = (0..GROUP_PAGES / WORD_PAGES).map(|section| (section, heat.fault(section * WORD_PAGES)));
        let tracked: Vec<_> = faults.filter_map(|(section, tracked)| Some((section, tracked?))).collect();
        assert_eq!(tracked[0], (TABLE - 1, 0..TABLE_PAGES));
        assert!(tracked.contains(&(GROUP - 1, 0..GROUP_PAGES)), "{tracked:?}");
    }

    #[test]
    fn what_was_left_over_of_a_group_is_returned_again() {
        let heat = heat();
        let last = (0..GROUP).map(|section| heat.fault(section * WORD_PAGES)).last().unwrap();
        assert_eq!(last, Some(0..GROUP_PAGES));
        heat.left_over(0);
        assert_eq!(heat.fault(GROUP_PAGES - 1), Some(0..GROUP_PAGES));
        assert_ne!(heat.fault(GROUP_PAGES - 1), Some(0..GROUP_PAGES));
        heat.left_over(0);
        heat.next_round();
        assert_ne!(heat.fault(GROUP_PAGES - 1), Some(0..GROUP_PAGES), "in this round only");
    }

    #[test]
    fn faults_of_another_round_do_not_count_for_a_table() {
        let heat = heat();
        for section in 0..TABLE_PAGES / WORD_PAGES {
            heat.next_round();
            assert_eq!(heat.fault(section * WORD_PAGES), None);
        }
    }

    #[test]
    fn a_section_ends_once_it_was_cold_for_long_enough() {
        let mut cold = Cold::new(PAGES).unwrap();
        let mut round = |dirty| {
            cold.next_round();
            cold.looked(1, 0b1010, dirty)
        };
        assert!((1..COLD).all(|_| round(0b10) == 0));
        assert_eq!(round(0b10), 0b1000);
        assert!((1..COLD).all(|_| round(0b1000) == 0));
        assert_eq!(round(0), 0b10);
        assert_eq!(round(0), 0, "it begins anew");
    }

    /// Exactly that number: from the beginning, after a start, and after DBM was set again; in the second word as in
    /// the first.
    #[test]
    fn a_section_is_cold_after_the_same_number_of_rounds_each_time() {
        let mut cold = Cold::new(PAGES).unwrap();
        for word in [0, 1, 1, 0] {
            for times in 0..2 {
                let rounds = (1..).find(|_| {
                    cold.next_round();
                    cold.looked(word, 1 << 5, 0) != 0
                });
                assert_eq!(rounds, Some(COLD), "word {word}, {times} times before");
            }
            cold.next_round();
            assert_eq!(cold.looked(1 - word, 1 << 5, 0), 0, "another section");
            cold.forget();
        }
    }

    #[test]
    fn what_is_written_in_another_word_keeps_nothing_warm() {
        let mut cold = Cold::new(PAGES).unwrap();
        let rounds = (1..).find(|_| {
            cold.next_round();
            let ended = cold.looked(0, 1 << 5, 0);
            assert_eq!(cold.looked(1, 1 << 5, 1 << 5), 0);
            ended != 0
        });
        assert_eq!(rounds, Some(COLD));
    }

    #[test]
    fn a_fault_is_known_until_enough_rounds_are_over() {
        let heat = Heat::new(PAGES).unwrap();
        assert_eq!(heat.fault(65), None);
        (1..MEMORY).for_each(|_| heat.next_round());
        assert_eq!(heat.fault(66), Some(64..128));
        heat.next_round();
        assert_eq!(heat.fault(67), None);
    }

    /// A counter for each table and each group, and one more for a slot that does not end with one.
    #[test]
    fn there_are_as_many_counters_as_pages_need() {
        let heat = Heat::new(PAGES).unwrap();
        assert_eq!(heat.tables.len() as u64, PAGES / TABLE_PAGES + 1);
        assert_eq!(heat.groups.len() as u64, PAGES / GROUP_PAGES + 1);
    }

    #[test]
    fn what_was_not_tracked_is_not_cold() {
        let mut cold = Cold::new(PAGES).unwrap();
        cold.next_round();
        assert!((1..COLD).all(|_| cold.looked(0, 1, 0) == 0));
        assert_eq!(cold.looked(0, 0, 0), 0);
        assert_eq!(cold.looked(0, 1, 0), 0);
    }

    #[test]
    fn what_ends_in_a_round_is_a_part_of_what_is_looked_at() {
        let mut cold = Cold::new(PAGES).unwrap();
        let sections = PAGES / WORD_PAGES;
        let mut ended = 0;
        for _ in 0..COLD {
            cold.next_round();
            ended = (0..sections / WORD).map(|word| cold.looked(word, u64::MAX, 0).count_ones()).sum();
        }
        assert_eq!(u64::from(ended), FREE + sections / LOOKS);
    }

    #[test]
    fn a_word_is_cut_at_the_end() {
        let mut cold = Cold::new(3 * WORD_PAGES).unwrap();
        cold.next_round();
        (1..COLD).for_each(|_| assert_eq!(cold.looked(0, u64::MAX, 0), 0));
        assert_eq!(cold.looked(0, u64::MAX, 0), 0b111);
        assert_eq!(cold.looked(1, u64::MAX, 0), 0);
    }
}
