// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a store reads ahead: only where they are, only if there is room, and never out of date.

use twofold_memory::async_fault::Arrival::{Failed, Present};
use twofold_memory::swap::{Located, NotBegun, Peeked, Place, ReadRequest, Unasked, Waiter};

use crate::rig::{Absent, Plan, Rig, ipa};
use crate::store::BROKEN;

fn rig() -> Rig {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, headroom: 4, ..Plan::default() });
    (0..8).for_each(|page| rig.write(page));
    (0..4).for_each(|page| rig.leave(page));
    rig.store.get().waits = true;
    rig
}

fn place(rig: &Rig, page: u64) -> Place {
    match rig.located(page) {
        Located::Absent(place) => place,
        located => panic!("page {page} is {located:?}"),
    }
}

fn begin(rig: &Rig, page: u64, place: Place) -> Result<ReadRequest, NotBegun> {
    rig.memory.begin_read(ipa(page), place, Unasked::Ahead)
}

fn read_ahead(rig: &Rig, page: u64) -> Option<ReadRequest> {
    begin(rig, page, place(rig, page)).ok()
}

/// The store has the request now, as if it had been asked.
fn keep(rig: &Rig, request: ReadRequest) {
    rig.store.get().reads.push(request);
}

#[test]
fn a_page_that_is_read_ahead_is_in_memory_and_has_a_copy() {
    let rig = rig();
    let request = read_ahead(&rig, 1).unwrap();
    assert_eq!((request.page(), rig.memory.frame_use().arriving), (ipa(1), 1));
    keep(&rig, request);
    assert!(matches!(rig.located(1), Located::Arriving(_)));
    rig.check();
    // A CPU that needs it waits for this read.
    assert_eq!(rig.try_read(1), Err(Absent));
    rig.bring(1, 5);
    assert_eq!(rig.store.reading(), 1);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(5), Present)]);
    rig.read(1);
    let written = rig.store.written();
    rig.leave(1);
    assert_eq!(rig.store.written(), written, "its copy was good");
    rig.end();
}

/// A peek of another page, or one that has not asked for the page yet, keeps no page in the store.
#[test]
fn a_page_that_is_read_ahead_stays_although_a_peek_waits() {
    for peeked in [1, 2] {
        let rig = rig();
        let (mut peek, mut bytes) = (rig.memory.peek(ipa(peeked)).unwrap(), [0; 4096]);
        if peeked == 2 {
            assert_eq!(peek.look(&mut bytes), Peeked::Later);
        }
        let number = rig.store.reading();
        keep(&rig, read_ahead(&rig, 1).unwrap());
        rig.store.finish_read(&*rig.memory, number, Ok(()));
        assert_eq!(rig.located(1), Located::Present, "{peeked}");
        drop(peek);
        rig.end();
    }
}

#[test]
fn a_read_ahead_that_fails_changes_nothing() {
    let rig = rig();
    let before = place(&rig, 1);
    keep(&rig, read_ahead(&rig, 1).unwrap());
    rig.bring(1, 5);
    rig.store.finish_read(&*rig.memory, 0, Err(BROKEN));
    assert_eq!((rig.reports.arrived(), rig.reports.failures().len()), (vec![(Waiter::Other(5), Failed)], 1));
    assert_eq!(place(&rig, 1), before);
    rig.check();
    rig.end();
}

#[test]
fn a_page_that_is_not_there_any_more_is_not_read() {
    let rig = rig();
    let old = place(&rig, 1);
    assert_eq!(begin(&rig, 1, place(&rig, 2)).unwrap_err(), NotBegun::Elsewhere, "another page's place");
    assert_eq!(begin(&rig, 5, old).unwrap_err(), NotBegun::Elsewhere, "it is in memory");
    assert_eq!(begin(&rig, 700, old).unwrap_err(), NotBegun::Elsewhere, "it was never touched");
    assert_eq!(begin(&rig, 5000, old).unwrap_err(), NotBegun::Elsewhere, "there is no RAM");
    keep(&rig, read_ahead(&rig, 1).unwrap());
    assert_eq!(begin(&rig, 1, old).unwrap_err(), NotBegun::Asked);
    assert_eq!(begin(&rig, 1, place(&rig, 2)).unwrap_err(), NotBegun::Elsewhere, "it is read from its own place");
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(begin(&rig, 1, old).unwrap_err(), NotBegun::Elsewhere);
    rig.write(1);
    rig.store.get().waits = false;
    rig.leave(1);
    assert_eq!(begin(&rig, 1, old).unwrap_err(), NotBegun::Elsewhere, "its content has changed");
    rig.end();
}

/// Half of the headroom is left to faults, and pages that wait come first.
#[test]
fn reading_ahead_takes_no_frame_that_others_need() {
    let rig = rig();
    // Four are in use.
    assert_eq!(rig.memory.set_limit(16 + 3), Ok(0));
    (8..21).for_each(|page| rig.write(page));
    assert_eq!(rig.memory.frame_use().data, 17);
    assert!(read_ahead(&rig, 0).is_none(), "two frames are left, half of the headroom");
    rig.store.get().waits = false;
    rig.leave(20);
    rig.store.get().waits = true;
    keep(&rig, read_ahead(&rig, 0).unwrap());
    assert!(read_ahead(&rig, 1).is_none());
    rig.write(21);
    rig.write(22);
    rig.bring(2, 0);
    assert_eq!(rig.memory.frame_use().waiting, 1);
    rig.memory.set_limit(40).unwrap();
    // The page that waited was served first.
    assert_eq!(rig.store.reading(), 2);
    keep(&rig, read_ahead(&rig, 1).unwrap());
    rig.check();
    rig.end();
}

/// Content that cannot wait takes a frame of the headroom, and one beside a page that waits.
#[test]
fn what_has_come_takes_any_free_frame() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, headroom: 4, count: 10 * 512, ..Plan::default() });
    (0..3).for_each(|page| rig.write(page));
    (0..3).for_each(|page| rig.leave(page));
    rig.store.get().waits = true;
    let begin = |page, content| rig.memory.begin_read(ipa(page), place(&rig, page), content);
    // All states of huge pages are in use, so a page of another waits, though there are frames.
    (1..9).for_each(|huge_page| rig.write(512 * huge_page));
    (10..23).for_each(|page| rig.write(page));
    rig.bring(512 * 9, 7);
    assert_eq!(rig.memory.frame_use().waiting, 1);
    assert_eq!(begin(0, Unasked::Ahead).unwrap_err(), NotBegun::NoFrame);
    keep(&rig, begin(0, Unasked::Here).unwrap());
    rig.memory.forget(Waiter::Other(7));
    let data = rig.memory.frame_use().data;
    assert_eq!(rig.memory.set_limit(data + 2), Ok(0));
    assert_eq!(begin(1, Unasked::Ahead).unwrap_err(), NotBegun::NoFrame);
    keep(&rig, begin(1, Unasked::Here).unwrap());
    keep(&rig, begin(2, Unasked::Here).unwrap());
    rig.finish_all();
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.end();
}
