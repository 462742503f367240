// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that are written as a whole wherever they are, for the target of a migration.

use twofold_memory::Error;
use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{FrameUse, Located, Poke, Poked, Waiter};

use crate::machine::Host;
use crate::rig::{Plan, Rig, ipa};
use crate::store::BROKEN;

/// A rig whose frames are all in use, by pages 0 to 15. Pages 20 and 21 are absent.
fn full() -> Rig {
    let rig = Rig::with(Plan { count: 32, huge_pages: 0, singles: 40, ..Plan::default() });
    for page in [20, 21] {
        rig.write(page);
        rig.leave(page);
    }
    rig.memory.set_limit(16).unwrap();
    (0..16).for_each(|page| rig.write(page));
    rig.store.get().waits = true;
    rig
}

fn poke(rig: &Rig, page: u64) -> Poke<'_, Host> {
    rig.memory.poke(ipa(page)).unwrap()
}

/// Writes the page that the rig expects there from now on.
fn look(rig: &Rig, poke: &mut Poke<'_, Host>, value: u64) -> Poked {
    let page = (poke.page() - ipa(0)) / crate::machine::PAGE;
    let mut bytes = [0; 4096];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    let poked = poke.look((value > 0).then_some(&bytes)).unwrap();
    if poked == Poked::Written {
        rig.expect(page, value);
    }
    poked
}

/// Nothing is read, and what was at its place is discarded.
#[test]
fn an_absent_page_is_replaced_without_a_read() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    let (live, used, wanted) = (rig.store.live(), rig.memory.frame_use(), rig.reports.get().wanted);
    let log = rig.memory.dirty_log(rig.slot).unwrap();
    log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) }).unwrap();
    assert_eq!(look(&rig, &mut poke(&rig, 1), 77), Poked::Written);
    assert_eq!((rig.located(1), rig.store.live(), rig.store.reads_so_far()), (Located::Present, live - 1, 0));
    assert_eq!((rig.memory.frame_use().data, rig.reports.get().wanted), (used.data + 1, wanted));
    rig.read(1);
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty).unwrap();
    assert!(dirty.pages().eq([1]), "it is written");
    log.stop().unwrap();
    // Its content is nowhere else, so it is written again.
    let written = rig.store.written();
    rig.leave(1);
    assert_eq!(rig.store.written(), written + 1);
    assert_eq!(look(&rig, &mut poke(&rig, 1), 0), Poked::Written);
    assert_eq!((rig.located(1), rig.store.live(), rig.memory.frame_use().data), (Located::Zero, live - 1, used.data));
    rig.read(1);
    rig.end();
}

#[test]
fn a_page_in_memory_is_written_and_loses_its_copy() {
    let rig = Rig::new();
    rig.write(1);
    rig.leave(1);
    rig.bring(1, 3);
    assert_eq!((rig.located(1), rig.store.live()), (Located::Present, 1));
    assert_eq!(look(&rig, &mut poke(&rig, 1), 77), Poked::Written);
    assert_eq!(rig.store.live(), 0);
    rig.read(1);
    assert_eq!(look(&rig, &mut poke(&rig, 1), 0), Poked::Written);
    rig.read(1);
    // Never touched.
    assert_eq!(look(&rig, &mut poke(&rig, 700), 0), Poked::Written);
    assert_eq!(rig.located(700), Located::Zero);
    assert_eq!(rig.memory.poke(ipa(5000)).err(), Some(Error::NoRam { ipa: ipa(5000) }));
    rig.end();
}

/// The page's own I/O ends first. If its write fails, the page is in memory, with the old content until it is written.
#[test]
fn a_page_on_its_way_is_written_later() {
    let rig = Rig::new();
    rig.store.get().waits = true;
    for result in [Ok(()), Err(BROKEN)] {
        rig.write(1);
        let _ = rig.write_out(1).unwrap();
        let mut page = poke(&rig, 1);
        assert_eq!(look(&rig, &mut page, 77), Poked::Later);
        rig.store.finish_write(&*rig.memory, 0, result);
        assert_eq!(look(&rig, &mut page, 77), Poked::Written);
        drop(page);
        rig.read(1);
    }
    let _ = rig.write_out(1).unwrap();
    rig.finish_all();
    rig.bring(1, 3);
    let mut page = poke(&rig, 1);
    assert_eq!(look(&rig, &mut page, 78), Poked::Later);
    rig.finish_all();
    assert_eq!(look(&rig, &mut page, 78), Poked::Written);
    drop(page);
    assert_eq!(rig.memory.frame_use().waiting, 0);
    rig.end();
}

/// The queue is one for vCPUs, peeks and pokes, and the next frame is left to the oldest: of an absent page, and of one that
/// was never touched.
#[test]
fn pages_that_wait_for_frames_are_written_in_their_turn() {
    for [first, last] in [[20, 30], [30, 20]] {
        let rig = full();
        let wanted = rig.reports.get().wanted;
        let mut first = poke(&rig, first);
        assert_eq!(look(&rig, &mut first, 77), Poked::Later);
        let now = rig.reports.get().wanted;
        assert_eq!((rig.memory.wants_frames(), now), (1, wanted + 1), "the write-out task has work");
        rig.bring(21, 3);
        assert_eq!(look(&rig, &mut first, 77), Poked::Later, "it keeps its place");
        let mut last = poke(&rig, last);
        assert_eq!(look(&rig, &mut last, 78), Poked::Later);
        assert_eq!(rig.memory.wants_frames(), 3);
        for page in 0..3 {
            let _ = rig.write_out(page).unwrap();
            rig.store.finish_write(&*rig.memory, 0, Ok(()));
        }
        assert_eq!((rig.memory.frame_use().data, rig.store.reading()), (13, 0), "the next frame is left to the first");
        assert_eq!(look(&rig, &mut last, 78), Poked::Later, "page 21 is before it");
        assert_eq!(look(&rig, &mut first, 77), Poked::Written);
        assert_eq!(rig.store.reading(), 1, "page 21 goes on");
        assert_eq!(look(&rig, &mut last, 78), Poked::Written);
        rig.finish_all();
        assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Arrival::Present)]);
        drop((first, last));
        rig.check();
        assert_eq!(rig.memory.wants_frames(), 0);
        rig.store.get().waits = false;
        rig.end();
    }
}

/// A poke that has asked for nothing takes no place in the queue, and no failure of another.
#[test]
fn each_poke_waits_and_fails_for_itself() {
    let rig = full();
    let (mut idle, mut page) = (poke(&rig, 20), poke(&rig, 21));
    assert_eq!(look(&rig, &mut page, 77), Poked::Later);
    let _ = rig.write_out(0).unwrap();
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    assert_eq!(look(&rig, &mut page, 77), Poked::Written);
    drop(page);
    let mut page = poke(&rig, 30);
    assert_eq!(look(&rig, &mut page, 78), Poked::Later);
    assert_eq!(rig.memory.fail_waiting(), 1);
    assert_eq!(look(&rig, &mut idle, 79), Poked::Later);
    assert_eq!(look(&rig, &mut page, 78), Poked::Failed(None));
    drop((idle, page));
    rig.store.get().waits = false;
    rig.end();
}

/// Zeroes wait for no frame, and a poke that is dropped leaves the queue: what is behind it goes on.
#[test]
fn a_poke_that_ends_lets_others_go_on() {
    let rig = full();
    let mut first = poke(&rig, 20);
    assert_eq!(look(&rig, &mut first, 77), Poked::Later);
    rig.bring(21, 3);
    let _ = rig.write_out(0).unwrap();
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.store.reading(), 0);
    drop(first);
    assert_eq!(rig.store.reading(), 1);
    assert_eq!(look(&rig, &mut poke(&rig, 20), 0), Poked::Written);
    assert_eq!(rig.located(20), Located::Zero);
    rig.finish_all();
    rig.store.get().waits = false;
    rig.end();
}

/// The write-out task cannot free a frame: the poke ends with the last write that failed. The next look waits anew.
#[test]
fn a_poke_fails_with_what_waits_for_frames() {
    let rig = full();
    let mut page = poke(&rig, 20);
    assert_eq!(look(&rig, &mut page, 77), Poked::Later);
    rig.bring(21, 3);
    assert_eq!(rig.memory.fail_waiting(), 2);
    assert_eq!(look(&rig, &mut page, 77), Poked::Failed(None));
    assert_eq!(look(&rig, &mut page, 77), Poked::Later);
    let _ = rig.write_out(0).unwrap();
    rig.store.finish_write(&*rig.memory, 0, Err(BROKEN));
    assert_eq!(rig.memory.fail_waiting(), 1);
    let failure = rig.reports.failures()[0];
    assert_eq!((failure.page, failure.cause), (ipa(0), BROKEN));
    assert_eq!(look(&rig, &mut page, 77), Poked::Failed(Some(failure)));
    let FrameUse { data, limit, waiting, .. } = rig.memory.frame_use();
    assert_eq!((data, limit, waiting, rig.memory.wants_frames()), (16, 16, 0, 0));
    drop(page);
    rig.store.get().waits = false;
    rig.end();
}
