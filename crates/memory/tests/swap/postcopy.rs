// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a post-copy migration: pages with old content become absent, and content comes unasked.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::swap::{Completions, Located, NotBegun, PinnedFor, Place, Unasked, Waiter};
use twofold_memory::{Error, Pages};
use twofold_stage2::fault::AccessKind;

use crate::machine::platform::Event;
use crate::rig::{Absent, Plan, Rig, ipa, quiet};

/// A rig whose store sends each page once, and the place of page 1's content.
fn target() -> (Rig, Place) {
    let rig = Rig::new();
    rig.store.get().once = true;
    let place = rig.store.hold(Box::new(rig.bytes(1)));
    (rig, place)
}

/// Content comes unasked for a page whose place this was.
fn comes(rig: &Rig, page: u64, place: Place, content: Option<&[u8; 4096]>) -> Result<(), NotBegun> {
    let Some(bytes) = content else { return rig.memory.make_zero(ipa(page), place) };
    let request = rig.memory.begin_read(ipa(page), place, Unasked::Here)?;
    rig.memory.copy_in(&request, bytes);
    rig.memory.complete_read(request, Ok(()));
    Ok(())
}

/// The page was sent in a round, and written since: whole huge pages, mapped ones, and single pages.
#[test]
fn old_content_goes() {
    for pages in [Pages::Largest, Pages::Small] {
        let rig = Rig::with(Plan { pages, ..Plan::default() });
        rig.store.get().once = true;
        for is_mapped in [false, true] {
            for page in [1, 2] {
                if is_mapped {
                    rig.write(page);
                } else {
                    rig.try_device_write(page).unwrap();
                }
                let (used, mut new) = (rig.memory.frame_use(), rig.bytes(page));
                new[8..16].fill(7);
                let place = rig.store.hold(Box::new(new));
                assert_eq!(rig.memory.make_absent(ipa(page), place), Ok(()));
                assert_eq!(rig.located(page), Located::Absent(place));
                assert_eq!(rig.memory.frame_use().data, used.data - 1, "its frame is free");
                rig.check();
                assert_eq!(rig.access(page, AccessKind::Read), Err(Absent));
                rig.bring(page, 3);
                let pa = rig.access(page, AccessKind::Read).unwrap();
                assert_eq!(rig.machine.bank(pa).word(pa + 8), 0x0707_0707_0707_0707);
                rig.machine.bank(pa).set_word(pa + 8, 0);
            }
        }
        rig.read(3);
        rig.end();
    }
}

#[test]
fn a_page_that_is_pinned_or_on_its_way_is_refused() {
    let rig = Rig::new();
    rig.write(1);
    let pinned = rig.memory.pin(ipa(1)..ipa(2), PinnedFor::Reading).unwrap();
    let place = Place::new(99);
    assert_eq!(rig.memory.make_absent(ipa(1), place), Err(Error::Busy { ipa: ipa(1) }));
    rig.memory.unpin(pinned);
    rig.store.get().waits = true;
    let _ = rig.write_out(1).unwrap();
    assert_eq!(rig.memory.make_absent(ipa(1), place), Err(Error::Busy { ipa: ipa(1) }));
    rig.finish_all();
    assert_eq!(rig.memory.make_absent(ipa(1), place), Err(Error::Busy { ipa: ipa(1) }));
    assert_eq!(rig.memory.make_absent(ipa(4000), place), Err(Error::NoRam { ipa: ipa(4000) }));
    rig.end();
}

/// A page that was read and has a copy in a store becomes absent elsewhere: that copy's place is not lost.
#[test]
fn a_copy_ends_with_the_old_content() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    rig.bring(1, 3);
    assert_eq!(rig.store.live(), 1);
    let place = rig.store.hold(Box::new(rig.bytes(1)));
    assert_eq!(rig.memory.make_absent(ipa(1), place), Ok(()));
    assert_eq!(rig.store.live(), 1);
    rig.bring(1, 3);
    rig.read(1);
    rig.end();
}

#[test]
fn content_that_comes_unasked_is_stored_once() {
    let (rig, place) = target();
    rig.memory.make_absent(ipa(1), place).unwrap();
    assert_eq!(comes(&rig, 1, place, Some(&rig.bytes(1))), Ok(()));
    assert_eq!((rig.store.live(), rig.store.reads_so_far()), (0, 0));
    rig.read(1);
    rig.write(1);
    assert_eq!(comes(&rig, 1, place, Some(&[0xee; 4096])), Err(NotBegun::Elsewhere));
    assert_eq!(comes(&rig, 1, place, None), Err(NotBegun::Elsewhere));
    rig.read(1);
    assert_eq!(comes(&rig, 700, place, Some(&[0xee; 4096])), Err(NotBegun::Elsewhere), "never touched: zero");
    rig.end();
}

#[test]
fn zeroes_that_come_take_no_frame() {
    let (rig, place) = target();
    rig.memory.make_absent(ipa(1), place).unwrap();
    let used = rig.memory.frame_use();
    assert_eq!(comes(&rig, 1, Place::new(place.raw() + 1), None), Err(NotBegun::Elsewhere), "another place");
    assert_eq!(comes(&rig, 1, place, None), Ok(()));
    assert_eq!((rig.located(1), rig.memory.frame_use().data), (Located::Zero, used.data));
    rig.read(1);
    rig.end();
}

/// The request takes the content, and the waiting vCPU learns of it once.
#[test]
fn content_of_a_page_that_was_asked_for_is_the_requests() {
    let (rig, place) = target();
    rig.memory.make_absent(ipa(1), place).unwrap();
    rig.store.get().waits = true;
    rig.bring(1, 3);
    assert_eq!(comes(&rig, 1, place, Some(&rig.bytes(1))), Err(NotBegun::Asked));
    assert_eq!(comes(&rig, 1, place, None), Err(NotBegun::Asked));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Arrival::Present)]);
    assert_eq!(rig.store.live(), 0, "its place is not needed any more");
    rig.end();
}

/// Something asks for a page with old content while it becomes absent: it has to ask again, for the new content.
#[test]
fn what_waits_for_old_content_asks_again() {
    let (rig, place) = target();
    rig.write(1);
    let memory = Rc::clone(&rig.memory);
    let mut is_over = false;
    rig.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(..)) && !std::mem::replace(&mut is_over, true) {
            memory.bring(ipa(1), Waiter::Other(3)).unwrap();
        }
    });
    rig.memory.make_absent(ipa(1), place).unwrap();
    rig.machine.set_hook(|_, _| ());
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Arrival::Failed)]);
    assert_eq!(rig.located(1), Located::Absent(place));
}

/// Without a free frame nothing is stored.
#[test]
fn content_needs_a_frame() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    rig.store.get().once = true;
    let places = [20, 21].map(|page| {
        let place = rig.store.hold(Box::new(rig.bytes(page)));
        rig.memory.make_absent(ipa(page), place).unwrap();
        place
    });
    (0..16).for_each(|page| rig.write(page));
    assert_eq!(comes(&rig, 20, places[0], Some(&rig.bytes(20))), Err(NotBegun::NoFrame));
    rig.bring(20, 3);
    // Zeroes need none, and the entry ends.
    assert_eq!(comes(&rig, 20, places[0], None), Ok(()));
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Arrival::Present)]);
    assert_eq!(rig.memory.wants_frames(), 0);
    rig.write_zero(5);
    rig.leave(5);
    assert_eq!(comes(&rig, 21, places[1], Some(&rig.bytes(21))), Ok(()));
    rig.check();
    rig.end();
}

/// With a log, as in a target that is the source of the next migration: a page that arrives is not written.
#[test]
fn content_that_comes_is_no_write() {
    let (rig, place) = target();
    rig.memory.make_absent(ipa(1), place).unwrap();
    let log = rig.memory.dirty_log(rig.slot).unwrap();
    log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Combined) }).unwrap();
    assert_eq!(comes(&rig, 1, place, Some(&rig.bytes(1))), Ok(()));
    let mut dirty = twofold_memory::dirty::DirtyPages::new();
    log.get(&mut dirty).unwrap();
    assert_eq!(dirty.pages().count(), 0);
    rig.write(1);
    log.get(&mut dirty).unwrap();
    assert!(dirty.pages().eq([1]));
    log.stop().unwrap();
    rig.end();
}

/// Another page is brought at the same time: it looks as if it waited for a frame, until it has one.
#[test]
fn content_is_stored_while_another_page_takes_its_frame() {
    quiet();
    let mut stored = 0;
    for number in 1.. {
        let rig = Rc::new(target().0);
        let [_, place] = [3, 4].map(|page| {
            let place = rig.store.hold(Box::new(rig.bytes(page)));
            rig.memory.make_absent(ipa(page), place).unwrap();
            place
        });
        let (supplied, begun) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(false)));
        let (other, result, has_begun) = (Rc::clone(&rig), Rc::clone(&supplied), Rc::clone(&begun));
        rig.machine.before_atomic(number, move || {
            has_begun.set(true);
            // Where it would wait for a lock, there is no such case.
            let done = catch_unwind(AssertUnwindSafe(|| comes(&other, 4, place, Some(&other.bytes(4)))));
            result.set(done.ok());
        });
        let done = catch_unwind(AssertUnwindSafe(|| rig.bring(3, 1)));
        rig.machine.set_atomic_hook(|| ());
        match supplied.get() {
            Some(found) => {
                done.unwrap();
                assert_eq!(found, Ok(()), "before atomic {number}");
                stored += 1;
            }
            None => std::mem::forget(Rc::clone(&rig)),
        }
        if !begun.get() {
            break;
        }
    }
    assert!(stored > 3, "{stored}");
}
