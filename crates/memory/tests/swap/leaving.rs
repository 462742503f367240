// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One page at a time: what leaving and coming back change, and what they cost.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{
    AttachError, Clock, DetachError, Generations, Located, Place, Relief, SwapOptions, Waiter, WriteOutError,
    WrittenOut,
};
use twofold_memory::{Error, Pages};
use twofold_stage2::Ipa;
use twofold_stage2::fault::AccessKind;

use crate::machine::PAGE;
use crate::machine::platform::Event;
use crate::rig::{Absent, Plan, Rig, abandon, ipa, quiet};
use crate::store::{Reports, Store};

#[test]
fn a_page_leaves_and_comes_back_with_its_content() {
    for pages in [Pages::Small, Pages::Largest] {
        let rig = Rig::with(Plan { pages, ..Plan::default() });
        for page in [0, 5, 511, 512, 1023] {
            rig.write(page);
        }
        for page in [0, 511, 512, 1023] {
            let before = rig.memory.frame_use();
            assert_eq!(rig.write_out(page), Ok(WrittenOut::Started));
            assert!(matches!(rig.located(page), Located::Absent(_)));
            assert_eq!(rig.walk(page), None);
            assert_eq!(rig.memory.frame_use().data, before.data - 1);
            assert_eq!(rig.try_read(page), Err(Absent));
            rig.check();
        }
        rig.read(5);
        for page in [0, 511, 512, 1023] {
            rig.bring(page, page);
            assert_eq!(rig.reports.arrived(), [(Waiter::Other(page), Arrival::Present)]);
            rig.read(page);
            rig.check();
        }
        assert_eq!((rig.store.written(), rig.store.reads_so_far()), (4, 4));
        assert_eq!(rig.reports.get().wanted, 0, "frames are free");
        rig.end();
    }
}

/// While an interrupt is pending, a call ends after each long part: a huge page's break-up, the states that replace those
/// it took, and each page.
#[test]
fn a_pending_interrupt_ends_each_long_part() {
    let rig = Rig::with(Plan { pages: Pages::Largest, ..Plan::default() });
    for page in [0, 1, 2, 3, 600] {
        rig.write(page);
    }
    rig.machine.set_interrupt_hook(|| true);
    for part in ["the huge page is broken up", "its states are replaced"] {
        assert_eq!(rig.write_out(0), Ok(WrittenOut::Interrupted), "{part}");
        assert_eq!(rig.located(0), Located::Present);
        rig.check();
    }
    assert_eq!(rig.write_out(0), Ok(WrittenOut::Started));
    let one = Relief { freed: 0, started: 1, is_interrupted: true };
    assert_eq!(Clock::new().make_room(&rig.memory, 3), Ok(one));
    assert_eq!(Generations::new().make_room(&rig.memory, 3), Ok(one));
    // All that was asked for is done, so nothing was cut short.
    assert_eq!(Clock::new().make_room(&rig.memory, 1), Ok(Relief { is_interrupted: false, ..one }));
    // What the guest gives up is gone after the call, though its huge page was whole.
    let given_up = rig.memory.give_up(ipa(600)..ipa(601)).unwrap();
    assert_eq!((given_up.end, given_up.frames, rig.located(600)), (ipa(601), 1, Located::Zero));
    rig.expect(600, 0);
    rig.end();
}

/// Whether by the clock or by age.
#[test]
fn a_pending_interrupt_ends_a_call_that_has_only_broken_up_a_huge_page() {
    type MakeRoom = Box<dyn FnMut(&Rig) -> Result<Relief, WriteOutError>>;
    let (mut clock, mut ages) = (Clock::new(), Generations::new());
    let ways: [MakeRoom; 2] =
        [Box::new(move |rig| clock.make_room(&rig.memory, 3)), Box::new(move |rig| ages.make_room(&rig.memory, 3))];
    for mut make_room in ways {
        let rig = Rig::new();
        (0..4).for_each(|page| rig.write(page));
        rig.machine.set_interrupt_hook(|| true);
        for started in [0, 0, 1] {
            assert_eq!(make_room(&rig), Ok(Relief { freed: 0, started, is_interrupted: true }));
        }
        rig.end();
    }
}

/// A judge finds the content of each page without the guest's tables, and where it finds it is where they lead.
#[test]
fn a_page_is_in_the_frame_that_the_tables_name() {
    let rig = Rig::new();
    assert_eq!(rig.memory.frame_of(ipa(7)), Ok(None), "it was never touched");
    rig.memory.write(ipa(6), &[1]).unwrap();
    assert!(rig.memory.frame_of(ipa(6) + 8).unwrap().is_some() && rig.walk(6).is_none(), "it is not mapped yet");
    assert_eq!(rig.memory.frame_of(ipa(7)), Ok(None), "its huge page has frames, and it is still zero");
    rig.write(7);
    assert_eq!(rig.memory.frame_of(ipa(7)), Ok(Some(rig.walk(7).unwrap().output(ipa(7)))));
    rig.leave(7);
    assert_eq!(rig.memory.frame_of(ipa(7)), Err(Error::Absent { page: ipa(7), done: 0 }));
    assert_eq!(rig.memory.frame_of(ipa(1024)), Err(Error::NoRam { ipa: ipa(1024) }));
}

/// The first page that leaves splits its block. The others stay mapped, by pages.
#[test]
fn the_rest_of_a_huge_page_stays_mapped() {
    let rig = Rig::new();
    rig.write(7);
    rig.write(8);
    assert_eq!(rig.walk(8).unwrap().level, 2);
    let pa = rig.walk(8).unwrap().output(ipa(8));
    rig.leave(7);
    let leaf = rig.walk(8).unwrap();
    assert_eq!((leaf.level, leaf.output(ipa(8)), leaf.access().write), (3, pa, true));
    assert_eq!(rig.walk(7), None);
    rig.end();
}

/// What is cleared reads as zero, although its huge page is kept page by page. A page in the store is refused.
#[test]
fn pages_of_their_own_are_cleared() {
    let rig = Rig::new();
    (0..5).for_each(|page| rig.write(page));
    rig.leave(4);
    rig.memory.clear(rig.slot, ipa(1)..ipa(3)).unwrap();
    (1..3).for_each(|page| rig.expect(page, 0));
    (0..4).for_each(|page| rig.read(page));
    let absent = Err(Error::Absent { page: ipa(4), done: 0 });
    assert_eq!(rig.memory.clear(rig.slot, ipa(3)..ipa(6)), absent);
    rig.expect(3, 0);
    rig.end();
}

#[test]
fn a_page_of_zeroes_costs_nothing() {
    let rig = Rig::with(Plan { pages: Pages::Small, ..Plan::default() });
    rig.write(3);
    rig.write_zero(3);
    rig.read(4);
    // Written, only read, and never touched: its frame is free, too.
    for page in [3, 4, 5] {
        assert_eq!(rig.write_out(page), Ok(WrittenOut::Freed));
        assert_eq!(rig.located(page), Located::Zero);
        assert_eq!(rig.write_out(page), Ok(WrittenOut::NotPresent));
    }
    assert_eq!(rig.memory.frame_use().data, 512 - 3);
    // A fault needs no store for them.
    for page in [3, 4, 5] {
        rig.read(page);
    }
    rig.write(5);
    assert_eq!((rig.store.written(), rig.store.live()), (0, 0));
    rig.end();
}

/// One word anywhere in the page.
#[test]
fn a_page_is_zero_only_if_every_byte_is() {
    for offset in [0, 7, 511, 512, 4095] {
        let rig = Rig::new();
        rig.memory.write(ipa(9) + offset, &[1]).unwrap();
        assert_eq!(rig.write_out(9), Ok(WrittenOut::Started), "{offset}");
        rig.bring(9, 1);
        let mut byte = [0];
        rig.memory.read(ipa(9) + offset, &mut byte).unwrap();
        assert_eq!(byte, [1]);
    }
}

#[test]
fn what_cannot_leave_is_refused_by_name() {
    let rig = Rig::new();
    rig.write(0);
    let outside = Ipa::new(0x1000);
    assert_eq!(rig.memory.write_out(outside), Err(WriteOutError::NoRam { page: outside }));
    assert_eq!(rig.write_out(600), Ok(WrittenOut::NotPresent), "never touched");
    rig.leave(0);
    assert_eq!(rig.write_out(0), Ok(WrittenOut::NotPresent));
    assert_eq!(rig.memory.locate(outside), Err(Error::NoRam { ipa: outside }));
    rig.bring(1 << 40, 4);
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(4), Arrival::Failed)]);
    rig.end();
}

/// What was done before the page is done.
#[test]
fn a_device_is_told_how_far_it_came() {
    let rig = Rig::new();
    (0..3).for_each(|page| rig.write(page));
    rig.leave(2);
    let bytes = vec![7; 3 * PAGE as usize];
    let absent = |done| Err(Error::Absent { page: ipa(2), done });
    assert_eq!(rig.memory.write(ipa(0) + 16, &bytes), absent(2 * PAGE - 16));
    let mut read = bytes.clone();
    read.fill(1);
    assert_eq!(rig.memory.read(ipa(0), &mut read), absent(2 * PAGE));
    assert_eq!((read[15], read[16], read[2 * PAGE as usize - 1], read[2 * PAGE as usize]), (0, 7, 7, 1));
    rig.bring(2, 0);
    assert_eq!(rig.memory.write(ipa(2), &bytes[..16]), Ok(()));
}

#[test]
fn a_store_is_attached_once_and_detached_when_nothing_is_in_it() {
    let mut rig = Rig::with(Plan { pages: Pages::Small, ..Plan::default() });
    (0..4).for_each(|page| rig.write(page));
    rig.leave(1);
    rig.leave(2);
    rig.bring(2, 1);
    assert!(matches!(rig.located(2), Located::Present));
    assert_eq!(rig.store.live(), 2, "one is absent, one has a copy");
    let options = SwapOptions { vcpus: 1, others: 0, headroom: 0 };
    let memory = Rc::get_mut(&mut rig.memory).unwrap();
    let again =
        memory.attach_store(Box::new(Store::new()), Box::new(std::sync::Arc::new(Reports::default())), &options);
    assert_eq!(again, Err(AttachError::Attached));
    assert_eq!(memory.detach_store(), Err(DetachError::InUse { absent: 1, in_flight: 0 }));
    rig.store.get().waits = true;
    rig.bring(1, 1);
    let memory = Rc::get_mut(&mut rig.memory).unwrap();
    assert_eq!(memory.detach_store(), Err(DetachError::InUse { absent: 0, in_flight: 1 }));
    rig.finish_all();
    let memory = Rc::get_mut(&mut rig.memory).unwrap();
    assert_eq!(memory.detach_store(), Ok(()));
    assert_eq!(memory.detach_store(), Err(DetachError::NotAttached));
    assert!(rig.store.get().live.is_empty());
    assert_eq!(rig.write_out(1), Err(WriteOutError::NoStore));
    for page in 0..4 {
        rig.read(page);
        rig.write(page);
    }
    rig.end();
}

/// The target of a post-copy migration: pages that were never here.
#[test]
fn pages_may_be_absent_from_the_start() {
    let rig = Rig::new();
    let mut bytes = Box::new([0; 4096]);
    bytes[0] = 9;
    let place = rig.store.hold(bytes);
    assert_eq!(rig.memory.make_absent(ipa(4), place), Ok(()));
    assert_eq!(rig.memory.make_absent(ipa(4), Place::new(77)), Err(Error::Busy { ipa: ipa(4) }));
    assert_eq!(rig.located(4), Located::Absent(place));
    assert_eq!(rig.access(4, AccessKind::Read), Err(Absent));
    rig.bring(4, 4);
    let pa = rig.access(4, AccessKind::Read).unwrap();
    assert_eq!(rig.machine.bank(pa).word(pa), 9);
    rig.write(4);
    // Its neighbours are zero, and take frames of their own.
    rig.read(5);
    rig.end();
}

/// The slot goes with its absent pages and its copies.
#[test]
fn a_slot_that_goes_leaves_nothing_in_the_store() {
    let mut rig = Rig::with(Plan { pages: Pages::Small, ..Plan::default() });
    (0..4).for_each(|page| rig.write(page));
    rig.store.get().waits = true;
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
    let slot = rig.slot;
    let memory = Rc::get_mut(&mut rig.memory).unwrap();
    let error = memory.remove_slot(slot).unwrap_err();
    assert_eq!(error, Error::InUse { start: ipa(0), in_flight: 1, pinned: 0 });
    rig.finish_all();
    rig.store.get().waits = false;
    rig.leave(2);
    rig.bring(2, 2);
    let memory = Rc::get_mut(&mut rig.memory).unwrap();
    assert!(memory.remove_slot(slot).is_ok());
    assert!(rig.store.get().live.is_empty());
    let used = rig.memory.frame_use();
    assert_eq!((used.data, used.leaving, used.arriving), (0, 0, 0));
}

/// A guest that ends while the store has its requests: their frames come back one by one.
#[test]
fn requests_outlive_their_guest() {
    let rig = Rig::with(Plan { pages: Pages::Small, ..Plan::default() });
    (0..4).for_each(|page| rig.write(page));
    rig.leave(0);
    rig.store.get().waits = true;
    let _ = rig.write_out(1).unwrap();
    rig.bring(0, 0);
    let (writes, reads) = {
        let mut store = rig.store.get();
        (std::mem::take(&mut store.writes), std::mem::take(&mut store.reads))
    };
    let donated = {
        let used = rig.memory.frame_use();
        used.free + used.data + used.tables
    };
    let Rig { memory, .. } = rig;
    let mut frames = Rc::try_unwrap(memory).ok().unwrap().destroy(drop);
    assert_eq!(frames.free(), donated - 2);
    for frame in
        writes.into_iter().map(|write| write.into_frame()).chain(reads.into_iter().map(|read| read.into_frame()))
    {
        frames.give_run(frame).unwrap();
    }
    assert_eq!(frames.free(), donated);
}

/// Calls `action` once, at the flush of the page that leaves.
fn at_the_flush(rig: &Rig, action: impl FnOnce() + 'static) {
    let mut action = Some(action);
    rig.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(..))
            && let Some(action) = action.take()
        {
            action();
        }
    });
}

/// A page of zeroes is needed while it leaves: it stays, and what waits for it is notified.
#[test]
fn a_page_that_is_needed_while_it_leaves_stays() {
    let rig = Rig::new();
    rig.write(1);
    rig.write_zero(1);
    let memory = Rc::clone(&rig.memory);
    at_the_flush(&rig, move || memory.bring(ipa(1), Waiter::Other(3)).unwrap());
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Needed));
    assert_eq!((rig.located(1), rig.reports.arrived()), (Located::Present, vec![(Waiter::Other(3), Arrival::Present)]));
    assert_eq!(rig.memory.frame_use().waiting, 0);
    rig.end();
}

/// Otherwise a clear would find the page gone, flush nothing, and return while a TLB still allows writes.
#[test]
fn a_log_waits_until_the_page_is_flushed() {
    quiet();
    for tracker in Tracker::ALL {
        let rig = Rig::new();
        rig.write(1);
        let log = rig.memory.dirty_log(rig.slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
        rig.write(1);
        let (waits, memory) = (Rc::new(Cell::new(false)), Rc::clone(&rig.memory));
        let (seen, slot) = (Rc::clone(&waits), rig.slot);
        at_the_flush(&rig, move || {
            let get = || memory.dirty_log(slot).unwrap().get(&mut DirtyPages::new());
            seen.set(catch_unwind(AssertUnwindSafe(get)).is_err());
        });
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
        assert!(waits.get(), "{tracker:?}");
        rig.end();
    }
}

/// The slot's first log starts while the page is between its break and its flush: a TLB may still allow writes, which
/// the start could not take away.
#[test]
fn the_first_log_has_a_page_that_is_just_leaving() {
    for tracker in Tracker::ALL {
        let rig = Rig::new();
        rig.write(1);
        rig.write(2);
        // The block is split by now.
        rig.leave(2);
        let (memory, slot) = (Rc::clone(&rig.memory), rig.slot);
        at_the_flush(&rig, move || {
            let log = memory.dirty_log(slot).unwrap();
            log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
        });
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
        let mut dirty = DirtyPages::new();
        rig.memory.dirty_log(rig.slot).unwrap().get(&mut dirty).unwrap();
        assert!(dirty.contains(1), "{tracker:?}");
        rig.end();
    }
}

/// A page of another huge page leaves while a block is put together, at each point: the block is made all the same.
#[test]
fn a_block_is_coalesced_while_other_memory_leaves() {
    quiet();
    let mut withdrawn = 0;
    for number in 1.. {
        let rig = Rc::new(Rig::new());
        rig.write(3);
        rig.write(600);
        rig.write(601);
        rig.leave(601);
        let log = rig.memory.dirty_log(rig.slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::WriteProtect) }).unwrap();
        log.stop().unwrap();
        assert_eq!(rig.walk(3).unwrap().level, 3);
        let (begun, possible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (other, other_begun, other_possible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&possible));
        rig.machine.before_atomic(number, move || {
            other_begun.set(true);
            let leaves = || assert_eq!(other.write_out(600), Ok(WrittenOut::Started));
            other_possible.set(catch_unwind(AssertUnwindSafe(leaves)).is_ok());
        });
        let coalesced = rig.memory.dirty_log(rig.slot).unwrap().coalesce_range(0, 1);
        rig.machine.set_atomic_hook(|| ());
        assert_eq!(coalesced.map(|coalesced| coalesced.blocks), Ok(1), "before atomic {number}");
        assert_eq!(rig.walk(3).unwrap().level, 2);
        withdrawn += usize::from(possible.get());
        if !begun.get() {
            break;
        }
        abandon(rig);
    }
    // Most of it is done with the log's lock, for which a page that leaves waits.
    assert!(withdrawn > 1, "{withdrawn}");
}
