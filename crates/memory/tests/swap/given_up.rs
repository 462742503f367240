// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that the guest gives up: their frames and places are free, and they read as zero.

use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::Tracker;
use twofold_memory::swap::{Located, PinnedFor, Waiter};
use twofold_memory::{Error, GivenUp};
use twofold_stage2::Level;

use crate::machine::PAGE;
use crate::rig::{Plan, Rig, ipa};

fn give_up(rig: &Rig, pages: std::ops::Range<u64>) -> Result<GivenUp, Error> {
    rig.memory.give_up(ipa(pages.start)..ipa(pages.end))
}

fn given(end: u64, frames: u64) -> Result<GivenUp, Error> {
    Ok(GivenUp { end: ipa(end), frames })
}

#[test]
fn a_whole_huge_page_is_as_before_its_first_touch() {
    let rig = Rig::new();
    let before = rig.memory.frame_use();
    assert_eq!(give_up(&rig, 0..1024), given(1024, 0), "it was never touched");
    rig.write(3);
    rig.write(700);
    rig.start_log(Tracker::Manual);
    assert_eq!(give_up(&rig, 0..1024), given(1024, 1024));
    let after = rig.memory.frame_use();
    assert_eq!((after.data, after.free + after.tables), (before.data, before.free + before.tables));
    assert_eq!((rig.walk(3), rig.walk(700)), (None, None));
    let dirty = rig.take_dirty(Tracker::Manual);
    assert!([3, 700].iter().all(|page| dirty.contains(page)), "what has changed is in the log");
    rig.stop_log();
    [3, 700].iter().for_each(|page| rig.expect(*page, 0));
    rig.read(3);
    assert_eq!(rig.walk(3).map(|leaf| leaf.level), Some(Level::L2.raw()), "it is a block again");
    rig.end();
}

#[test]
fn an_interrupt_ends_the_call_after_a_huge_page() {
    let rig = Rig::new();
    rig.write(3);
    rig.write(700);
    rig.machine.set_interrupt_hook(|| true);
    assert_eq!(give_up(&rig, 0..1024), given(512, 512));
    rig.read(700);
    assert_eq!(give_up(&rig, 512..1024), given(1024, 512));
    [3, 700].iter().for_each(|page| rig.expect(*page, 0));
    rig.machine.set_interrupt_hook(|| false);
    rig.end();
}

#[test]
fn a_page_in_each_state_costs_nothing_afterwards() {
    let rig = Rig::new();
    for page in 0..4 {
        rig.write(page);
        rig.leave(page);
    }
    // 0 is absent, 1 is present with a copy, 2 and 3 without.
    rig.bring(1, 1);
    rig.bring(2, 2);
    rig.bring(3, 3);
    rig.write(2);
    rig.write(3);
    let (live, used, reads) = (rig.store.live(), rig.memory.frame_use(), rig.store.reads_so_far());
    assert_eq!(live, 2);
    // 4 was zeroed and never touched, 3 stays.
    let pinned = rig.memory.pin(ipa(3)..ipa(4), PinnedFor::Reading).unwrap();
    assert_eq!(give_up(&rig, 0..5), given(5, 3));
    assert_eq!([0, 1, 2, 4].map(|page| rig.located(page)), [Located::Zero; 4]);
    assert_eq!((rig.store.live(), rig.store.reads_so_far()), (0, reads));
    assert_eq!(rig.memory.frame_use().data, used.data - 3);
    (0..3).for_each(|page| rig.expect(page, 0));
    (0..5).for_each(|page| rig.read(page));
    rig.memory.unpin(pinned);
    assert_eq!(give_up(&rig, 0..5), given(5, 5));
    rig.expect(3, 0);
    rig.end();
}

#[test]
fn a_huge_page_whose_pages_are_all_given_up_becomes_whole_again() {
    let rig = Rig::new();
    (0..512).for_each(|page| rig.write(page));
    (0..100).for_each(|page| rig.leave(page));
    // Not all of it.
    assert_eq!(give_up(&rig, 0..511), given(511, 411));
    assert_eq!(rig.located(511), Located::Present);
    assert_eq!(give_up(&rig, 0..512), given(512, 1));
    assert_eq!((rig.store.live(), rig.memory.frame_use().data), (0, 0));
    (0..512).for_each(|page| rig.expect(page, 0));
    rig.write(0);
    assert_eq!(rig.walk(0).map(|leaf| leaf.level), Some(Level::L2.raw()));
    rig.end();
}

/// An interrupt after each page parts the work, too.
#[test]
fn a_huge_page_that_is_given_up_in_parts_becomes_whole_again() {
    for is_interrupted in [false, true] {
        let rig = Rig::new();
        (0..512).for_each(|page| rig.write(page));
        rig.leave(7);
        rig.machine.set_interrupt_hook(move || is_interrupted);
        for part in [100..512, 0..100] {
            let mut next = part.start;
            while next < part.end {
                let done = give_up(&rig, next..part.end).unwrap();
                assert!(!is_interrupted || done.end == ipa(next + 1));
                next = (done.end - ipa(0)) / PAGE;
            }
        }
        rig.machine.set_interrupt_hook(|| false);
        (0..512).for_each(|page| rig.expect(page, 0));
        rig.write(0);
        assert_eq!(rig.walk(0).map(|leaf| leaf.level), Some(Level::L2.raw()), "interrupted: {is_interrupted}");
        rig.end();
    }
}

/// A huge page beside a pinned page is given up in one piece, which no interrupt parts.
#[test]
fn a_pinned_neighbour_does_not_keep_a_huge_page() {
    let rig = Rig::new();
    (0..1024).for_each(|page| rig.write(page));
    let pinned = rig.memory.pin(ipa(512)..ipa(513), PinnedFor::Reading).unwrap();
    rig.machine.set_interrupt_hook(|| true);
    let done = give_up(&rig, 0..512);
    rig.memory.unpin(pinned);
    assert_eq!(done, given(512, 512));
    rig.machine.set_interrupt_hook(|| false);
    (0..512).for_each(|page| rig.expect(page, 0));
    rig.end();
}

/// A pinned page of a whole huge page stays, and the others leave their states one by one.
#[test]
fn a_pinned_page_stays() {
    for pinned in [0, 7, 511] {
        let rig = Rig::new();
        (0..512).for_each(|page| rig.write(page));
        let pin = rig.memory.pin(ipa(pinned)..ipa(pinned + 1), PinnedFor::Reading).unwrap();
        let done = give_up(&rig, 0..512);
        rig.memory.unpin(pin);
        assert_eq!(done, given(512, 511), "page {pinned}");
        (0..512).filter(|page| *page != pinned).for_each(|page| rig.expect(page, 0));
        assert_eq!((rig.located(pinned), rig.located(8)), (Located::Present, Located::Zero));
        rig.read(pinned);
        rig.end();
    }
}

/// A page on its way is waited for, and then given up. What waits for the page goes on.
#[test]
fn a_page_in_flight_comes_first() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.write(1);
    rig.store.get().waits = true;
    let _ = rig.write_out(1).unwrap();
    let absent = Err(Error::Absent { page: ipa(1), done: 0 });
    assert_eq!(give_up(&rig, 0..3), absent);
    rig.bring(1, 5);
    assert_eq!(give_up(&rig, 0..3), absent);
    rig.finish_all();
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(5), Arrival::Present)]);
    assert_eq!(give_up(&rig, 0..3), given(3, 1));
    rig.expect(1, 0);
    // The same on the way in.
    rig.write(2);
    let _ = rig.write_out(2).unwrap();
    rig.finish_all();
    rig.bring(2, 6);
    assert_eq!(give_up(&rig, 2..3), Err(Error::Absent { page: ipa(2), done: 0 }));
    rig.finish_all();
    assert_eq!(give_up(&rig, 2..3), given(3, 1));
    rig.expect(2, 0);
    assert_eq!(rig.store.live(), 0);
    rig.end();
}

/// An entry that waits for a frame for an absent page goes on when the page is given up.
#[test]
fn what_waits_for_a_page_that_is_given_up_goes_on() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.write(20);
    rig.leave(20);
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    rig.bring(20, 4);
    assert_eq!(rig.reports.arrived(), []);
    assert_eq!(give_up(&rig, 20..21), given(21, 0));
    rig.expect(20, 0);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(4), Arrival::Present)]);
    // A frame that becomes free is for a page that waits.
    rig.bring(20, 7);
    assert_eq!(give_up(&rig, 3..4), given(4, 1));
    rig.expect(3, 0);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(7), Arrival::Present)]);
    rig.end();
}

#[test]
fn what_is_no_ram_is_refused() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.write(31);
    assert_eq!(give_up(&rig, 31..33), Err(Error::NoRam { ipa: ipa(32) }));
    rig.expect(31, 0);
    // Parts of pages are left alone.
    rig.write(5);
    assert_eq!(rig.memory.give_up(ipa(5) + 1..ipa(6) + 4095), Ok(GivenUp { end: ipa(6), frames: 0 }));
    rig.read(5);
    rig.end();
}
