// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a page that was written before it was unmapped is reported, however the write was found; and that an
//! unmapped page comes back with its content.

use std::rc::Rc;

use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::{Error, Pages};
use twofold_stage2::fault::AccessKind;

use crate::machine::{HUGE_PAGE, PAGE};
use crate::world::{BASE, EDGES, FEATURES, PAGES, START, World};

#[test]
fn what_was_written_is_reported_when_it_is_unmapped() {
    for tracker in Tracker::ALL {
        // The whole slot at once, so that tables go as a whole; then page by page.
        for at_once in [PAGES, 1] {
            let mut world = World::new(Pages::Largest);
            world.write_all(0..PAGES);
            world.start(LogOptions::new(tracker));
            world.write_all(EDGES);
            // If hardware records writes, these are only in the tables so far.
            world.write_all(EDGES.map(|page| page ^ 3).into_iter().filter(|page| *page < PAGES));
            let written = || EDGES.into_iter().flat_map(|page| [page, page ^ 3]).filter(|page| *page < PAGES);
            for page in (0..PAGES).step_by(at_once as usize) {
                world.guest.memory.unmap(world.slot, world.ipa(page)..world.ipa(page + at_once)).unwrap();
            }
            assert_eq!(world.guest.scan().leaves, []);
            world.copy_pages(0..0);
            // Each page is mapped again when it is touched, and a read is not a write.
            (0..PAGES).for_each(|page| world.touch(page, AccessKind::Read));
            world.check_reported(written());
            world.clear_and_copy(written());
            world.check_reported([]);
            world.write_all([1, 700]);
            world.check_reported([1, 700]);
        }
    }
}

#[test]
fn a_block_is_split_for_what_stays() {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, 1024, 64);
    world.write_all(0..1024);
    let range = world.ipa(100)..world.ipa(200);
    let ((), flushes) = world.flushes(|world| world.guest.memory.unmap(world.slot, range.clone()).unwrap());
    assert!(flushes >= 1);
    let mapped = |world: &World| (0..1024).filter(|page| world.level(*page).is_some()).count();
    assert_eq!((mapped(&world), world.level(99), world.level(100)), (924, Some(3), None));
    assert_eq!((world.level(199), world.level(200), world.level(512)), (None, Some(3), Some(2)));
    world.copy_pages(0..1024);
}

#[test]
fn only_the_slot_is_unmapped_and_only_whole_pages() {
    let mut world = World::new(Pages::Small);
    world.write_all(0..PAGES);
    let before = world.guest.scan();
    let unmap = |world: &World, start, end| world.guest.memory.unmap(world.slot, start..end);
    assert_eq!(unmap(&world, BASE, START), Ok(()), "before the slot");
    assert_eq!(unmap(&world, world.ipa(PAGES), world.ipa(PAGES) + HUGE_PAGE), Ok(()));
    assert_eq!(unmap(&world, world.ipa(3), world.ipa(3)), Ok(()));
    for (start, end) in [(START + 8, START + PAGE), (START, START + 100)] {
        assert!(matches!(unmap(&world, start, end), Err(Error::Stage2(twofold_stage2::Error::Misaligned { .. }))));
    }
    assert_eq!(world.guest.scan(), before);
    assert_eq!(unmap(&world, BASE, world.ipa(1)), Ok(()));
    assert_eq!((world.level(0), world.level(1)), (None, Some(3)));
}

/// Without a table page to split a block, nothing is unmapped.
#[test]
fn a_block_that_cannot_be_split_stays() {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, 512, 1);
    world.write_all(0..512);
    world.start(LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Hardware) });
    let range = world.ipa(100)..world.ipa(200);
    let error = world.guest.memory.unmap(world.slot, range).unwrap_err();
    assert!(matches!(error, Error::Stage2(twofold_stage2::Error::NoTablePage { .. })), "{error}");
    assert_eq!(world.level(150), Some(2));
    // And the log's lock is free again.
    world.write(150);
    assert!(world.get().contains(&150));
}

/// An unmap finds no log, and the slot's first log is started before the unmap changes the tables. A page that hardware
/// records for that log is in it, although the unmap takes the record away.
#[test]
fn what_a_first_log_recorded_during_an_unmap_is_reported() {
    let mut world = World::new(Pages::Small);
    world.write_all(0..10);
    let (range, written) = (world.ipa(0)..world.ipa(10), world.ipa(5));
    let (machine, memory, slot) = world.into_parts();
    let (cpu, other) = (Rc::clone(&machine), Rc::clone(&memory));
    machine.before_next_atomic(move || {
        let options = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Hardware) };
        other.dirty_log(slot).unwrap().start(&options).unwrap();
        // The guest writes without a fault.
        let leaf = cpu.mmu().translate(&|pa| cpu.read(pa), written).unwrap();
        assert!(leaf.dirty_by_hardware() && !leaf.access().write);
        cpu.bank(leaf.entry).set_word(leaf.entry, leaf.raw | 1 << 7);
    });
    memory.unmap(slot, range).unwrap();
    let mut dirty = DirtyPages::new();
    memory.dirty_log(slot).unwrap().get(&mut dirty).unwrap();
    assert!(dirty.contains(5), "{dirty:?}");
}
