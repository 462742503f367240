// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that are read where they are, for a migration.

use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::swap::{Located, PeekError, Peeked, Waiter};

use crate::rig::{Plan, Rig, ipa};
use crate::store::BROKEN;

const OTHER: Waiter = Waiter::Other(7);

/// Page 1 is absent, and requests wait.
fn absent() -> Rig {
    let rig = Rig::new();
    rig.write(1);
    rig.write(2);
    rig.leave(1);
    rig.store.get().waits = true;
    rig
}

fn look(rig: &Rig, peek: &mut twofold_memory::swap::Peek<'_, crate::machine::Host>) -> Peeked {
    let mut bytes = [0xee; 4096];
    let found = peek.look(&mut bytes);
    if found == Peeked::Read {
        let page = (peek.page() - ipa(0)) / crate::machine::PAGE;
        assert!(bytes == rig.bytes(page), "page {page}");
    }
    found
}

/// The store is not asked to write it again, not even while hardware records writes: then a page that is brought has no
/// copy.
#[test]
fn an_absent_page_is_read_and_stays_absent() {
    for tracker in Tracker::ALL {
        let rig = absent();
        let (at, used) = (rig.located(1), rig.memory.frame_use());
        let log = rig.memory.dirty_log(rig.slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
        let mut peek = rig.memory.peek(ipa(1) + 9).unwrap();
        assert_eq!(rig.store.reading(), 0, "it has not begun");
        assert_eq!(look(&rig, &mut peek), Peeked::Later);
        assert_eq!(look(&rig, &mut peek), Peeked::Later);
        let now = rig.memory.frame_use();
        assert_eq!((now.data, now.arriving, rig.store.reading()), (used.data + 1, 1, 1));
        rig.store.finish_read(&*rig.memory, 0, Ok(()));
        assert_eq!((rig.located(1), rig.memory.frame_use().data, now.waiting), (at, used.data, 0));
        assert_eq!(look(&rig, &mut peek), Peeked::Read);
        drop(peek);
        assert_eq!((rig.store.written(), rig.reports.arrived(), rig.reports.get().wanted), (1, vec![], 0));
        log.stop().unwrap();
        rig.end();
    }
}

#[test]
fn a_page_in_memory_and_a_page_of_zeroes_are_read_at_once() {
    let rig = absent();
    for page in [2, 3, 700] {
        assert_eq!(look(&rig, &mut rig.memory.peek(ipa(page)).unwrap()), Peeked::Read);
    }
    assert_eq!(rig.store.reads_so_far(), 0);
    assert_eq!(rig.located(700), Located::Zero);
    assert_eq!(rig.memory.peek(ipa(5000)).err(), Some(PeekError::NoRam { page: ipa(5000) }));
    rig.end();
}

/// A store may answer within the call.
#[test]
fn a_store_that_answers_at_once_is_read_by_one_look() {
    let rig = absent();
    rig.store.get().waits = false;
    assert_eq!(look(&rig, &mut rig.memory.peek(ipa(1)).unwrap()), Peeked::Read);
    assert!(matches!(rig.located(1), Located::Absent(_)));
    rig.end();
}

/// A vCPU needs the page while it is read for a peek: it is read once, and becomes resident.
#[test]
fn a_page_that_is_needed_meanwhile_is_brought() {
    let rig = absent();
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.bring(1, 7);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!((rig.store.reads_so_far(), rig.located(1)), (1, Located::Present));
    assert_eq!(rig.reports.arrived(), [(OTHER, Arrival::Present)]);
    rig.write(1);
    assert_eq!(look(&rig, &mut peek), Peeked::Read, "what is there now");
    drop(peek);
    rig.end();
}

/// What was read for a vCPU is read for the peek as well, even if the page has left again before the peek looks.
#[test]
fn a_page_that_was_brought_and_has_left_is_not_read_again() {
    let rig = absent();
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.bring(1, 7);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), [(OTHER, Arrival::Present)]);
    assert_eq!(rig.write_out(1), Ok(twofold_memory::swap::WrittenOut::Freed));
    assert_eq!((look(&rig, &mut peek), rig.store.reads_so_far()), (Peeked::Read, 1));
    drop(peek);
    rig.end();
}

/// The other way round: the page is on its way already.
#[test]
fn a_page_that_is_on_its_way_is_not_read_twice() {
    let rig = absent();
    rig.bring(1, 7);
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    assert_eq!((rig.store.reads_so_far(), rig.located(1)), (1, Located::Present));
    drop(peek);
    rig.end();
}

#[test]
fn a_page_that_leaves_is_read_when_it_has_left() {
    let rig = absent();
    assert_eq!(rig.write_out(2), Ok(twofold_memory::swap::WrittenOut::Started));
    let mut peek = rig.memory.peek(ipa(2)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    assert_eq!(rig.store.reading(), 0);
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    assert!(matches!(rig.located(2), Located::Absent(_)), "a peek does not keep it");
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    drop(peek);
    rig.end();
}

/// Between two looks the page comes, is written, and leaves for another place.
#[test]
fn a_page_that_comes_and_goes_between_two_looks_is_read_anew() {
    let rig = absent();
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    // The peek waits behind the vCPU's request.
    rig.bring(1, 7);
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.finish_all();
    rig.write(1);
    rig.leave_later(1);
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.finish_all();
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    drop(peek);
    rig.end();
}

#[test]
fn a_read_that_fails_is_reported_and_can_be_repeated() {
    let rig = absent();
    let at = rig.located(1);
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.store.finish_read(&*rig.memory, 0, Err(BROKEN));
    assert_eq!(rig.reports.failures().len(), 1);
    assert_eq!(look(&rig, &mut peek), Peeked::Failed(BROKEN));
    assert_eq!((look(&rig, &mut peek), rig.located(1) == at), (Peeked::Later, false));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    drop(peek);
    rig.end();
}

/// A migration is cancelled with pages in flight.
#[test]
fn a_peek_that_is_forgotten_leaves_nothing() {
    let rig = absent();
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    drop(peek);
    rig.check();
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    rig.check();
    assert_eq!(rig.reports.arrived(), []);
    rig.read(1);
    rig.end();
}

/// Frames: a peek waits its turn, as a vCPU does, and gives the frame back at once.
#[test]
fn peeks_wait_for_frames_in_the_queue() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    for page in 20..23 {
        rig.write(page);
        rig.leave(page);
    }
    (0..16).for_each(|page| rig.write(page));
    // Not in the order of their addresses.
    let [mut first, mut second] = [21, 20].map(|page| rig.memory.peek(ipa(page)).unwrap());
    let mut forgotten = rig.memory.peek(ipa(22)).unwrap();
    assert_eq!(look(&rig, &mut forgotten), Peeked::Later);
    assert_eq!((rig.memory.wants_frames(), rig.reports.get().wanted), (1, 1), "the write-out task is woken");
    assert_eq!(look(&rig, &mut first), Peeked::Later);
    rig.bring(22, 7);
    assert_eq!(look(&rig, &mut second), Peeked::Later);
    assert_eq!(rig.store.reads_so_far(), 0);
    assert_eq!(rig.memory.wants_frames(), 4, "the write-out task has work");
    drop(forgotten);
    rig.store.get().waits = true;
    rig.write_zero(3);
    rig.leave(3);
    // The first has the frame. It goes to the vCPU after that, and the second waits on.
    assert!(matches!(rig.located(21), Located::Arriving(_)));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert!(matches!(rig.located(21), Located::Absent(_)) && matches!(rig.located(22), Located::Arriving(_)));
    assert_eq!((look(&rig, &mut first), look(&rig, &mut second)), (Peeked::Read, Peeked::Later));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived(), [(OTHER, Arrival::Present)]);
    rig.write_zero(4);
    rig.leave(4);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(look(&rig, &mut second), Peeked::Read);
    rig.check();
    drop((first, second));
    rig.end();
}

/// Also if the page that asks later has a lower address.
#[test]
fn a_page_that_asks_after_a_peek_is_behind_it() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    for page in 20..22 {
        rig.write(page);
        rig.leave(page);
    }
    (0..16).for_each(|page| rig.write(page));
    let mut peek = rig.memory.peek(ipa(21)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.bring(20, 7);
    rig.store.get().waits = true;
    rig.write_zero(3);
    rig.leave(3);
    assert!(matches!(rig.located(21), Located::Arriving(_)) && matches!(rig.located(20), Located::Absent(_)));
    rig.finish_all();
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    drop(peek);
    rig.end();
}

/// Two pages are read for two peeks, and complete in the other order: each peek gets its own page.
#[test]
fn each_peek_gets_its_own_page() {
    let rig = Rig::new();
    (1..3).for_each(|page| rig.write(page));
    (1..3).for_each(|page| rig.leave(page));
    rig.store.get().waits = true;
    let [mut first, mut second] = [1, 2].map(|page| rig.memory.peek(ipa(page)).unwrap());
    assert_eq!((look(&rig, &mut first), look(&rig, &mut second)), (Peeked::Later, Peeked::Later));
    assert_eq!(rig.store.reading(), 2);
    rig.store.finish_read(&*rig.memory, 1, Ok(()));
    assert_eq!((look(&rig, &mut first), look(&rig, &mut second)), (Peeked::Later, Peeked::Read));
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!(look(&rig, &mut first), Peeked::Read);
    drop((first, second));
    rig.end();
}

/// The page that a peek waits for becomes zero. It takes no frame, also not when one is free.
#[test]
fn a_page_that_becomes_zero_takes_no_frame() {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    let place = rig.store.hold(Box::new(rig.bytes(20)));
    rig.memory.make_absent(ipa(20), place).unwrap();
    (0..16).for_each(|page| rig.write(page));
    let mut peek = rig.memory.peek(ipa(20)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    assert_eq!(rig.memory.make_zero(ipa(20), place), Ok(()));
    rig.write_zero(3);
    rig.leave(3);
    assert_eq!((rig.located(20), rig.memory.frame_use().data), (Located::Zero, 15));
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    drop(peek);
    rig.end();
}

/// The peer of a post-copy migration: what is read there is nowhere else, so it stays.
#[test]
fn a_page_of_a_store_that_sends_each_once_becomes_resident() {
    let rig = absent();
    rig.store.get().once = true;
    let mut peek = rig.memory.peek(ipa(1)).unwrap();
    assert_eq!(look(&rig, &mut peek), Peeked::Later);
    rig.store.finish_read(&*rig.memory, 0, Ok(()));
    assert_eq!((rig.located(1), rig.store.live()), (Located::Present, 0));
    assert_eq!(look(&rig, &mut peek), Peeked::Read);
    drop(peek);
    rig.end();
}
