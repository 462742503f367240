// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which pages the generations choose, by flags that hardware sets and by flags that faults set. How well they choose is
//! in the machine's tests (`machine/tests/ageing.rs`), which have a TLB.

use twofold_memory::swap::{
    FRAMES_PER_VCPU, Generations, Located, PinnedFor, Relief, Waiter, WorkingSet, WriteOutError,
};
use twofold_memory::{Backing, Slot};
use twofold_stage2::Features;

use crate::machine::platform::{Event, PLAIN};
use crate::rig::{FEATURES, Plan, Rig, ignore, ipa};

const BOTH: [Features; 2] = [FEATURES, PLAIN];

fn rig(features: Features) -> Rig {
    Rig::with(Plan { features, huge_pages: 0, singles: 60, ..Plan::default() })
}

/// There are frames for this many pages.
fn of_pages(pages: u64) -> Rig {
    Rig::with(Plan { huge_pages: 0, singles: pages + 16, ..Plan::default() })
}

/// The pages that are not in memory.
fn away(rig: &Rig, pages: core::ops::Range<u64>) -> Vec<u64> {
    pages.filter(|page| matches!(rig.located(*page), Located::Absent(_))).collect()
}

fn started(count: u64) -> Result<Relief, WriteOutError> {
    Ok(Relief { freed: 0, started: count, ..Relief::default() })
}

#[test]
fn the_oldest_generation_leaves_first() {
    for features in BOTH {
        let (rig, mut ages) = (rig(features), Generations::new());
        (0..30).for_each(|page| rig.write(page));
        ages.round(&rig.memory);
        (0..20).for_each(|page| rig.read(page));
        ages.round(&rig.memory);
        (0..10).for_each(|page| rig.read(page));
        ages.round(&rig.memory);
        assert_eq!(ages.make_room(&rig.memory, 10), started(10));
        assert_eq!(away(&rig, 0..30), (20..30).collect::<Vec<_>>());
        assert_eq!(ages.make_room(&rig.memory, 3), started(3));
        assert_eq!(away(&rig, 0..20), [10, 11, 12]);
        rig.check();
        rig.end();
    }
}

/// A page that was accessed since the last round stays, though no round has shown it.
#[test]
fn a_page_that_was_accessed_since_the_last_round_stays() {
    for features in BOTH {
        let (rig, mut ages) = (rig(features), Generations::new());
        (0..20).for_each(|page| rig.write(page));
        ages.round(&rig.memory);
        ages.round(&rig.memory);
        rig.read(5);
        assert_eq!(ages.make_room(&rig.memory, 6), started(6));
        assert_eq!(away(&rig, 0..20), [0, 1, 2, 3, 4, 6]);
        assert_eq!(ages.working_set(1), WorkingSet { accessed: 1, in_memory: 1 }, "it is young");
        assert_eq!(ages.make_room(&rig.memory, 4), started(4));
        assert_eq!(rig.located(5), Located::Present);
        rig.end();
    }
}

#[test]
fn a_scan_leaves_the_hot_pages_in_memory() {
    for features in BOTH {
        let (rig, mut ages) = (rig(features), Generations::new());
        assert_eq!(rig.memory.set_limit(32), Ok(0));
        (0..16).for_each(|page| rig.write(page));
        ages.round(&rig.memory);
        for page in 16..400 {
            while rig.try_write(page).is_err() {
                assert_eq!(ages.make_room(&rig.memory, 1).map(|relief| relief.started), Ok(1));
            }
            // One of the hot pages.
            rig.read(page % 16);
        }
        assert_eq!(away(&rig, 0..16), []);
        rig.memory.set_limit(u64::MAX).unwrap();
        rig.end();
    }
}

#[test]
fn the_working_set_is_what_was_accessed_in_the_last_rounds() {
    for features in BOTH {
        let (rig, mut ages) = (rig(features), Generations::new());
        (0..30).for_each(|page| rig.write(page));
        ages.round(&rig.memory);
        (0..20).for_each(|page| rig.read(page));
        ages.round(&rig.memory);
        let set = |accessed, in_memory| WorkingSet { accessed, in_memory };
        assert_eq!([1, 2, 3].map(|rounds| ages.working_set(rounds)), [set(20, 20), set(30, 30), set(30, 30)]);
        assert_eq!(ages.make_room(&rig.memory, 8), started(8));
        assert_eq!([1, 2].map(|rounds| ages.working_set(rounds)), [set(20, 20), set(30, 22)]);
        ages.round(&rig.memory);
        assert_eq!([0, 1, 2, 3].map(|rounds| ages.working_set(rounds).accessed), [0, 0, 20, 30]);
        rig.end();
    }
}

#[test]
fn a_page_that_comes_back_is_noticed_with_its_distance() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (0..30).for_each(|page| rig.write(page));
    ages.round(&rig.memory);
    assert_eq!(ages.make_room(&rig.memory, 8), started(8));
    assert_eq!(away(&rig, 0..30), (0..8).collect::<Vec<_>>());
    rig.bring(0, 0);
    rig.read(0);
    // Page 7 left last, and page 0 seven pages before it.
    rig.bring(7, 0);
    rig.read(7);
    // Read ahead, and not accessed.
    rig.bring(1, 0);
    assert_eq!(ages.refaults().count(), 0);
    ages.round(&rig.memory);
    assert_eq!(ages.rounds(), 3, "one of them by `make_room`");
    let refaults = ages.refaults();
    assert_eq!((refaults.count(), refaults.by_distance[1], refaults.by_distance[4]), (2, 1, 1));
    assert_eq!((refaults.avoided_by(1), refaults.avoided_by(15)), (1, 2));
    ages.round(&rig.memory);
    assert_eq!(ages.refaults().count(), 2, "once each");
    rig.end();
}

/// More than a sixteenth of the pages in memory have left, or more than eight pages if that is more.
#[test]
fn a_round_follows_when_enough_pages_have_left() {
    for (pages, before) in [(60, 9), (320, 19)] {
        let (rig, mut ages) = (of_pages(pages), Generations::new());
        (0..pages).for_each(|page| rig.write(page));
        ages.round(&rig.memory);
        ages.round(&rig.memory);
        assert_eq!(ages.make_room(&rig.memory, before), started(before));
        assert_eq!(ages.rounds(), 2, "{pages} pages");
        assert_eq!(ages.make_room(&rig.memory, 1), started(1));
        assert_eq!(ages.rounds(), 3, "{pages} pages");
        rig.end();
    }
}

/// All pages were accessed in the last round. A round may tell them apart only if some have left since, or if more than a
/// sixteenth of those in memory have just come.
#[test]
fn no_round_follows_that_would_find_nothing() {
    for (new, rounds) in [(17, 1), (18, 2)] {
        let (rig, mut ages) = (of_pages(300), Generations::new());
        (new..272).for_each(|page| rig.write(page));
        // A page that a device has written is in memory, and no vCPU has accessed it.
        (0..new).for_each(|page| rig.try_device_write(page).unwrap());
        ages.round(&rig.memory);
        assert_eq!(ages.make_room(&rig.memory, 1), started(1));
        assert_eq!(ages.rounds(), rounds, "{new} pages have just come");
        rig.end();
    }
    let (rig, mut ages) = (of_pages(300), Generations::new());
    (0..272).for_each(|page| rig.write(page));
    ages.round(&rig.memory);
    assert_eq!((ages.make_room(&rig.memory, 1), ages.rounds()), (started(1), 1));
    assert_eq!((ages.make_room(&rig.memory, 1), ages.rounds()), (started(1), 2));
    rig.end();
}

#[test]
fn a_call_that_finds_no_page_ends_after_two_rounds() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    assert_eq!((ages.make_room(&rig.memory, 1), ages.rounds()), (started(0), 2));
    rig.end();
}

/// Of the pages that come, as many are protected as make half of those in memory.
#[test]
fn new_pages_are_protected_until_half_are() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    ages.round(&rig.memory);
    (0..12).for_each(|page| rig.write(page));
    ages.round(&rig.memory);
    assert_eq!(ages.make_room(&rig.memory, 6), started(6));
    assert_eq!(away(&rig, 0..12), (6..12).collect::<Vec<_>>());
    rig.end();
}

/// Each huge page's frames say which of its own pages are in memory, and no others.
#[test]
fn pages_of_two_huge_pages_are_judged_apart() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (1..6).chain(512..518).for_each(|page| rig.write(page));
    ages.round(&rig.memory);
    assert_eq!(ages.working_set(1), WorkingSet { accessed: 11, in_memory: 11 });
    ages.round(&rig.memory);
    assert_eq!([1, 2].map(|rounds| ages.working_set(rounds).in_memory), [0, 11]);
    rig.end();
}

/// A page that comes back sooner than the oldest page was used takes its place; one that comes back later does not.
#[test]
fn a_page_that_comes_back_soon_is_protected_at_once() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (0..20).for_each(|page| rig.write(page));
    ages.round(&rig.memory);
    // Page 0 leaves, and the others are used for a while; then only some.
    assert_eq!(ages.make_room(&rig.memory, 1), started(1));
    for _ in 0..5 {
        (10..20).for_each(|page| rig.read(page));
        ages.round(&rig.memory);
    }
    rig.bring(0, 0);
    rig.read(0);
    rig.write(40);
    ages.round(&rig.memory);
    // Both have come. Page 40 is new, and page 0 was accessed as long ago as pages 1 to 9: both are on probation.
    // The store has a good copy of page 0.
    assert_eq!(ages.make_room(&rig.memory, 2), Ok(Relief { freed: 1, started: 1, ..Relief::default() }));
    assert_eq!(away(&rig, 0..41), [0, 40]);
    // Now it comes back at once, and pages 1 to 9 were not used since: one of them leaves, and it stays.
    rig.bring(0, 0);
    rig.read(0);
    ages.round(&rig.memory);
    assert_eq!(ages.make_room(&rig.memory, 9), started(9));
    assert_eq!(away(&rig, 0..41), [1, 2, 3, 4, 5, 6, 7, 8, 9, 40]);
    rig.end();
}

#[test]
fn pinned_pages_are_passed_over_and_found_again() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (0..20).for_each(|page| rig.write(page));
    let pinned = rig.memory.pin(ipa(0)..ipa(18), PinnedFor::Reading).unwrap();
    assert_eq!(ages.make_room(&rig.memory, 5), started(2));
    rig.memory.unpin(pinned);
    assert_eq!(ages.make_room(&rig.memory, 18), started(18));
    rig.end();
}

/// Pages that no vCPU has accessed leave too, at the first call.
#[test]
fn pages_that_a_device_has_written_leave() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (0..20).for_each(|page| rig.try_device_write(page).unwrap());
    assert_eq!(ages.make_room(&rig.memory, 20), started(20));
    rig.end();
}

#[test]
fn a_full_store_is_reported_and_the_pages_are_tried_again() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (0..20).for_each(|page| rig.write(page));
    rig.store.get().capacity = 0;
    for _ in 0..2 {
        assert!(matches!(ages.make_room(&rig.memory, 5), Err(WriteOutError::StoreFull { .. })));
    }
    rig.store.get().capacity = 7;
    assert_eq!(ages.make_room(&rig.memory, 20), started(7));
    assert_eq!(ages.make_room(&rig.memory, 0), started(0));
    rig.store.get().capacity = 100;
    rig.end();
}

/// The leaf of a huge page has one flag, and each of its pages has a frame.
#[test]
fn each_page_of_a_whole_huge_page_is_in_memory() {
    for features in BOTH {
        let (rig, mut ages) = (
            Rig::with(Plan { features: features.with_forced_write_back(true), ..Plan::default() }),
            Generations::new(),
        );
        rig.write(700);
        ages.round(&rig.memory);
        assert_eq!(ages.working_set(1), WorkingSet { accessed: 512, in_memory: 512 });
        rig.end();
    }
}

/// Of two slots, the second begins and ends within a huge page.
#[test]
fn a_slot_within_a_huge_page_has_its_own_pages() {
    let (mut rig, mut ages) =
        (Rig::with(Plan { count: 21, second: 11, huge_pages: 0, singles: 60, ..Plan::default() }), Generations::new());
    let in_memory = |ages: &Generations| ages.working_set(63).in_memory;
    for round in 0..3 {
        (0..31).for_each(|page| rig.read(page));
        ages.round(&rig.memory);
        assert_eq!(in_memory(&ages), 31, "round {round}");
    }
    (5..31).for_each(|page| rig.write(page));
    ages.round(&rig.memory);
    assert_eq!(ages.make_room(&rig.memory, 31), Ok(Relief { freed: 5, started: 26, ..Relief::default() }));
    ages.round(&rig.memory);
    assert_eq!(in_memory(&ages), 0);
    // A slot that goes, and comes again without memory.
    (0..8).for_each(|page| rig.bring(5 + page, 0));
    (5..13).for_each(|page| rig.read(page));
    ages.round(&rig.memory);
    assert_eq!(in_memory(&ages), 8);
    let (slot, memory) = (rig.slot, std::rc::Rc::get_mut(&mut rig.memory).unwrap());
    memory.remove_slot(slot).unwrap();
    memory.add_slot(Slot { range: ipa(0)..ipa(21), backing: Backing::Ram, writable: true }).unwrap();
    ages.round(&rig.memory);
    assert_eq!(in_memory(&ages), 0);
}

/// All pages are used all the time: those that leave are no younger than the others.
#[test]
fn pages_leave_although_all_are_used() {
    let (rig, mut ages) = (std::rc::Rc::new(rig(FEATURES)), Generations::new());
    (0..20).for_each(|page| rig.write(page));
    let (other, is_within) = (std::rc::Rc::clone(&rig), std::cell::Cell::new(false));
    rig.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(..)) && !is_within.replace(true) {
            (0..20).for_each(|page| ignore(other.try_read(page)));
            is_within.set(false);
        }
    });
    let relief = ages.make_room(&rig.memory, 5).unwrap();
    rig.machine.set_hook(|_, _| ());
    assert_eq!(relief, Relief { freed: 0, started: 5, ..Relief::default() });
    std::rc::Rc::try_unwrap(rig).ok().expect("the hook is gone").end();
}

/// A page that is needed while it leaves stays, and is young.
#[test]
fn a_page_that_is_needed_meanwhile_stays() {
    let (rig, mut ages) = (rig(FEATURES), Generations::new());
    (0..20).for_each(|page| rig.write(page));
    rig.write_zero(0);
    ages.round(&rig.memory);
    ages.round(&rig.memory);
    assert_eq!(ages.working_set(1).in_memory, 0);
    let (memory, mut is_over) = (std::rc::Rc::clone(&rig.memory), false);
    rig.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(..)) && !std::mem::replace(&mut is_over, true) {
            memory.bring(ipa(0), Waiter::Other(0)).unwrap();
        }
    });
    assert_eq!(ages.make_room(&rig.memory, 1), started(1));
    assert_eq!((away(&rig, 0..20), ages.working_set(1).in_memory), (vec![1], 1));
    rig.end();
}

/// Without a store there is nowhere to go.
#[test]
fn no_store_is_reported() {
    let mut rig = rig(FEATURES);
    rig.write(0);
    std::rc::Rc::get_mut(&mut rig.memory).unwrap().detach_store().unwrap();
    assert_eq!(Generations::new().make_room(&rig.memory, 1), Err(WriteOutError::NoStore));
    rig.read(0);
    rig.end();
}

/// Two slots, blocks and pages that were never used: all of it leaves but the least limit, and the guest goes on in a
/// working set that is larger.
#[test]
fn a_guest_makes_progress_at_the_least_limit() {
    for features in BOTH {
        let rig = Rig::with(Plan { features, count: 512, second: 512, ..Plan::default() });
        (0..1024).step_by(3).for_each(|page| rig.write(page));
        let _ = rig.memory.set_limit(FRAMES_PER_VCPU).unwrap();
        let mut ages = Generations::new();
        let excess = rig.memory.frame_use().data - FRAMES_PER_VCPU;
        let relief = ages.make_room(&rig.memory, excess).unwrap();
        assert_eq!(relief.freed + relief.started, excess);
        rig.check();
        rig.works_at_the_least_limit(6, |wanted| ignore(ages.make_room(&rig.memory, wanted).unwrap()));
        rig.memory.set_limit(u64::MAX).unwrap();
        rig.end();
    }
}
