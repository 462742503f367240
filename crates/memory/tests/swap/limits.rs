// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits: refused by name, never exceeded, and no page waits for ever.

use twofold_memory::Error;
use twofold_memory::async_fault::Arrival::Present;
use twofold_memory::swap::{Clock, FRAMES_PER_VCPU, LimitError, Located, PinnedFor, Waiter, WrittenOut};

use crate::rig::{Absent, Plan, Rig, ignore, ipa};

#[test]
fn a_limit_that_is_too_small_is_refused_with_the_figure() {
    let rig = Rig::new();
    let least = FRAMES_PER_VCPU;
    assert_eq!(rig.memory.set_limit(least - 1), Err(LimitError::TooSmall { limit: least - 1, least, pinned: 0 }));
    let pinned = rig.memory.pin(ipa(0)..ipa(3), PinnedFor::Reading).unwrap();
    let least = least + 3;
    assert_eq!(rig.memory.set_limit(least - 1), Err(LimitError::TooSmall { limit: least - 1, least, pinned: 3 }));
    assert_eq!(rig.memory.set_limit(least), Ok(512 - least));
    rig.memory.unpin(pinned);
}

/// Above a new limit nothing is taken until enough has left.
#[test]
fn a_limit_below_what_is_used_holds_from_then_on() {
    let rig = Rig::new();
    (0..512).for_each(|page| rig.write(page));
    assert_eq!(rig.memory.set_limit(500), Ok(12));
    for page in 0..12 {
        assert_eq!(rig.try_write(600), Err(Absent), "{page}");
        rig.leave(page);
    }
    assert_eq!(rig.memory.frame_use().data, 500);
    assert_eq!(rig.try_write(600), Err(Absent));
    rig.leave(12);
    rig.write(600);
    assert_eq!(rig.try_write(601), Err(Absent));
    rig.check();
    assert_eq!(rig.memory.set_limit(u64::MAX), Ok(0));
    rig.end();
}

/// A first touch takes 2 MiB only where limit and frames allow it.
#[test]
fn a_first_touch_takes_single_frames_under_pressure() {
    let rig = Rig::new();
    assert_eq!(rig.memory.set_limit(512 + 16), Ok(0));
    rig.write(0);
    assert_eq!((rig.memory.frame_use().data, rig.walk(1).unwrap().level), (512, 2));
    rig.write(512);
    assert_eq!((rig.memory.frame_use().data, rig.walk(512).unwrap().level, rig.walk(513).is_none()), (513, 3, true));
    (513..528).for_each(|page| rig.write(page));
    assert_eq!(rig.memory.frame_use().data, 528);
    assert_eq!(rig.try_write(528), Err(Absent));
    assert_eq!(rig.try_device_write(528), Err(Absent));
    rig.try_device_read(528).unwrap();
    rig.check();
    rig.leave(0);
    rig.write(528);
    rig.check();
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// Data takes all frames but those that mapping a page may take; without a store, all.
#[test]
fn a_few_frames_are_left_to_tables() {
    let mut rig = Rig::with(Plan { huge_pages: 0, singles: 30, count: 64, ..Plan::default() });
    let full = (0..64).find(|page| rig.try_write(*page).is_err()).unwrap();
    assert_eq!(rig.memory.frame_use().free, 4);
    std::rc::Rc::get_mut(&mut rig.memory).unwrap().detach_store().unwrap();
    let refused = (full..64).find_map(|page| rig.memory.write(ipa(page), &[0]).err());
    assert_eq!(refused, Some(Error::NoFrames { ipa: ipa(full + 4) }));
    let used = rig.memory.frame_use();
    assert_eq!((used.free, used.leaving, used.arriving, used.waiting), (0, 0, 0, 0));
}

/// Frames that become free at once go to all that wait.
#[test]
fn frames_that_become_free_together_are_all_used() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    (0..3).for_each(|number| rig.bring(20 + number, number));
    assert_eq!(rig.memory.set_limit(18), Ok(0));
    assert_eq!(rig.reports.arrived(), [0, 1].map(|number| (Waiter::Other(number), Present)));
    assert_eq!(rig.memory.frame_use().waiting, 1);
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// A first touch of a huge page by a single frame takes a spare state, which no fault allocates.
#[test]
fn a_page_may_wait_for_the_state_of_its_huge_page() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, count: 9 * 512, ..Plan::default() });
    (0..8).for_each(|huge_page| rig.write(512 * huge_page));
    assert_eq!(rig.try_write(512 * 8), Err(Absent));
    assert_eq!(rig.memory.wants_frames(), 0, "nothing waits");
    rig.bring(512 * 8, 1);
    assert_eq!((rig.reports.arrived(), rig.memory.wants_frames(), rig.reports.get().wanted), (vec![], 1, 1));
    assert_eq!(rig.write_out(0), Ok(WrittenOut::Started));
    assert_eq!((rig.reports.arrived(), rig.memory.wants_frames()), (vec![(Waiter::Other(1), Present)], 0));
    rig.write(512 * 8);
    rig.end();
}

/// Such a page wants one look by the task, and no frame as long as half of the headroom is free beside its own.
#[test]
fn a_page_that_waits_for_a_state_begins_a_batch_only_if_the_headroom_is_short() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 80, count: 9 * 512, headroom: 6, ..Plan::default() });
    (0..8).for_each(|huge_page| rig.write(512 * huge_page));
    (1..13).for_each(|page| rig.write(page));
    rig.bring(512 * 8, 1);
    rig.memory.set_limit(20 + 4).unwrap();
    assert_eq!(rig.memory.wants_frames(), 1, "one and half of the headroom are free");
    rig.memory.set_limit(20 + 3).unwrap();
    assert_eq!(rig.memory.wants_frames(), 4);
    rig.memory.set_limit(20 + 4).unwrap();
    assert_eq!(rig.memory.wants_frames(), 3, "the batch has begun");
    rig.memory.forget(Waiter::Other(1));
    rig.memory.set_limit(20 + 6).unwrap();
    assert_eq!(rig.memory.wants_frames(), 0, "no page waits for a state");
    rig.memory.set_limit(u64::MAX).unwrap();
    ignore(rig.write_out(0).unwrap());
    rig.end();
}

/// A page that comes back is no first touch.
#[test]
fn first_touches_by_single_frames_are_counted() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    (0..5).for_each(|page| rig.write(page));
    rig.leave(1);
    rig.bring(1, 1);
    rig.read(1);
    let counts = rig.memory.counts();
    assert_eq!((counts.frames_zeroed, counts.first_touches[3], counts.mapped[3]), (5, 5, 6));
    rig.end();
}

/// Frames with I/O in flight are in use.
#[test]
fn io_in_flight_counts() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(20).unwrap();
    (0..20).for_each(|page| rig.write(page));
    rig.store.get().waits = true;
    (0..5).for_each(|page| assert_eq!(rig.write_out(page), Ok(WrittenOut::Started)));
    assert_eq!((rig.memory.frame_use().data, rig.try_write(20)), (20, Err(Absent)));
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.memory.frame_use().data, 19);
    rig.bring(0, 0);
    assert_eq!(rig.memory.frame_use().data, 20);
    assert!(matches!(rig.located(0), Located::Arriving(_)));
    assert_eq!(rig.try_write(20), Err(Absent));
    rig.check();
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// Pages that wait for frames get them in their order, and no fault overtakes them.
#[test]
fn pages_that_wait_are_served_in_their_order() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    // One absent, one never touched, one of zeroes.
    rig.leave(0);
    rig.write(20);
    for (page, number) in [(0, 0), (30, 1), (31, 2)] {
        rig.bring(page, number);
    }
    assert_eq!((rig.reports.arrived(), rig.memory.wants_frames(), rig.memory.frame_use().waiting), (vec![], 3, 3));
    assert_eq!(rig.try_write(40), Err(Absent));
    for (number, out) in [5, 6, 7].into_iter().enumerate() {
        rig.leave(out);
        rig.check();
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(number as u64), Present)]);
        assert_eq!(rig.try_write(40), Err(Absent), "the frame was not free for a moment");
    }
    assert_eq!(rig.memory.frame_use().data, 16);
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// The same waiter again, for another page: the first is not notified.
#[test]
fn a_waiter_waits_for_one_page_at_a_time() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    rig.bring(30, 1);
    rig.bring(31, 1);
    assert_eq!(rig.memory.frame_use().waiting, 1);
    rig.leave(0);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present)]);
    rig.write(31);
    assert_eq!(rig.try_write(30), Err(Absent));
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// More than there is room for are refused at once.
#[test]
fn entries_are_bounded() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    (0..17).for_each(|number| rig.bring(100 + number, number));
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(16), twofold_memory::async_fault::Arrival::Failed)]);
    assert_eq!(rig.memory.fail_waiting(), 16);
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// No table page is left, and the only pages that can leave are in a block.
#[test]
fn a_page_of_a_block_leaves_without_a_table_page() {
    let rig = Rig::with(Plan { huge_pages: 1, singles: 5, count: 512, ..Plan::default() });
    rig.write(0);
    rig.write(7);
    // Other guests have the rest.
    let taken: Vec<_> = std::iter::from_fn(|| rig.memory.frames().take(1)).collect();
    assert_eq!((rig.memory.frame_use().free, rig.walk(7).unwrap().level), (0, 2));
    rig.leave(0);
    assert_eq!(rig.walk(7), None);
    assert_eq!(rig.memory.frame_use().free, 2, "its frame, and the empty table of level 2");
    rig.read(7);
    assert_eq!(rig.walk(7).unwrap().level, 3, "with the frame that is free now");
    rig.leave(7);
    taken.into_iter().for_each(|run| rig.memory.frames().give_run(run).unwrap());
    rig.end();
}

/// All huge pages are whole when the limit comes, and the guest goes on in a working set that is larger.
#[test]
fn a_guest_makes_progress_at_the_least_limit() {
    let rig = Rig::with(Plan { count: 1024, ..Plan::default() });
    (0..1024).for_each(|page| rig.write(page));
    let _ = rig.memory.set_limit(FRAMES_PER_VCPU).unwrap();
    let mut clock = Clock::new();
    let excess = rig.memory.frame_use().data - FRAMES_PER_VCPU;
    assert_eq!(excess, 1024 - FRAMES_PER_VCPU);
    let relief = clock.make_room(&rig.memory, excess).unwrap();
    assert_eq!(relief.freed + relief.started, excess);
    rig.check();
    rig.works_at_the_least_limit(3, |wanted| ignore(clock.make_room(&rig.memory, wanted).unwrap()));
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// The write-out task keeps the headroom free before any page waits, in batches of half of it.
#[test]
fn headroom_is_wanted() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, headroom: 4, ..Plan::default() });
    rig.memory.set_limit(20).unwrap();
    (0..18).for_each(|page| rig.write(page));
    assert_eq!(rig.memory.wants_frames(), 0, "half of it is free");
    rig.write(18);
    assert_eq!(rig.memory.wants_frames(), 3);
    let _ = rig.write_out(0).unwrap();
    assert_eq!(rig.memory.wants_frames(), 2, "until all of it is free");
    rig.store.get().waits = true;
    let _ = rig.write_out(1).unwrap();
    assert_eq!(rig.memory.wants_frames(), 1, "one is on its way out");
    let _ = rig.write_out(2).unwrap();
    assert_eq!(rig.memory.wants_frames(), 0);
    rig.write(19);
    assert_eq!(rig.memory.wants_frames(), 0, "the next batch has not begun");
    rig.end();
}
