// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves how large the mappings of RAM are: pages where the policy says so and at the ragged ends of a slot, and a
//! block for each huge page that lies in the slot as a whole.

use twofold_memory::{Backing, Counts, Slot};

use super::*;
use crate::machine::platform::Event;
use crate::machine::{HUGE_PAGE, PAGE};

#[test]
fn small_pages_are_pages_everywhere() {
    let mut guest = guest(PLAIN, Pages::Small, 3 * HUGE_PAGE);
    for offset in [0, PAGE, HUGE_PAGE - PAGE, HUGE_PAGE, 2 * HUGE_PAGE + 9 * PAGE, 3 * HUGE_PAGE - 1] {
        for access in [Read, Write, Execute] {
            guest.reach(BASE + offset, access);
        }
        assert_eq!(guest.level(BASE + offset), Some(3));
    }
    assert_eq!(guest.memory.counts().mapped, [0, 0, 0, 6]);
}

/// Touches each page of the slot. Expects blocks for the huge pages with the numbers `blocks`, counted from `BASE`, and
/// pages elsewhere.
fn blocks_of(start: u64, size: u64, blocks: std::ops::Range<u64>) {
    let mut guest = RunningGuest::new(FORCED, Pages::Largest, size / HUGE_PAGE + 5);
    guest.add_ram(BASE + start, size);
    let mut pages = 0;
    for offset in (start..start + size).step_by(PAGE as usize) {
        let in_block = blocks.contains(&(offset / HUGE_PAGE));
        pages += u64::from(!in_block);
        let pa = guest.reach(BASE + offset, Read);
        assert_eq!(guest.level(BASE + offset), Some(if in_block { 2 } else { 3 }), "at {offset:#x}");
        assert_eq!(pa.raw() % HUGE_PAGE, offset % HUGE_PAGE, "huge pages are contiguous");
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
fn whole_huge_pages_are_blocks() {
    blocks_of(HUGE_PAGE, 3 * HUGE_PAGE, 1..4);
    blocks_of(HUGE_PAGE, HUGE_PAGE, 1..2);
}

#[test]
fn a_ragged_start_is_pages() {
    blocks_of(HUGE_PAGE + 3 * PAGE, 2 * HUGE_PAGE - 3 * PAGE, 2..3);
    blocks_of(HUGE_PAGE + PAGE, 2 * HUGE_PAGE - PAGE, 2..3);
    blocks_of(2 * HUGE_PAGE - PAGE, HUGE_PAGE + PAGE, 2..3);
}

#[test]
fn a_ragged_end_is_pages() {
    blocks_of(HUGE_PAGE, HUGE_PAGE + 5 * PAGE, 1..2);
    blocks_of(HUGE_PAGE, HUGE_PAGE + PAGE, 1..2);
    blocks_of(HUGE_PAGE, 2 * HUGE_PAGE - PAGE, 1..2);
}

#[test]
fn both_ends_ragged_is_a_block_in_the_middle() {
    blocks_of(HUGE_PAGE + 7 * PAGE, 2 * HUGE_PAGE, 2..3);
}

#[test]
fn a_slot_smaller_than_a_huge_page_is_pages() {
    blocks_of(HUGE_PAGE, HUGE_PAGE - PAGE, 0..0);
    blocks_of(HUGE_PAGE + PAGE, HUGE_PAGE - PAGE, 0..0);
    blocks_of(HUGE_PAGE + 5 * PAGE, PAGE, 0..0);
}

#[test]
fn a_huge_page_sized_slot_that_is_not_aligned_is_pages() {
    blocks_of(HUGE_PAGE + PAGE, HUGE_PAGE, 0..0);
}

#[test]
fn a_huge_page_that_is_in_two_slots_is_pages_of_different_frames() {
    let mut guest = RunningGuest::new(FORCED, Pages::Largest, 8);
    let middle = BASE + HUGE_PAGE / 2;
    guest.add_ram(BASE, HUGE_PAGE / 2);
    guest.add_ram(middle, HUGE_PAGE / 2);
    let below = guest.reach(BASE, Read);
    let above = guest.reach(middle, Read);
    assert_eq!((guest.level(BASE), guest.level(middle)), (Some(3), Some(3)));
    assert_ne!(below.align_down(HUGE_PAGE), above.align_down(HUGE_PAGE));
}

/// A huge page that is mapped by pages, with one missing: its block was split when that page was unmapped.
fn without_a_page(features: Features, pages: Pages) -> (RunningGuest, Ipa) {
    let mut guest = RunningGuest::new(features, pages, 4);
    let slot = Slot { range: BASE..BASE + 2 * HUGE_PAGE, backing: Backing::Ram, writable: true };
    let slot = guest.memory.add_slot(slot).unwrap();
    for page in 0..512 {
        let pa = guest.reach(BASE + page * PAGE, Write);
        guest.machine.bank(pa).store(pa, &page.to_le_bytes());
    }
    let missing = BASE + 7 * PAGE;
    guest.memory.unmap(slot, missing..missing + PAGE).unwrap();
    assert_eq!([BASE, missing, missing + PAGE].map(|ipa| guest.level(ipa)), [Some(3), None, Some(3)]);
    (guest, missing)
}

/// The table is broken and flushed, the block is made, and the table is freed. No page is zeroed or moved, and only the
/// missing page is cleaned.
#[test]
fn a_table_in_the_way_gives_way_to_a_block() {
    for (features, access) in [PLAIN, FORCED].into_iter().flat_map(|cpu| [Read, Write, Execute].map(|kind| (cpu, kind)))
    {
        let (mut guest, missing) = without_a_page(features, Pages::Largest);
        let counts = guest.memory.counts();
        guest.machine.watch(missing, None);
        guest.machine.events();
        assert_eq!(guest.fault(missing, Translation, access), Ok(mapped(Level::L2, false)));
        let events = guest.machine.events();
        let position = |wanted: &dyn Fn(&Event) -> bool| events.iter().position(wanted);
        let flushed = position(&|event| matches!(event, Event::Tlbi(..))).unwrap();
        let seen = position(&|event| matches!(event, Event::Sees(_, Some(sight)) if sight.level == 2)).unwrap();
        assert!(flushed < seen, "{events:?}");
        let page = guest.walk(missing).unwrap().output(missing);
        let cleans = |event: &&Event| matches!(event, Event::Clean(..));
        let expected = (!features.forced_write_back).then_some(Event::Clean(page, PAGE));
        assert_eq!(events[..flushed].iter().find(cleans), expected.as_ref(), "{events:?}");
        assert_eq!(events.iter().filter(cleans).count(), usize::from(expected.is_some()), "{events:?}");
        for page in 0..512 {
            let ipa = BASE + page * PAGE;
            assert_eq!((guest.level(ipa), guest.fault_of(ipa, access)), (Some(2), None));
            let pa = guest.walk(ipa).unwrap().output(ipa);
            assert_eq!(guest.machine.bank(pa).load(pa, 8), page.to_le_bytes());
        }
        let after = guest.memory.counts();
        assert_eq!(after.frames_zeroed, counts.frames_zeroed);
        assert_eq!((after.mapped[2], after.promoted), (counts.mapped[2] + 1, counts.promoted + 1));
        assert_eq!(after.tables_freed, counts.tables_freed + 1);
    }
}

#[test]
fn small_pages_stay_pages_where_one_is_missing() {
    let (mut guest, missing) = without_a_page(PLAIN, Pages::Small);
    assert_eq!(guest.fault(missing, Translation, Read), Ok(mapped(Level::L3, false)));
    assert_eq!([BASE, missing].map(|ipa| guest.level(ipa)), [Some(3); 2]);
}

#[test]
fn a_fault_anywhere_in_a_block_finds_it() {
    let mut guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
    guest.reach(BASE + 100 * PAGE, Write);
    for offset in [0, HUGE_PAGE - 1, 100 * PAGE] {
        assert_eq!(guest.fault_of(BASE + offset, Write), None);
        assert_eq!(guest.fault(BASE + offset, Translation, Write), Ok(STALE));
    }
    assert_eq!(guest.memory.counts().mapped, [0, 0, 1, 0]);
}
