// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store that transfers pages at once: an access to an absent page finds it, with no request and no notice; a page that
//! leaves is gone when `write_out` returns. What such a store cannot do, and what would overtake a page that waits, goes by a
//! request as with any other.

use std::rc::Rc;

use twofold_memory::async_fault::Arrival::{Failed, Present};
use twofold_memory::dirty::Tracker;
use twofold_memory::swap::{Located, PinnedFor, Waiter, WrittenOut};

use crate::rig::{Absent, Plan, Rig, ipa};
use crate::store::while_a_page_is_written;

/// A rig whose pages 0 to 3 were written once, and page 1 has left.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.store.get().at_once = true;
    (0..4).for_each(|page| rig.write(page));
    rig.leave(1);
    rig
}

/// Pages that were read and written at once, and requests.
fn transfers(rig: &Rig) -> [usize; 4] {
    let inner = rig.store.get();
    [inner.read_at_once, inner.written_at_once, inner.read, inner.written]
}

#[test]
fn an_access_finds_the_page() {
    let rig = rig();
    assert_eq!(transfers(&rig), [0, 1, 0, 0]);
    rig.read(1);
    assert!(!rig.walk(1).unwrap().access().write, "its copy is kept, so its first write has to fault");
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed));
    assert_eq!(transfers(&rig), [1, 1, 0, 0], "the copy was good");
    rig.write(1);
    assert_eq!(rig.store.live(), 0, "the copy ended");
    rig.leave(1);
    assert_eq!(transfers(&rig), [2, 2, 0, 0]);
    assert!(rig.reports.arrived().is_empty());
    rig.check();
    rig.end();
}

#[test]
fn a_device_finds_the_page() {
    let rig = rig();
    rig.try_device_write(1).unwrap();
    assert_eq!(rig.store.live(), 0);
    rig.leave(1);
    let pinned = rig.memory.pin(ipa(1)..ipa(2), PinnedFor::Reading).unwrap();
    assert_eq!((rig.store.live(), rig.write_out(1)), (1, Ok(WrittenOut::Pinned)));
    rig.memory.unpin(pinned);
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed));
    let pinned = rig.memory.pin(ipa(1)..ipa(2), PinnedFor::Writing).unwrap();
    assert_eq!(rig.store.live(), 0);
    rig.memory.unpin(pinned);
    assert_eq!(transfers(&rig), [3, 2, 0, 0]);
    rig.end();
}

/// With a log that watches writes by faults, too. One in which hardware records them has no copies, so the page takes the way
/// that discards its place.
#[test]
fn a_log_sees_the_page() {
    for tracker in Tracker::ALL {
        let rig = rig();
        rig.start_log(tracker);
        let is_at_once = matches!(tracker, Tracker::WriteProtect | Tracker::Manual);
        if !is_at_once {
            assert_eq!(rig.try_write(1), Err(Absent), "{tracker:?}");
            rig.bring(1, 1);
            assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present)]);
        }
        rig.write(1);
        assert_eq!(transfers(&rig), [usize::from(is_at_once), 1, usize::from(!is_at_once), 0], "{tracker:?}");
        assert_eq!(rig.take_dirty(tracker), [1]);
        rig.stop_log();
        rig.end();
    }
}

#[test]
fn a_page_that_cannot_be_read_is_asked_for() {
    let rig = rig();
    rig.store.get().fails = true;
    let used = rig.memory.frame_use();
    assert_eq!(rig.try_read(1), Err(Absent));
    assert_eq!(rig.memory.frame_use(), used, "the frame is free again");
    rig.bring(1, 1);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Failed)]);
    assert_eq!(rig.reports.failures().len(), 1);
    assert!(matches!(rig.located(1), Located::Absent(_)));
    rig.store.get().fails = false;
    rig.read(1);
    rig.check();
    rig.end();
}

#[test]
fn a_page_that_cannot_be_written_is_asked_for() {
    let rig = rig();
    rig.store.get().fails = true;
    assert_eq!(rig.write_out(2), Ok(WrittenOut::Started));
    assert_eq!((rig.reports.failures().len(), rig.located(2)), (1, Located::Present));
    rig.store.get().fails = false;
    rig.leave(2);
    rig.end();
}

/// 16 frames, and the pages 0 to 15 have them. Pages 20 and 21 are absent.
fn full() -> Rig {
    let rig = Rig::with(Plan { count: 22, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.store.get().at_once = true;
    rig.memory.set_limit(16).unwrap();
    [20, 21].into_iter().for_each(|page| {
        rig.write(page);
        rig.leave(page);
    });
    (0..16).for_each(|page| rig.write(page));
    rig
}

#[test]
fn a_page_overtakes_none_that_waits_for_a_frame() {
    let rig = full();
    assert_eq!(rig.try_read(20), Err(Absent), "no frame is free");
    rig.bring(20, 1);
    assert_eq!(rig.reports.arrived(), []);
    // The frame that is free for a moment is page 20's.
    let other = Rc::new(rig);
    let others = Rc::clone(&other);
    while_a_page_is_written(move || assert_eq!(others.try_read(21), Err(Absent)));
    other.leave(0);
    assert_eq!(other.reports.arrived(), [(Waiter::Other(1), Present)]);
    assert_eq!(other.try_read(21), Err(Absent));
    other.read(20);
    let rig = Rc::try_unwrap(other).ok().unwrap();
    rig.check();
    rig.end();
}

/// It has an entry, so it comes by a request as soon as a frame is free.
#[test]
fn a_page_that_waits_for_a_frame_is_asked_for() {
    let rig = full();
    rig.bring(20, 1);
    rig.memory.set_limit(17).unwrap();
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present)]);
    assert_eq!(transfers(&rig), [0, 2, 1, 0]);
    rig.read(20);
    rig.end();
}

#[test]
fn the_task_is_asked_for_frames() {
    let rig = Rig::with(Plan { count: 22, huge_pages: 0, singles: 40, headroom: 8, ..Plan::default() });
    rig.store.get().at_once = true;
    rig.memory.set_limit(24).unwrap();
    (0..22).for_each(|page| rig.write(page));
    (0..6).for_each(|page| rig.leave(page));
    rig.read(0);
    rig.write(1);
    rig.read(2);
    rig.read(3);
    assert_eq!(rig.reports.get().wanted, 0, "half of the headroom is free");
    rig.read(4);
    assert_eq!(rig.reports.get().wanted, 1);
    rig.try_device_write(5).unwrap();
    assert_eq!(rig.reports.get().wanted, 2);
    rig.leave(5);
    let pinned = rig.memory.pin(ipa(5)..ipa(6), PinnedFor::Reading).unwrap();
    rig.memory.unpin(pinned);
    assert_eq!(rig.reports.get().wanted, 3);
    rig.read(5);
    assert_eq!(rig.reports.get().wanted, 3, "it was there");
    rig.end();
}

/// Also for the last free frame of a headroom of one.
#[test]
fn the_task_is_asked_for_one_frame() {
    let rig = Rig::with(Plan { count: 22, huge_pages: 0, singles: 40, headroom: 1, ..Plan::default() });
    rig.store.get().at_once = true;
    rig.memory.set_limit(17).unwrap();
    (0..17).for_each(|page| rig.write(page));
    rig.leave(0);
    assert_eq!((rig.memory.wants_frames(), rig.reports.get().wanted), (0, 0));
    rig.read(0);
    assert_eq!((rig.memory.wants_frames(), rig.reports.get().wanted), (1, 1));
    rig.end();
}

/// It stays, with its copy.
#[test]
fn a_page_that_is_needed_while_it_leaves_stays() {
    for has_log in [false, true] {
        let rig = Rc::new(rig());
        if has_log {
            rig.start_log(Tracker::Hardware);
        }
        let other = Rc::clone(&rig);
        while_a_page_is_written(move || {
            assert_eq!(other.try_read(2), Err(Absent));
            other.bring(2, 1);
        });
        let live = rig.store.live();
        assert_eq!(rig.write_out(2), Ok(WrittenOut::Needed));
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(1), Present)]);
        assert_eq!(rig.store.live(), live + usize::from(!has_log), "hardware records writes past a copy");
        let rig = Rc::try_unwrap(rig).ok().unwrap();
        rig.read(2);
        if has_log {
            rig.stop_log();
        } else {
            assert_eq!(rig.write_out(2), Ok(WrittenOut::Freed));
        }
        rig.check();
        rig.end();
    }
}
