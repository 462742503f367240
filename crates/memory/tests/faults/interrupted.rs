// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that the first touch of a huge page stops for a pending interrupt, and goes on where it was: each fault zeroes
//! a piece, no piece is zeroed twice, and nothing is mapped before all of it is zero. Without FEAT_S2FWB the pieces are
//! cleaned, too: none twice, unless it was written meanwhile.

use twofold_memory::swap::PinnedFor;
use twofold_stage2::Pa;

use super::*;
use crate::machine::platform::Event;
use crate::machine::{HUGE_PAGE, PAGE};

/// What is zeroed without a look at interrupts.
const PIECE: u64 = 128 << 10;
const PIECES: u64 = HUGE_PAGE / PIECE;
const INTERRUPTED: Answer = Answer::Retry(Done::Interrupted);
const ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];

/// A guest with one huge page, of which the first and last page, and those beside the first border of pieces, must read
/// as `expected` when they are first seen.
fn watched_guest(features: Features) -> RunningGuest {
    let guest = guest(features.with_zero_block(64), Pages::Largest, HUGE_PAGE);
    for offset in [0, PIECE - PAGE, PIECE, HUGE_PAGE - PAGE] {
        guest.machine.watch(BASE + offset, Some(ZEROES.to_vec()));
    }
    guest.machine.events();
    guest
}

/// What was zeroed, without table pages.
fn zeroed(events: Vec<Event>) -> Vec<(Pa, u64)> {
    let zero = |event| if let Event::Zero(pa, size) = event { Some((pa, size)) } else { None };
    events.into_iter().filter_map(zero).filter(|(_, size)| *size > PAGE).collect()
}

#[test]
fn each_fault_zeroes_a_piece_and_the_last_one_maps() {
    for features in [FORCED, PLAIN] {
        let mut guest = watched_guest(features);
        guest.machine.set_interrupt_hook(|| true);
        let mut pieces = Vec::new();
        for piece in 1..PIECES {
            assert_eq!(guest.fault(BASE + 5 * PAGE, Translation, Write), Ok(INTERRUPTED));
            assert_eq!(guest.walk(BASE), None, "mapped after {piece} pieces");
            assert_eq!(guest.memory.counts().frames_zeroed, piece * PIECE / PAGE);
            pieces.extend(zeroed(guest.machine.events()));
        }
        assert_eq!(guest.fault(BASE + 5 * PAGE, Translation, Write), Ok(mapped(Level::L2, true)));
        pieces.extend(zeroed(guest.machine.events()));

        let start = guest.walk(BASE).unwrap().pa();
        let expected: Vec<_> = (0..PIECES).map(|piece| (start + piece * PIECE, PIECE)).collect();
        assert_eq!(pieces, expected);
        let counts = guest.memory.counts();
        assert_eq!((counts.frames_zeroed, counts.mapped, counts.first_touches), (512, [0, 0, 1, 0], [0, 0, 1, 0]));
    }
}

#[test]
fn an_interrupt_that_comes_late_stops_there() {
    let mut guest = watched_guest(FORCED);
    let mut asked = 0;
    guest.machine.set_interrupt_hook(move || {
        asked += 1;
        asked == 4
    });
    assert_eq!(guest.fault(BASE, Translation, Read), Ok(INTERRUPTED));
    assert_eq!(guest.memory.counts().frames_zeroed, 4 * PIECE / PAGE);
    assert_eq!(guest.fault(BASE, Translation, Read), Ok(mapped(Level::L2, true)));
    assert_eq!(guest.memory.counts().frames_zeroed, 512);
}

/// What a device writes between two pieces stays, whether or not the page was zeroed by then.
#[test]
fn a_write_between_two_pieces_stays() {
    for features in [FORCED, PLAIN] {
        let mut guest = guest(features.with_zero_block(64), Pages::Largest, HUGE_PAGE);
        guest.machine.set_interrupt_hook(|| true);
        let written = [0, 31, 32, 40, 64, 511];
        assert_eq!(guest.fault(BASE, Translation, Read), Ok(INTERRUPTED));
        for page in written {
            guest.memory.write(BASE + page * PAGE, &[7]).unwrap();
            let mut expected = ZEROES.to_vec();
            expected[0] = 7;
            guest.machine.watch(BASE + page * PAGE, Some(expected));
        }
        guest.machine.watch(BASE + 33 * PAGE, Some(ZEROES.to_vec()));
        let mut faults = 1;
        // The first piece was cleaned before the writes.
        let most = PIECES + u64::from(!features.forced_write_back);
        while guest.walk(BASE).is_none() {
            assert!(faults < most, "no progress after {faults} faults");
            let _ = guest.fault(BASE, Translation, Read).unwrap();
            faults += 1;
        }
        assert_eq!(guest.memory.counts().frames_zeroed, 512);
    }
}

/// What was cleaned: its offset in the huge page, and its size.
fn cleaned(guest: &mut RunningGuest) -> Vec<(u64, u64)> {
    let start = guest.walk(BASE).unwrap().pa();
    let clean = |event| if let Event::Clean(pa, size) = event { Some((pa - start, size)) } else { None };
    guest.machine.events().into_iter().filter_map(clean).collect()
}

fn all_pieces() -> Vec<(u64, u64)> {
    (0..PIECES).map(|piece| (piece * PIECE, PIECE)).collect()
}

/// Faults at `BASE` until it is mapped, with an interrupt at each look. Returns the number of faults.
fn fault_until_mapped(guest: &mut RunningGuest) -> u64 {
    guest.machine.set_interrupt_hook(|| true);
    for faults in 1..=2 * PIECES {
        if guest.fault(BASE, Translation, Read) != Ok(INTERRUPTED) {
            return faults;
        }
    }
    panic!("no progress")
}

#[test]
fn each_piece_is_cleaned_once() {
    let mut guest = watched_guest(PLAIN);
    assert_eq!(fault_until_mapped(&mut guest), PIECES);
    assert_eq!(cleaned(&mut guest), all_pieces());
}

/// A huge page that a loader has written, and in which nothing is to be zeroed.
#[test]
fn what_was_loaded_is_cleaned_in_pieces() {
    let mut guest = guest(PLAIN.with_zero_block(64), Pages::Largest, HUGE_PAGE);
    let text = [7; PAGE as usize];
    (0..512).for_each(|page| guest.memory.write(BASE + page * PAGE, &text).unwrap());
    for page in [0, 31, 32, 511] {
        guest.machine.watch(BASE + page * PAGE, Some(text.to_vec()));
    }
    guest.machine.events();
    assert_eq!(fault_until_mapped(&mut guest), PIECES);
    assert_eq!(cleaned(&mut guest), all_pieces());
    let counts = guest.memory.counts();
    assert_eq!((counts.mapped, counts.first_touches), ([0, 0, 1, 0], [0; 4]));
}

/// A device may write to a pinned page at any time, without notice. So nothing is cleaned while a page is pinned.
#[test]
fn what_a_device_writes_to_a_pinned_page_between_two_pieces_is_cleaned() {
    let mut guest = guest(PLAIN.with_zero_block(64), Pages::Largest, HUGE_PAGE);
    let pinned = guest.memory.pin(BASE..BASE + PAGE, PinnedFor::Writing).unwrap();
    guest.machine.set_interrupt_hook(|| true);
    assert_eq!(guest.fault(BASE, Translation, Read), Ok(INTERRUPTED));
    let pa = guest.memory.frame_of(BASE).unwrap().unwrap();
    guest.machine.bank(pa).set_word(pa, 7);
    guest.memory.unpin(pinned);
    let mut expected = ZEROES.to_vec();
    expected[0] = 7;
    guest.machine.watch(BASE, Some(expected));
    let _ = fault_until_mapped(&mut guest);
}

/// The lines of a write after the cleaning of its piece are cleaned again, and no other piece is.
#[test]
fn a_piece_that_is_written_after_it_was_cleaned_is_cleaned_again() {
    for page in [0, 31, 32, 100] {
        let mut guest = guest(PLAIN.with_zero_block(64), Pages::Largest, HUGE_PAGE);
        guest.machine.set_interrupt_hook(|| true);
        for _ in 0..4 {
            assert_eq!(guest.fault(BASE, Translation, Read), Ok(INTERRUPTED));
        }
        guest.memory.write(BASE + page * PAGE, &[7]).unwrap();
        let mut expected = ZEROES.to_vec();
        expected[0] = 7;
        guest.machine.watch(BASE + page * PAGE, Some(expected));
        let _ = fault_until_mapped(&mut guest);
        let mut pieces = all_pieces();
        pieces.push((page * PAGE / PIECE * PIECE, PIECE));
        pieces.sort();
        let mut cleaned = cleaned(&mut guest);
        cleaned.sort();
        assert_eq!(cleaned, pieces, "page {page}");
    }
}

/// What was cleared is zeroed and cleaned anew.
#[test]
fn a_huge_page_that_is_cleared_is_cleaned_again() {
    let mut guest = RunningGuest::new(PLAIN.with_zero_block(64), Pages::Largest, 4);
    let slot = guest.add(BASE, HUGE_PAGE, twofold_memory::Backing::Ram, true);
    for round in 0..2 {
        guest.machine.watch(BASE, Some(ZEROES.to_vec()));
        assert_eq!(fault_until_mapped(&mut guest), PIECES, "round {round}");
        assert_eq!(cleaned(&mut guest), all_pieces(), "round {round}");
        guest.memory.write(BASE, &[7]).unwrap();
        guest.memory.clear(slot, BASE..BASE + HUGE_PAGE).unwrap();
        guest.machine.events();
    }
}

/// A page is zeroed in one go, without a question; so is a huge page whose pages are all ready.
#[test]
fn short_work_asks_for_no_interrupt() {
    for pages in [Pages::Small, Pages::Largest] {
        let mut guest = guest(FORCED, pages, HUGE_PAGE);
        guest.machine.set_interrupt_hook(|| panic!("asked whether an interrupt is pending"));
        if pages == Pages::Largest {
            (0..512).for_each(|page| guest.memory.write(BASE + page * PAGE, &[7]).unwrap());
        }
        guest.reach(BASE, Write);
    }
}
