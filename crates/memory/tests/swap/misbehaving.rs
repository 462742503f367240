// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores that are late, early, out of order, full, failing or silent. A store that completes twice does not compile.

use twofold_memory::async_fault::Arrival::{Failed, Present};
use twofold_memory::swap::{Clock, Failure, Located, Operation, Relief, StoreError, Waiter, WriteOutError, WrittenOut};

use crate::rig::{Absent, Plan, Rig, ipa};
use crate::store::BROKEN;

#[test]
fn requests_complete_in_any_order() {
    let rig = Rig::new();
    (0..6).for_each(|page| rig.write(page));
    rig.store.get().waits = true;
    for page in 0..6 {
        assert_eq!(rig.write_out(page), Ok(WrittenOut::Started));
        assert_eq!(rig.located(page), Located::Leaving);
    }
    rig.check();
    for index in [5, 0, 3, 1, 1, 0] {
        rig.store.finish_write(&*rig.memory, index, Ok(()));
        rig.check();
    }
    (0..6).for_each(|page| rig.bring(page, page));
    for index in [2, 2, 2, 2, 0, 0] {
        rig.store.finish_read(&*rig.memory, index, Ok(()));
        rig.check();
    }
    let arrived: Vec<_> = [2, 3, 4, 5, 0, 1].map(|page| (Waiter::Other(page), Present)).into();
    assert_eq!((rig.reports.arrived(), rig.memory.frame_use().waiting), (arrived, 0));
    (0..6).for_each(|page| rig.read(page));
    rig.end();
}

#[test]
fn a_write_that_fails_loses_nothing() {
    let rig = Rig::new();
    rig.write(1);
    rig.store.get().fails = true;
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
    assert_eq!(rig.located(1), Located::Present);
    let [Failure { page, operation: Operation::Write, cause: BROKEN, place }] = rig.reports.failures()[..] else {
        panic!("not reported")
    };
    assert_eq!(page, ipa(1));
    assert!(!rig.store.get().live.contains(&place));
    assert_eq!(rig.reports.get().wanted, 0, "frames are free");
    rig.check();
    rig.read(1);
    rig.store.get().fails = false;
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Started), "no copy was kept");
    rig.end();
}

/// A CPU needs the page meanwhile: it gets it, whatever the result.
#[test]
fn a_page_that_is_needed_comes_back_from_a_write_that_fails() {
    for result in [Ok(()), Err(BROKEN)] {
        let rig = Rig::new();
        rig.write(1);
        rig.store.get().waits = true;
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
        assert_eq!(
            (rig.try_read(1), rig.try_device_read(1), rig.try_device_write(1)),
            (Err(Absent), Err(Absent), Err(Absent))
        );
        rig.bring(1, 7);
        rig.bring(1, 8);
        assert_eq!(rig.reports.arrived(), []);
        rig.store.finish_write(&*rig.memory, 0, result);
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(7), Present), (Waiter::Other(8), Present)]);
        rig.read(1);
        rig.write(1);
        rig.check();
        rig.end();
    }
}

#[test]
fn a_read_that_fails_may_be_repeated() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    rig.store.get().fails = true;
    let place = rig.located(1);
    for (attempt, cause) in [BROKEN, BROKEN].into_iter().enumerate() {
        rig.bring(1, 5);
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(5), Failed)], "{attempt}");
        let [Failure { page, operation: Operation::Read, cause: found, .. }] = rig.reports.failures()[..] else {
            panic!()
        };
        assert_eq!((page, found, rig.located(1)), (ipa(1), cause, place));
        rig.check();
    }
    rig.store.get().fails = false;
    rig.bring(1, 5);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(5), Present)]);
    rig.read(1);
    rig.end();
}

/// The entry that asks again after a failure is of the next read.
#[test]
fn a_failure_reaches_no_entry_that_asks_later() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    rig.store.get().waits = true;
    rig.bring(1, 5);
    rig.store.finish_read(&*rig.memory, 0, Err(StoreError::Damaged));
    rig.bring(1, 6);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(5), Failed)]);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(6), Present)]);
    rig.end();
}

#[test]
fn a_full_store_refuses_by_name() {
    let rig = Rig::new();
    (0..3).for_each(|page| rig.write(page));
    rig.store.get().capacity = 1;
    rig.leave(0);
    for page in [1, 2] {
        assert_eq!(rig.write_out(page), Err(WriteOutError::StoreFull { page: ipa(page) }));
        rig.read(page);
        rig.check();
    }
    // Zeroes need no place.
    rig.read(3);
    assert_eq!(rig.write_out(3), Ok(WrittenOut::Freed));
    rig.bring(0, 0);
    rig.write(0);
    rig.leave(1);
    rig.end();
}

/// A guest that needs a frame stops, with the page as the reason, and goes on when the store has room.
#[test]
fn a_guest_that_needs_a_frame_stops_and_goes_on() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 40, ..Plan::default() });
    assert_eq!(rig.memory.set_limit(16), Ok(0));
    (0..16).for_each(|page| rig.write(page));
    rig.store.get().capacity = 0;
    assert_eq!(rig.try_write(16), Err(Absent));
    rig.bring(16, 3);
    assert_eq!((rig.reports.arrived(), rig.memory.wants_frames()), (vec![], 1));
    assert!(rig.reports.get().wanted > 0, "the write-out task is woken");
    let mut clock = Clock::new();
    assert!(matches!(clock.make_room(&rig.memory, 1), Err(WriteOutError::StoreFull { .. })));
    assert_eq!(rig.memory.fail_waiting(), 1);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Failed)]);
    assert_eq!(rig.memory.wants_frames(), 0);
    (0..16).for_each(|page| rig.read(page));
    rig.store.get().capacity = 100;
    rig.bring(16, 3);
    assert_eq!(clock.make_room(&rig.memory, 1).unwrap().started, 1);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Present)]);
    rig.write(16);
    rig.check();
    rig.end();
}

/// What waits for a frame fails, and what is on its way comes.
#[test]
fn a_page_on_its_way_comes_although_others_fail() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    rig.write(20);
    rig.leave(20);
    (0..15).for_each(|page| rig.write(page));
    rig.store.get().waits = true;
    rig.bring(20, 1);
    rig.bring(21, 2);
    assert_eq!((rig.memory.fail_waiting(), rig.reports.arrived()), (1, vec![(Waiter::Other(2), Failed)]));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present)]);
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}

/// As many pages leave as the store has room for, and that is no error.
#[test]
fn a_store_is_filled_before_it_is_full() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 40, ..Plan::default() });
    (0..20).for_each(|page| rig.write(page));
    rig.store.get().capacity = 7;
    assert_eq!(Clock::new().make_room(&rig.memory, 20), Ok(Relief { freed: 0, started: 7, ..Relief::default() }));
    rig.store.get().capacity = 100;
    rig.end();
}

/// A silent store: the pages that it has stay where they are, the others go on, and it may still answer.
#[test]
fn a_silent_store_stops_only_what_needs_it() {
    let rig = Rig::new();
    (0..4).for_each(|page| rig.write(page));
    rig.leave(0);
    rig.store.get().waits = true;
    let _ = rig.write_out(1).unwrap();
    rig.bring(0, 0);
    rig.bring(1, 1);
    for _ in 0..3 {
        assert_eq!((rig.try_read(0), rig.try_read(1)), (Err(Absent), Err(Absent)));
        rig.write(2);
        rig.read(3);
    }
    // It gives up waiting, and asks again later: still one request each.
    rig.memory.forget(Waiter::Other(0));
    rig.bring(0, 2);
    assert_eq!((rig.store.writing(), rig.store.reading()), (1, 1));
    let used = rig.memory.frame_use();
    assert_eq!((used.leaving, used.arriving, used.waiting), (1, 1, 2));
    rig.check();
    rig.finish_all();
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present), (Waiter::Other(2), Present)]);
    rig.end();
}

/// A page comes that nothing waits for any more, while something waits for another one.
#[test]
fn an_arrival_is_reported_only_to_what_waits_for_that_page() {
    let rig = Rig::new();
    for page in [0, 1] {
        rig.write(page);
        rig.leave(page);
    }
    rig.store.get().waits = true;
    rig.bring(0, 0);
    rig.bring(1, 1);
    rig.memory.forget(Waiter::Other(0));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), []);
    rig.finish_all();
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present)]);
    rig.end();
}
