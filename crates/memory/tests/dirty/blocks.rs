// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves when blocks are split for a log, or on their own, that they are coalesced after it has stopped, not before, and
//! within the caller's budget, and that a log is counted in pieces.

use std::cell::Cell;
use std::rc::Rc;

use twofold_memory::dirty::{CoalescedRange, DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Answer, Done, GuestFault, Pages};
use twofold_stage2::Level;
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::machine::PAGE;
use crate::world::{BASE, FEATURES, Mapped, World, all_starts};

/// Levels of the first three huge pages.
fn levels(world: &World) -> [Option<u8>; 3] {
    [0, 512, 1024].map(|page| world.level(page))
}

const BLOCKS: [Option<u8>; 3] = [Some(2); 3];
const SPLIT: [Option<u8>; 3] = [Some(3); 3];

#[test]
fn blocks_are_split_at_the_start_or_as_they_are_cleared_or_written() {
    for chunk in [0, 4 << 10, 2 << 20, 1 << 30] {
        let options = LogOptions { chunk, ..LogOptions::new(Tracker::Manual) };
        // At the start: the whole slot, or nothing.
        let world = World::mapped(Mapped::Blocks);
        world.log().start(&LogOptions { all_dirty: false, ..options }).unwrap();
        assert_eq!(levels(&world), if chunk == 0 { BLOCKS } else { SPLIT });
        // At a clear: the chunk around the cleared page.
        let world = World::mapped(Mapped::Blocks);
        world.log().start(&options).unwrap();
        assert_eq!(levels(&world), BLOCKS);
        world.log().clear(512, 64, &[1]).unwrap();
        let expected = match chunk {
            0 => BLOCKS,
            0x4000_0000 => SPLIT,
            _ => [Some(2), Some(3), Some(2)],
        };
        assert_eq!(levels(&world), expected, "{chunk:#x}");
        assert_eq!((world.may_write(512), world.may_write(513)), (false, chunk != 0));
    }
}

/// A block is split when it is written, and stays a block when it is read.
#[test]
fn a_write_to_a_protected_block_splits_it() {
    for tracker in [Tracker::WriteProtect, Tracker::Manual, Tracker::Combined, Tracker::Adaptive] {
        let mut world = World::mapped(Mapped::Blocks);
        world.start(LogOptions { all_dirty: false, chunk: 0, ..LogOptions::new(tracker) });
        world.touch(1024, AccessKind::Read);
        assert_eq!(levels(&world), BLOCKS);
        world.write(700);
        assert_eq!(levels(&world), [Some(2), Some(3), Some(2)]);
        world.check_reported([700]);
    }
}

/// While a log runs, no block is hardware-tracked, and none is made writable.
#[test]
fn no_block_can_be_written_unseen() {
    all_starts(|options, mapped| {
        let mut world = World::mapped(mapped);
        world.start(options);
        world.write_all([0, 600, 1535]);
        for leaf in world.guest.scan().leaves {
            assert!(leaf.level == 3 || !leaf.access().write && !leaf.dirty_by_hardware(), "{options:?}: {leaf:x?}");
        }
    });
}

#[test]
fn blocks_come_back_within_their_budget() {
    for tracker in Tracker::ALL {
        let mut world = World::mapped(Mapped::Blocks);
        world.start(LogOptions::new(tracker));
        world.write_all((0..world.pages).step_by(7));
        assert_eq!(levels(&world), SPLIT);
        let running = Err(LogError::Running { start: BASE });
        assert_eq!(world.log().coalesce_range(0, 9), running);
        assert_eq!(levels(&world), SPLIT, "not before it has stopped");
        world.log().stop().unwrap();
        let coalesce_range =
            |world: &mut World, page, blocks| world.flushes(|world| world.log().coalesce_range(page, blocks).unwrap());
        assert_eq!(coalesce_range(&mut world, 0, 0), (CoalescedRange { blocks: 0, next: Some(0) }, 0));
        assert_eq!(coalesce_range(&mut world, 0, 2), (CoalescedRange { blocks: 2, next: Some(1024) }, 2));
        assert_eq!(levels(&world), [Some(2), Some(2), Some(3)]);
        assert_eq!(coalesce_range(&mut world, 1024, 2), (CoalescedRange { blocks: 1, next: None }, 1));
        assert_eq!(levels(&world), BLOCKS);
        assert_eq!(
            coalesce_range(&mut world, 0, 9),
            (CoalescedRange { blocks: 0, next: None }, 0),
            "nothing is left to do"
        );
        assert_eq!(world.level(1536), Some(3), "the rest of the slot is not a whole huge page");
        // All memory keeps its content, and may be written.
        world.copy_pages(0..world.pages);
        assert_eq!((0..1536).map(|page| world.write(page)).sum::<usize>(), 0);
        // The next log splits it again, and reports its pages.
        world.start(LogOptions::new(tracker));
        world.write_all([0, 1000]);
        world.check_reported([0, 1000]);
    }
}

#[test]
fn what_was_not_touched_as_a_whole_stays_in_pages() {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, 1024, 64);
    world.start(LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) });
    world.write_all(0..511);
    world.write_all(512..1024);
    world.log().stop().unwrap();
    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 1, next: None }));
    assert_eq!([0, 512].map(|page| world.level(page)), [Some(3), Some(2)]);
    // Past the guest's tables, so that no fault maps a block.
    world.device_writes(511);
    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 1, next: None }));
    assert_eq!([0, 512].map(|page| world.level(page)), [Some(2), Some(2)]);
    world.copy_pages(0..1024);
}

/// A block maps no frame that was never zeroed, wherever in the huge page that is.
#[test]
fn one_page_that_was_not_touched_keeps_a_huge_page_in_pages() {
    for missing in [0, 200, 447, 511] {
        let mut world = World::with(FEATURES, Pages::Largest, BASE, 512, 64);
        world.start(LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) });
        world.write_all((0..512).filter(|page| *page != missing));
        world.log().stop().unwrap();
        assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 0, next: None }), "page {missing}");
        assert_eq!(world.level(missing), None);
    }
}

/// A log starts just before a fault makes a block writable. Its start has not seen that, so the whole block is in the
/// log.
#[test]
fn a_block_that_is_made_writable_as_a_log_starts_is_reported_whole() {
    let protect = LogOptions { all_dirty: false, chunk: 0, ..LogOptions::new(Tracker::Manual) };
    let world = World::mapped(Mapped::Blocks);
    world.log().start(&protect).unwrap();
    world.log().stop().unwrap();
    let ipa = world.ipa(700);
    let (machine, memory, slot) = world.into_parts();
    let other = Rc::clone(&memory);
    machine.before_next_atomic(move || other.dirty_log(slot).unwrap().start(&protect).unwrap());
    let fault = GuestFault { ipa, kind: FaultKind::Permission, access: AccessKind::Write };
    assert_eq!(memory.fault(&fault), Ok(Answer::Retry(Done::Widened)));
    let log = memory.dirty_log(slot).unwrap();
    assert_eq!(log.tracker(), Some(Tracker::Manual), "it was started meanwhile");
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty).unwrap();
    assert!(dirty.pages().eq(512..1024), "pages are lost");
}

/// If all ranges are blocks already, no lock is taken: neither a fault nor a start waits.
#[test]
fn a_coalesce_of_blocks_takes_no_lock() {
    let mut world = World::preallocated(FEATURES, Pages::Largest, BASE, 1024, Level::L2, 8);
    world.write_all(0..1024);
    // All pages are dirty at first, so nothing was split.
    world.log().start(&LogOptions::new(Tracker::Manual)).unwrap();
    world.log().stop().unwrap();
    assert_eq!([0, 512].map(|page| world.level(page)), [Some(2); 2]);
    let was_taken = Rc::new(Cell::new(false));
    let taken = Rc::clone(&was_taken);
    world.guest.machine.before_next_atomic(move || taken.set(true));
    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 0, next: None }));
    assert!(!was_taken.get());
}

/// From any page, and where there is nothing to do.
#[test]
fn a_coalesce_starts_anywhere() {
    let mut world = World::new(Pages::Largest);
    world.write_all(0..world.pages);
    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 0, next: None }), "no log ever ran");
    world.start(LogOptions::new(Tracker::Manual));
    world.log().stop().unwrap();
    // Of the three huge pages, only the second is whole.
    assert_eq!(world.ipa(509).raw() % (512 * PAGE), 0);
    for page in [510, world.pages, u64::MAX] {
        assert_eq!(world.log().coalesce_range(page, 9), Ok(CoalescedRange { blocks: 0, next: None }));
    }
    assert_eq!(world.log().coalesce_range(17, 9), Ok(CoalescedRange { blocks: 1, next: None }));
    assert_eq!([508, 509, 1020, 1021].map(|page| world.level(page)), [Some(3), Some(2), Some(2), Some(3)]);

    let mut small = World::new(Pages::Small);
    small.write_all(0..small.pages);
    small.start(LogOptions::new(Tracker::Manual));
    small.log().stop().unwrap();
    assert_eq!(
        small.log().coalesce_range(0, 9),
        Ok(CoalescedRange { blocks: 0, next: None }),
        "this guest has no blocks"
    );
}

/// A clear splits the chunks in which it protects pages, and no others. Blocks that were split stay split.
#[test]
fn a_clear_splits_what_it_clears_and_nothing_else() {
    for (tracker, chunk) in
        [(Tracker::Manual, 2 << 20), (Tracker::Manual, 0), (Tracker::Hardware, 2 << 20), (Tracker::Hardware, 0)]
    {
        let options = LogOptions { chunk, ..LogOptions::new(tracker) };
        let splits = chunk != 0 || tracker == Tracker::Hardware;
        let split = |is_split| Some(if splits && is_split { 3 } else { 2 });
        let world = World::mapped(Mapped::Blocks);
        world.log().start(&options).unwrap();
        world.clear([0]);
        assert_eq!(levels(&world), [split(true), split(false), split(false)], "{options:?}");
        let world = World::mapped(Mapped::Blocks);
        world.log().start(&options).unwrap();
        world.clear([0, 512]);
        assert_eq!(levels(&world), [split(true), split(true), split(false)], "{options:?}");
        world.clear([]);
        assert_eq!(levels(&world), [split(true), split(true), split(false)], "{options:?}");
    }
}

/// Without `all_dirty`, a start has split what it could. Neither a clear nor a get that clears tries again.
#[test]
fn a_clear_does_not_split_what_the_start_has_left() {
    for tracker in [Tracker::Manual, Tracker::WriteProtect] {
        let mut world = World::with(FEATURES, Pages::Largest, BASE, 512, 1);
        world.write_all(0..512);
        assert_eq!((world.level(0), world.guest.memory.frames().free()), (Some(2), 0));
        world.log().start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
        world.write(3);
        let more = world.guest.machine.donate(crate::world::SPARE, 8 * PAGE);
        world.guest.memory.frames().add(more);
        assert_eq!(world.get(), (0..512).collect());
        world.clear_and_copy(0..512);
        assert_eq!((world.level(0), world.may_write(0)), (Some(2), false), "{tracker:?}");
    }
}

/// Adjacent words that are cleared as a whole are protected together, but not the pages between such runs.
#[test]
fn a_clear_of_whole_words_leaves_those_between() {
    for tracker in [Tracker::Manual, Tracker::Hardware] {
        let mut world = World::mapped(Mapped::Pages);
        world.log().start(&LogOptions::new(tracker)).unwrap();
        let cleared = || (0..64).chain(128..256).chain(320..1600);
        world.copy_pages(0..world.pages);
        world.clear(cleared());
        for page in 0..world.pages {
            assert_eq!(world.may_write(page), !cleared().any(|cleared| cleared == page), "{tracker:?}: page {page}");
        }
        world.check_reported((0..world.pages).filter(|page| !cleared().any(|cleared| cleared == *page)));
    }
}

/// A coalesced block may be written, but not executed, since not all of its pages could be. It is not hardware-tracked.
#[test]
fn a_block_that_comes_back_may_be_written_and_not_executed() {
    let mut world = World::mapped(Mapped::Blocks);
    world.start(LogOptions::new(Tracker::Hardware));
    world.log().stop().unwrap();
    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 3, next: None }));
    for page in [0, 512, 1024] {
        let access = world.guest.access(world.ipa(page)).unwrap();
        assert!(access.write && !access.execute.any() && !world.is_hardware_tracked(page), "{access:?}");
    }
}

/// A count takes what was written since the one before, in pieces, and protects it. Each page counts once.
#[test]
fn pages_are_collected_in_pieces() {
    let mut world = World::mapped(Mapped::Blocks);
    let log = |world: &World, pages| world.log().collect(pages);
    assert!(matches!(log(&world, 0..64), Err(LogError::NotRunning { .. })));
    world.log().start(&LogOptions { chunk: 0, ..LogOptions::new(Tracker::Manual) }).unwrap();
    let pages = world.pages;
    assert_eq!(log(&world, 0..1024), Ok(1024), "all are dirty at first");
    assert_eq!(log(&world, 1024..pages), Ok(pages - 1024));
    assert_eq!(log(&world, 0..pages), Ok(0));
    for page in [0, 1, 64, 1023, 1024, pages - 1] {
        assert!(!world.may_write(page));
        world.write(page);
        world.write(page);
    }
    assert_eq!(log(&world, 64..1024), Ok(2));
    assert_eq!((world.may_write(0), world.may_write(64)), (true, false));
    assert_eq!(log(&world, 0..pages), Ok(4));
    assert_eq!(log(&world, 0..0), Ok(0));
    for (wrong, error) in [
        (1..64, LogError::Misaligned { page: 1 }),
        (0..63, LogError::Length { pages: 63, slot: pages }),
        (0..pages + 64, LogError::BeyondSlot { page: 0, pages: pages + 64, slot: pages }),
    ] {
        assert_eq!(log(&world, wrong), Err(error));
    }
    world.log().stop().unwrap();
    world.log().start(&LogOptions::new(Tracker::WriteProtect)).unwrap();
    assert_eq!(log(&world, 0..64), Err(LogError::ClearedByGet));
}

/// Blocks are split and made again in pieces, without a log.
#[test]
fn blocks_are_split_and_made_again_without_a_log() {
    let mut world = World::mapped(Mapped::Blocks);
    let split = |world: &World, pages| world.log().split_pages(pages).unwrap();
    let coalesce = |world: &World, pages| world.log().coalesce_pages(pages).unwrap();
    assert_eq!(coalesce(&world, 0..world.pages), 0);
    assert_eq!((split(&world, 0..0), levels(&world)), (0, BLOCKS));
    // Some pages of a block are enough.
    assert_eq!((split(&world, 513..514), levels(&world)), (1, [Some(2), Some(3), Some(2)]));
    assert_eq!((split(&world, 0..u64::MAX), levels(&world)), (2, SPLIT));
    assert_eq!(split(&world, 0..world.pages), 0);
    assert_eq!(world.log().tracker(), None);
    // Whole huge pages alone.
    assert_eq!((coalesce(&world, 0..511), coalesce(&world, 1..1023), levels(&world)), (0, 0, SPLIT));
    assert_eq!((coalesce(&world, 0..512), levels(&world)), (1, [Some(2), Some(3), Some(3)]));
    assert_eq!((coalesce(&world, 0..u64::MAX), levels(&world)), (2, BLOCKS));
    world.copy_pages(0..world.pages);
    assert_eq!((0..1536).map(|page| world.write(page)).sum::<usize>(), 0);
    // While a log runs, a split is possible, and the other is not.
    world.start(LogOptions { all_dirty: false, chunk: 0, ..LogOptions::new(Tracker::Manual) });
    assert_eq!(split(&world, 0..512), 1);
    assert_eq!(world.log().coalesce_pages(0..512), Err(LogError::Running { start: BASE }));
    world.write_all([0, 700]);
    world.check_reported([0, 700]);
}

/// A split that runs out of table pages says so, and what was split before stays.
#[test]
fn a_split_without_table_pages_is_an_error() {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, 1536, 2);
    world.write_all(0..1536);
    assert_eq!((levels(&world), world.guest.memory.frames().free()), (BLOCKS, 1));
    let error = world.log().split_pages(0..1536).unwrap_err();
    assert!(matches!(error, LogError::Stage2(twofold_stage2::Error::NoTablePage { .. })), "{error}");
    assert_eq!(levels(&world), [Some(3), Some(2), Some(2)]);
}
