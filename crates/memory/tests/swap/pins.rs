// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a device has pinned.

use std::cell::Cell;
use std::rc::Rc;

use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Clock, PinnedFor, Relief, WrittenOut};
use twofold_memory::{Error, Pages};
use twofold_stage2::Ipa;

use crate::rig::{Plan, Rig, ignore, ipa};

#[test]
fn a_pinned_page_stays_where_it_is() {
    let rig = Rig::with(Plan { pages: Pages::Small, count: 512, ..Plan::default() });
    (0..3).for_each(|page| rig.write(page));
    let pa = rig.walk(1).unwrap().output(ipa(1));
    let first = rig.memory.pin(ipa(1)..ipa(2), PinnedFor::Reading).unwrap();
    let second = rig.memory.pin(ipa(0)..ipa(2), PinnedFor::Writing).unwrap();
    for page in [0, 1] {
        assert_eq!(rig.write_out(page), Ok(WrittenOut::Pinned));
    }
    let relief = Clock::new().make_room(&rig.memory, 512).unwrap();
    assert_eq!(relief.freed + relief.started, 510);
    assert_eq!(rig.walk(1).unwrap().output(ipa(1)), pa);
    rig.memory.unpin(second);
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Pinned), "pinned twice, unpinned once");
    rig.leave(0);
    rig.memory.unpin(first);
    rig.leave(1);
    rig.end();
}

/// Wherever the hand is, and although no page can leave.
#[test]
fn a_round_of_the_hand_tries_each_page_once() {
    for (pages, hand) in [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2), (3, 3)] {
        let rig = Rig::with(Plan { huge_pages: 0, ..Plan::default() });
        (1..=pages).for_each(|page| rig.write(page));
        let pinned = rig.memory.pin(ipa(1)..ipa(1 + pages), PinnedFor::Reading).unwrap();
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Pinned));
        let mut clock = Clock::new();
        (0..hand).for_each(|_| ignore(clock.next(&rig.memory)));
        let tried = Rc::new(Cell::new(0));
        // It looks for an interrupt after each page.
        let counter = Rc::clone(&tried);
        rig.machine.set_interrupt_hook(move || {
            counter.set(counter.get() + 1);
            counter.get() > pages
        });
        let relief = clock.make_room(&rig.memory, 1);
        rig.memory.unpin(pinned);
        assert_eq!((relief, tried.get()), (Ok(Relief::default()), pages), "{pages} pages, the hand is behind {hand}");
        rig.end();
    }
}

/// Pinning makes a page ready, and does nothing by halves.
#[test]
fn what_cannot_be_pinned_is_refused_whole() {
    let rig = Rig::new();
    rig.write(3);
    rig.leave(3);
    let absent = rig.memory.pin(ipa(0)..ipa(5), PinnedFor::Reading).unwrap_err();
    assert_eq!(absent, Error::Absent { page: ipa(3), done: 0 });
    for page in [0, 1, 2, 4] {
        assert!(matches!(rig.write_out(page), Ok(WrittenOut::Freed)), "page {page} is pinned");
    }
    rig.bring(3, 3);
    let pinned = rig.memory.pin(ipa(0)..ipa(5), PinnedFor::Reading).unwrap();
    assert_eq!(pinned.range(), ipa(0)..ipa(5));
    rig.memory.unpin(pinned);
    let outside = Ipa::new(0x1000);
    assert_eq!(rig.memory.pin(outside..outside + 1, PinnedFor::Reading).unwrap_err(), Error::NoRam { ipa: outside });
    rig.end();
}

/// A debug build alone looks for them.
#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "are pinned for ever: unpin them")]
fn pages_that_are_never_unpinned_are_noticed() {
    let rig = Rig::new();
    drop(rig.memory.pin(ipa(0)..ipa(1), PinnedFor::Reading));
}

/// The part of a page pins the page.
#[test]
fn a_slot_with_pinned_pages_stays() {
    for (end, count) in [(ipa(2) + 101, 1), (ipa(3) + 1, 2)] {
        let mut rig = Rig::new();
        let pinned = rig.memory.pin(ipa(2) + 100..end, PinnedFor::Reading).unwrap();
        assert_eq!(pinned.range(), ipa(2)..ipa(2 + count as u64));
        let slot = rig.slot;
        let memory = std::rc::Rc::get_mut(&mut rig.memory).unwrap();
        let removed = memory.remove_slot(slot);
        memory.unpin(pinned);
        assert_eq!(removed, Err(Error::InUse { start: ipa(0), in_flight: 0, pinned: count }));
        assert_eq!(memory.remove_slot(slot), Ok(None));
    }
}

/// What the device has written is in the log once the page is unpinned, even after a clear meanwhile.
#[test]
fn what_a_device_may_have_written_is_in_the_log() {
    for (reason, expected) in [(PinnedFor::Reading, vec![]), (PinnedFor::Writing, vec![1, 2])] {
        let rig = Rig::new();
        let log = rig.memory.dirty_log(rig.slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) }).unwrap();
        let pinned = rig.memory.pin(ipa(1)..ipa(3), reason).unwrap();
        let mut dirty = DirtyPages::new();
        log.get(&mut dirty).unwrap();
        log.clear_these(&dirty).unwrap();
        rig.memory.unpin(pinned);
        log.get(&mut dirty).unwrap();
        assert_eq!(dirty.pages().collect::<Vec<_>>(), expected);
    }
}
