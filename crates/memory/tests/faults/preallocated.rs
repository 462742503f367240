// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves for preallocated RAM: it is mapped with its content by the largest leaf that slot, frames and embedder allow;
//! none of it is zeroed, and none becomes a table; and the embedder gets it back.

use twofold_memory::swap::Located;
use twofold_memory::{Backing, Counts, Error, Slot, SlotError};
use twofold_stage2::{Kib4, Pa, TableSource};

use super::*;
use crate::machine::{GIB, HUGE_PAGE, Machine, PAGE, PREALLOCATED, RAM};

const LEVELS: [Level; 4] = [Level::L0, Level::L1, Level::L2, Level::L3];

/// A guest with frames for tables, and a bank of memory for preallocated slots.
fn guest(features: Features, pages: Pages, size: u64) -> RunningGuest {
    let machine = Machine::new(features, &[(RAM, 16 * PAGE), (PREALLOCATED, size)]);
    let mut frames = twofold_memory::Frames::new(features);
    frames.add(machine.donate(RAM, 16 * PAGE));
    RunningGuest::on(machine, frames, pages, crate::machine::guest::IPA_BITS)
}

/// The level of the leaf that a touch of the page at `at` makes. The slot starts at `BASE + start`, and its frames are
/// `off` bytes away from the same alignment.
fn level(largest: Level, pages: Pages, (start, size, off): (u64, u64, u64), at: u64) -> u8 {
    let mut guest = guest(FORCED, pages, 3 * GIB);
    let frames = PREALLOCATED + start + off;
    let backing = guest.machine.give(frames, size, largest);
    guest.add(BASE + start, size, backing, true);
    let ipa = BASE + at;
    assert_eq!(guest.memory.locate(ipa), Ok(Located::Present));
    assert_eq!(guest.memory.frame_of(ipa), Ok(Some(frames + (at - start))));
    assert_eq!(guest.reach(ipa, Write), frames + (at - start));
    let Counts { first_touches, frames_zeroed, mapped, .. } = guest.memory.counts();
    assert_eq!((first_touches, frames_zeroed, mapped.iter().sum()), ([0; 4], 0, 1));
    let leaf = guest.walk(ipa).unwrap();
    assert!(BASE + start <= leaf.ipa && leaf.end() <= BASE + start + size);
    leaf.level
}

#[test]
fn it_is_mapped_by_the_largest_leaf_that_fits() {
    let all = (0, GIB, 0);
    // As the embedder says.
    assert_eq!(LEVELS.map(|largest| level(largest, Pages::Largest, all, 77 * PAGE)), [1, 1, 2, 3]);
    assert_eq!(LEVELS.map(|largest| level(largest, Pages::Small, all, 77 * PAGE)), [3; 4]);
    let of = |slot, at| level(Level::L1, Pages::Largest, slot, at);
    // As the slot's ends say.
    let ragged = (GIB - HUGE_PAGE - PAGE, GIB + 2 * HUGE_PAGE + 2 * PAGE, 0);
    let at = [ragged.0, GIB - HUGE_PAGE, GIB, 2 * GIB - PAGE, 2 * GIB, 2 * GIB + HUGE_PAGE];
    assert_eq!(at.map(|at| of(ragged, at)), [3, 2, 1, 1, 2, 3]);
    // As the frames' alignment says.
    assert_eq!([HUGE_PAGE, PAGE, HUGE_PAGE - PAGE].map(|off| of((0, GIB, off), 0)), [2, 3, 3]);
}

#[test]
fn it_is_what_it_was_and_what_is_written() {
    for (features, pages) in [(PLAIN, Pages::Largest), (FORCED, Pages::Small)] {
        let mut guest = guest(features, pages, 2 * HUGE_PAGE);
        let bank = |guest: &RunningGuest, at: u64, bytes: &[u8]| {
            guest.machine.bank(PREALLOCATED).store(PREALLOCATED + at, bytes)
        };
        bank(&guest, 3 * PAGE, b"from before");
        let backing = guest.machine.give(PREALLOCATED, 2 * HUGE_PAGE, Level::L2);
        guest.add(BASE, 2 * HUGE_PAGE, backing, true);
        // Across two pages, before they are mapped and after.
        guest.memory.write(BASE + (2 * PAGE - 3), b"loaded").unwrap();
        let expected = guest.machine.bank(PREALLOCATED).load(PREALLOCATED + 3 * PAGE, PAGE);
        guest.machine.watch(BASE + 3 * PAGE, Some(expected));
        for access in [Read, Write, Execute] {
            assert_eq!(guest.reach(BASE + 3 * PAGE, access), PREALLOCATED + 3 * PAGE);
        }
        let mut bytes = [0; 11];
        guest.memory.read(BASE + 3 * PAGE, &mut bytes).unwrap();
        assert_eq!(&bytes, b"from before");
        guest.memory.read(BASE + (2 * PAGE - 3), &mut bytes[..6]).unwrap();
        assert_eq!(&bytes[..6], b"loaded");
        let beyond = Err(Error::NoRam { ipa: BASE + 2 * HUGE_PAGE });
        assert_eq!(guest.memory.write(BASE + (2 * HUGE_PAGE - 1), b"xy"), beyond);
        assert_eq!(guest.memory.read(BASE + (2 * HUGE_PAGE - 1), &mut bytes), beyond);
    }
}

#[test]
fn donated_memory_returns_to_its_owner() {
    let mut guest = guest(FORCED, Pages::Largest, HUGE_PAGE);
    let free = guest.memory.frames().free();
    let backing = guest.machine.give(PREALLOCATED, HUGE_PAGE, Level::L2);
    let slot = Slot { range: BASE..BASE + HUGE_PAGE, backing, writable: true };
    let slot = guest.memory.add_slot(slot).unwrap();
    guest.reach(BASE, Write);
    guest.memory.unmap(slot, BASE..BASE + PAGE).unwrap();
    assert_eq!(guest.memory.release(slot, BASE..BASE + HUGE_PAGE), Ok(0), "it is not for other guests");
    let run = guest.memory.remove_slot(slot).unwrap().expect("the slot was preallocated");
    assert_eq!((run.pa(), run.size(), guest.walk(BASE + PAGE)), (PREALLOCATED, HUGE_PAGE, None));
    assert_eq!(guest.memory.remove_slot(slot), Err(Error::Slot(SlotError::Gone)));
    // Only the machine's frames are handed out, and none of the preallocated memory.
    let taken = std::iter::from_fn(|| TableSource::<Kib4>::take(&mut *guest.memory.frames()));
    let taken: Vec<_> = taken.map(|page| page.pa()).collect();
    assert!(taken.len() as u64 <= free && taken.iter().all(|pa| *pa < PREALLOCATED), "{taken:?}");
}

#[test]
fn as_many_bytes_as_addresses_are_given() {
    let mut guest = guest(FORCED, Pages::Largest, 2 * HUGE_PAGE);
    for preallocated in [PAGE, HUGE_PAGE - PAGE, HUGE_PAGE + PAGE, 2 * HUGE_PAGE] {
        let backing = guest.machine.give(PREALLOCATED, preallocated, Level::L2);
        let slot = Slot { range: BASE..BASE + HUGE_PAGE, backing, writable: true };
        let refused = guest.memory.add_slot(slot).unwrap_err();
        assert_eq!(refused.error, SlotError::PreallocatedSize { start: BASE, size: HUGE_PAGE, preallocated });
        let Backing::Preallocated { frames, .. } = refused.slot.backing else { panic!("{refused:?}") };
        assert_eq!((frames.pa(), frames.size()), (PREALLOCATED, preallocated), "they come back");
    }
    let backing = guest.machine.give(PREALLOCATED, HUGE_PAGE, Level::L2);
    assert!(guest.memory.add_slot(Slot { range: BASE..BASE + HUGE_PAGE, backing, writable: true }).is_ok());
}

#[test]
fn read_only_memory_is_given_too() {
    let mut guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
    let backing = guest.machine.give(PREALLOCATED, HUGE_PAGE, Level::L1);
    guest.add(BASE, HUGE_PAGE, backing, false);
    guest.reach(BASE, Execute);
    assert_eq!(guest.access(BASE).map(|access| access.write), Some(false));
    for kind in [Translation, Permission] {
        assert_eq!(guest.fault(BASE, kind, Write), Ok(Answer::ExternalAbort));
    }
}

/// The frames end beyond what the CPU can address.
#[test]
fn frames_out_of_reach_are_an_error() {
    let mut guest = guest(FORCED, Pages::Small, PAGE);
    let start = Pa::new(1 << 49);
    // SAFETY: there is no memory, and the test accesses none: the fault fails before that.
    let frames = unsafe { twofold_stage2::Donated::new(start, PAGE) }.into_run();
    guest.add(BASE, PAGE, Backing::Preallocated { frames, largest: Level::L3 }, true);
    let error = guest.fault(BASE, Translation, Read).unwrap_err();
    assert!(matches!(error, Error::Stage2(twofold_stage2::Error::OutsidePa { .. })), "{error}");
}
