// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a guest's memory is zero, except for loaded bytes, when the guest first sees it, whatever it held
//! before: zeroed, then cleaned, then mapped. And that this is done once, and counted.

use twofold_memory::Counts;
use twofold_stage2::platform::Domain;
use twofold_stage2::{Access, Pa};

use super::*;
use crate::machine::bank::{LEFT_IN_CACHE, LEFT_IN_MEMORY};
use crate::machine::platform::{Event, Sight};
use crate::machine::{HUGE_PAGE, PAGE};

const ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];

#[test]
fn a_guest_sees_zeroes_the_moment_it_sees_anything() {
    for forced_write_back in [false, true] {
        for zero_block in [0, 64, 2048] {
            let features = PLAIN.with_forced_write_back(forced_write_back).with_zero_block(zero_block);
            for (pages, level, leaf) in [(Pages::Small, Level::L3, PAGE), (Pages::Largest, Level::L2, HUGE_PAGE)] {
                for access in [Read, Write, Execute] {
                    let mut guest = guest(features, pages, 2 * HUGE_PAGE);
                    let at = BASE + HUGE_PAGE + 7 * PAGE;
                    let first = at.align_down(leaf);
                    let watched = [first, at, first + (leaf - PAGE)];
                    for ipa in watched {
                        guest.machine.watch(ipa, Some(ZEROES.to_vec()));
                    }

                    assert_eq!(guest.fault(at + 0x123, Translation, access), Ok(mapped(level, true)));

                    let seen = watched.map(|ipa| guest.walk(ipa).unwrap().output(ipa));
                    for pa in seen {
                        guest.machine.check_page(pa, &ZEROES);
                    }
                    let mut counts = Counts { frames_zeroed: leaf / PAGE, ..guest.memory.counts() };
                    (counts.tables_allocated, counts.tables_freed) = (0, 0);
                    let mut expected = Counts { frames_zeroed: leaf / PAGE, ..Counts::default() };
                    expected.mapped[usize::from(level.raw())] = 1;
                    expected.first_touches[usize::from(level.raw())] = 1;
                    assert_eq!(counts, expected);
                    assert_eq!(guest.memory.counts().frames_zeroed, leaf / PAGE);
                }
            }
        }
    }
}

/// Maps the first page, so that there are tables, then the second. Returns the record and the PA of the second.
fn record_of_a_page(features: Features) -> (Vec<Event>, Pa) {
    let mut guest = guest(features, Pages::Small, HUGE_PAGE);
    guest.reach(BASE, Read);
    let at = BASE + PAGE;
    guest.machine.watch(at, Some(ZEROES.to_vec()));
    guest.machine.events();
    assert_eq!(guest.fault(at, Translation, Write), Ok(mapped(Level::L3, true)));
    let record = guest.machine.events();
    (record, guest.walk(at).unwrap().pa())
}

fn sees(pa: Pa) -> Event {
    Event::Sees(BASE + PAGE, Some(Sight { level: 3, pa, access: Access::READ_WRITE }))
}

#[test]
fn a_page_is_zeroed_then_cleaned_then_mapped() {
    let (record, pa) = record_of_a_page(PLAIN.with_zero_block(64));
    let (zero, clean) = (Event::Zero(pa, PAGE), Event::Clean(pa, PAGE));
    assert_eq!(record, [zero, clean, Event::Dsb(Domain::Ish), sees(pa), Event::Dsb(Domain::IshSt)]);
}

#[test]
fn with_forced_write_back_a_page_is_zeroed_then_mapped() {
    let (record, pa) = record_of_a_page(FORCED.with_zero_block(64));
    assert_eq!(record, [Event::Zero(pa, PAGE), sees(pa), Event::Dsb(Domain::IshSt)]);
}

#[test]
fn a_block_is_zeroed_then_cleaned_then_mapped() {
    let mut guest = guest(PLAIN.with_zero_block(2048), Pages::Largest, 2 * HUGE_PAGE);
    guest.reach(BASE, Read);
    let at = BASE + HUGE_PAGE;
    guest.machine.watch(at, Some(ZEROES.to_vec()));
    guest.machine.events();
    assert_eq!(guest.fault(at + 0x5000, Translation, Read), Ok(mapped(Level::L2, true)));
    let record = guest.machine.events();
    let pa = guest.walk(at).unwrap().pa();
    let sees = Event::Sees(at, Some(Sight { level: 2, pa, access: Access::READ_WRITE }));
    // Piece by piece.
    const PIECE: u64 = 128 << 10;
    let pieces = (0..HUGE_PAGE / PIECE).flat_map(|piece| {
        let at = pa + piece * PIECE;
        [Event::Zero(at, PIECE), Event::Clean(at, PIECE), Event::Dsb(Domain::Ish)]
    });
    let expected: Vec<_> = pieces.chain([sees, Event::Dsb(Domain::IshSt)]).collect();
    assert_eq!(record, expected);
}

#[test]
fn with_small_pages_only_the_touched_page_is_made_ready() {
    let mut guest = guest(PLAIN, Pages::Small, HUGE_PAGE);
    let pa = guest.reach(BASE + 5 * PAGE, Read);
    for neighbour in [Pa::new(pa.raw() - PAGE), pa + PAGE] {
        let bank = guest.machine.bank(pa);
        assert_eq!(bank.load(neighbour, PAGE), [LEFT_IN_CACHE; PAGE as usize]);
        assert_eq!(bank.load_past_caches(neighbour, PAGE), [LEFT_IN_MEMORY; PAGE as usize]);
    }
}

#[test]
fn what_was_loaded_is_there_and_the_rest_is_zero() {
    for (features, pages) in [(PLAIN, Pages::Small), (PLAIN, Pages::Largest), (FORCED, Pages::Largest)] {
        let mut guest = guest(features, pages, HUGE_PAGE);
        let text = b"loaded before the guest ran";
        let at = BASE + 3 * PAGE + 0x235;
        guest.memory.write(at, text).unwrap();
        let mut expected = ZEROES.to_vec();
        expected[0x235..][..text.len()].copy_from_slice(text);
        guest.machine.watch(BASE + 3 * PAGE, Some(expected.clone()));
        guest.machine.watch(BASE + 4 * PAGE, Some(ZEROES.to_vec()));

        let loaded = guest.reach(at, Read).align_down(PAGE);
        let next = guest.reach(BASE + 4 * PAGE, Write);

        guest.machine.check_page(loaded, &expected);
        guest.machine.check_page(next, &ZEROES);
        // The loaded page was zeroed when it was loaded, and is not zeroed again.
        let zeroed = if pages == Pages::Small { 2 } else { 512 };
        assert_eq!(guest.memory.counts().frames_zeroed, zeroed);
    }
}

#[test]
fn all_frames_of_a_huge_page_are_zeroed_once() {
    let mut guest = guest(FORCED, Pages::Small, HUGE_PAGE);
    for page in 0..512 {
        let pa = guest.reach(BASE + page * PAGE, Write);
        guest.machine.check_page(pa, &ZEROES);
        guest.machine.bank(pa).store(pa, &[page as u8 | 1; PAGE as usize]);
    }
    for page in 0..512 {
        // A translation fault for a mapped page: a TLB was stale.
        assert_eq!(guest.fault(BASE + page * PAGE, Translation, Write), Ok(STALE));
        let pa = guest.reach(BASE + page * PAGE, Read);
        guest.machine.check_page(pa, &[page as u8 | 1; PAGE as usize]);
    }
    let counts = guest.memory.counts();
    assert_eq!(counts.frames_zeroed, 512);
    assert_eq!((counts.mapped, counts.first_touches), ([0, 0, 0, 512], [0, 0, 0, 512]));
}

#[test]
fn two_slots_share_no_frame() {
    let mut guest = RunningGuest::new(FORCED, Pages::Small, 4);
    guest.add_ram(BASE, HUGE_PAGE);
    guest.add_ram(BASE + 4 * HUGE_PAGE, HUGE_PAGE);
    let one = guest.reach(BASE, Write);
    guest.machine.bank(one).store(one, b"secret");
    let other = guest.reach(BASE + 4 * HUGE_PAGE, Write);
    assert_ne!(one.align_down(HUGE_PAGE), other.align_down(HUGE_PAGE));
    guest.machine.check_page(other, &ZEROES);
}

/// A page that a loader wrote keeps its content when its huge page is mapped by a block, wherever the page is in it.
#[test]
fn a_block_keeps_what_was_loaded_in_any_of_its_pages() {
    let loaded: [Vec<u64>; 4] = [vec![0], vec![511], (0..512).step_by(64).collect(), (0..512).collect()];
    for pages in loaded {
        let mut guest = guest(FORCED, Pages::Largest, HUGE_PAGE);
        for page in &pages {
            guest.memory.write(BASE + page * PAGE, &[7]).unwrap();
        }
        assert_eq!(guest.fault(BASE, Translation, Read), Ok(mapped(Level::L2, pages.len() < 512)));
        for page in 0..512 {
            let mut byte = [1];
            guest.memory.read(BASE + page * PAGE, &mut byte).unwrap();
            assert_eq!(byte, [if pages.contains(&page) { 7 } else { 0 }], "page {page} of {pages:?}");
        }
        assert_eq!(guest.memory.counts().frames_zeroed, 512);
    }
}
