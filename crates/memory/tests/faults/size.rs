// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves how large the mappings of RAM are: pages where the policy says so and at the ragged ends of a slot, and
//! blocks for each section that lies in the slot as a whole.

use twofold_memory::Counts;
use twofold_stage2::Pa;

use super::*;
use crate::machine::{PAGE, SECTION};

#[test]
fn small_pages_are_pages_everywhere() {
    let mut guest = guest(PLAIN, Pages::Small, 3 * SECTION);
    for offset in [0, PAGE, SECTION - PAGE, SECTION, 2 * SECTION + 9 * PAGE, 3 * SECTION - 1] {
        for access in [Read, Write, Execute] {
            guest.reach(BASE + offset, access);
        }
        assert_eq!(guest.level(BASE + offset), Some(3));
    }
    assert_eq!(guest.memory.counts().mapped, [0, 0, 0, 6]);
}

/// Touches each page of the slot, and expects blocks in these sections of those that start at `BASE`, pages elsewhere.
fn blocks_of(start: u64, size: u64, blocks: std::ops::Range<u64>) {
    let mut guest = Guest::new(FORCED, Pages::Largest, size / SECTION + 5);
    guest.add_ram(BASE + start, size);
    let mut pages = 0;
    for offset in (start..start + size).step_by(PAGE as usize) {
        let in_block = blocks.contains(&(offset / SECTION));
        pages += u64::from(!in_block);
        let pa = guest.reach(BASE + offset, Read);
        assert_eq!(guest.level(BASE + offset), Some(if in_block { 2 } else { 3 }), "at {offset:#x}");
        assert_eq!(pa.raw() % SECTION, offset % SECTION, "sections are contiguous");
    }
    // The neighbours of the slot were not mapped with it.
    assert_eq!((guest.walk(BASE + (start + size)), guest.walk(Ipa::new(BASE.raw() + start - 1))), (None, None));
    let Counts { mapped, first_touches, frames_zeroed, .. } = guest.memory.counts();
    let count = blocks.end - blocks.start;
    assert_eq!(mapped, [0, 0, count, pages]);
    assert_eq!((first_touches, frames_zeroed), (mapped, size / PAGE), "no frame is zeroed that is not mapped");
    assert_eq!(guest.scan().leaves.len() as u64, count + pages);
}

#[test]
fn whole_sections_are_blocks() {
    blocks_of(SECTION, 3 * SECTION, 1..4);
    blocks_of(SECTION, SECTION, 1..2);
}

#[test]
fn a_ragged_start_is_pages() {
    blocks_of(SECTION + 3 * PAGE, 2 * SECTION - 3 * PAGE, 2..3);
    blocks_of(SECTION + PAGE, 2 * SECTION - PAGE, 2..3);
    blocks_of(2 * SECTION - PAGE, SECTION + PAGE, 2..3);
}

#[test]
fn a_ragged_end_is_pages() {
    blocks_of(SECTION, SECTION + 5 * PAGE, 1..2);
    blocks_of(SECTION, SECTION + PAGE, 1..2);
    blocks_of(SECTION, 2 * SECTION - PAGE, 1..2);
}

#[test]
fn both_ends_ragged_is_a_block_in_the_middle() {
    blocks_of(SECTION + 7 * PAGE, 2 * SECTION, 2..3);
}

#[test]
fn a_slot_smaller_than_a_section_is_pages() {
    blocks_of(SECTION, SECTION - PAGE, 0..0);
    blocks_of(SECTION + PAGE, SECTION - PAGE, 0..0);
    blocks_of(SECTION + 5 * PAGE, PAGE, 0..0);
}

#[test]
fn a_section_sized_slot_that_is_not_aligned_is_pages() {
    blocks_of(SECTION + PAGE, SECTION, 0..0);
}

#[test]
fn a_section_that_is_in_two_slots_is_pages_of_different_frames() {
    let mut guest = Guest::new(FORCED, Pages::Largest, 8);
    let middle = BASE + SECTION / 2;
    guest.add_ram(BASE, SECTION / 2);
    guest.add_ram(middle, SECTION / 2);
    let below = guest.reach(BASE, Read);
    let above = guest.reach(middle, Read);
    assert_eq!((guest.level(BASE), guest.level(middle)), (Some(3), Some(3)));
    assert_ne!(below.align_down(SECTION), above.align_down(SECTION));
}

/// Puts a table where the section's block would go, as splitting a block does.
fn put_table_in_the_way(guest: &mut Guest, section: Ipa) -> Pa {
    let neighbour = guest.reach(section + SECTION, Read);
    let entry = guest.walk(section + SECTION).unwrap().entry;
    assert_eq!(guest.machine.mmu().translate(&|pa| guest.machine.word(pa), section), Err(2));
    let table = guest.memory.frames().take(1).unwrap().pa();
    guest.machine.bank(table).zero(table, PAGE);
    // The entry before the neighbour's, in the same table of level 2.
    let entry = Pa::new(entry.raw() - 8);
    guest.machine.bank(entry).set_word(entry, table.raw() | 3);
    neighbour
}

#[test]
fn where_a_table_is_in_the_way_there_are_pages() {
    for features in [PLAIN, FORCED] {
        let mut guest = guest(features, Pages::Largest, 2 * SECTION);
        put_table_in_the_way(&mut guest, BASE);
        let zeroes = vec![0; PAGE as usize];
        for page in [3, 4, 511, 0] {
            let ipa = BASE + page * PAGE;
            guest.machine.watch(ipa, Some(zeroes.clone()));
            assert!(matches!(
                guest.fault(ipa, Translation, Write),
                Ok(Answer::Retry(Done::Mapped { level: Level::L3, .. }))
            ));
            assert_eq!(guest.level(ipa), Some(3));
            assert_eq!(guest.fault_of(ipa, Write), None);
            let pa = guest.reach(ipa, Write);
            guest.machine.check_page(pa, &zeroes);
            // What the guest writes is not zeroed when the next page comes.
            guest.machine.bank(pa).store(pa, b"kept");
        }
        for page in [3, 4, 511, 0] {
            let pa = guest.reach(BASE + page * PAGE, Read);
            assert_eq!(guest.machine.bank(pa).load(pa, 4), b"kept");
            assert_eq!(pa.raw() % SECTION, page * PAGE);
        }
        assert_eq!(guest.walk(BASE + 5 * PAGE), None, "only what was touched");
        assert_eq!(guest.memory.counts().mapped, [0, 0, 1, 4]);
        assert_eq!(guest.memory.counts().frames_zeroed, 1024);
    }
}

#[test]
fn a_fault_anywhere_in_a_block_finds_it() {
    let mut guest = guest(PLAIN, Pages::Largest, SECTION);
    guest.reach(BASE + 100 * PAGE, Write);
    for offset in [0, SECTION - 1, 100 * PAGE] {
        assert_eq!(guest.fault_of(BASE + offset, Write), None);
        assert_eq!(guest.fault(BASE + offset, Translation, Write), Ok(STALE));
    }
    assert_eq!(guest.memory.counts().mapped, [0, 0, 1, 0]);
}
