// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that preallocated RAM is logged as any other RAM: a block of 1 GiB is split as far as the log needs it, no
//! page of a block can be written without a mark, and the block is coalesced after the log has stopped.

use twofold_memory::dirty::{CoalescedRange, DirtyPages, LogOptions, Tracker};
use twofold_memory::{Answer, Done, Pages};
use twofold_stage2::Level;
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::machine::{GIB, PAGE};
use crate::world::{BASE, FEATURES, World};

const IN_GIB: u64 = GIB / PAGE;
/// Pages in the first huge page, in the middle, in the last one, and after the block of 1 GiB.
const WRITTEN: [u64; 5] = [3, 511, 100_000, IN_GIB - 1, IN_GIB + 5];
/// Table pages that map the slot by the largest leaves; and by pages alone.
const FEW: u64 = 2;
const ALL: u64 = FEW + 1 + 512;

/// A slot of 1 GiB and 70 pages, mapped.
fn world(tables: u64) -> World {
    let mut world = World::preallocated(FEATURES, Pages::Largest, BASE, IN_GIB + 70, Level::L1, tables);
    world.write_all([0, IN_GIB]);
    assert_eq!([0, IN_GIB - 1, IN_GIB].map(|page| world.level(page)), [Some(1), Some(1), Some(3)]);
    world
}

/// Checks that no block is writable or hardware-tracked.
fn check_blocks(world: &World, options: LogOptions) {
    for leaf in world.guest.scan().leaves {
        assert!(leaf.level == 3 || !leaf.access().write && !leaf.dirty_by_hardware(), "{options:?}: {leaf:x?}");
    }
}

#[test]
fn blocks_of_a_gigabyte_are_logged() {
    for tracker in Tracker::ALL {
        for chunk in [0, 2 << 20, 1 << 30] {
            let mut world = world(ALL);
            let options = LogOptions { all_dirty: false, chunk, ..LogOptions::new(tracker) };
            world.log().start(&options).unwrap();
            world.copy_pages([0, IN_GIB]);
            // The whole slot is split ahead, or nothing. `Hardware` always splits, since blocks are not
            // hardware-tracked.
            let split = chunk != 0 || tracker == Tracker::Hardware;
            assert_eq!(world.level(100_000), Some(if split { 3 } else { 1 }), "{options:?}");
            world.touch(200_000, AccessKind::Read);
            world.write_all(WRITTEN);
            check_blocks(&world, options);
            // A write splits only what is around it.
            assert_eq!(world.level(50_000), Some(if split { 3 } else { 2 }));
            world.check_reported(WRITTEN);
            world.clear_and_copy(WRITTEN);
            world.check_reported([]);
            world.write(511);
            world.check_reported([511]);
            world.log().stop().unwrap();
            // The block is coalesced, and may be written.
            assert_eq!(world.log().coalesce_range(0, 0), Ok(CoalescedRange { blocks: 0, next: Some(0) }));
            assert_eq!(
                world.flushes(|world| world.log().coalesce_range(0, 9)),
                (Ok(CoalescedRange { blocks: 1, next: None }), 1)
            );
            assert_eq!([0, IN_GIB - 1, IN_GIB].map(|page| world.level(page)), [Some(1), Some(1), Some(3)]);
            assert_eq!(world.write(77), 0);
            world.copy_pages(WRITTEN);
            assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 0, next: None }));
        }
    }
}

/// From a page in the middle of a block, nothing is left to do. So no log is in the way.
#[test]
fn a_coalesce_from_within_a_gigabyte_leaves_it() {
    let world = world(FEW);
    world.log().start(&LogOptions::new(Tracker::Manual)).unwrap();
    assert_eq!(world.log().coalesce_range(512, 9), Ok(CoalescedRange { blocks: 0, next: None }));
    assert_eq!([0, IN_GIB - 1].map(|page| world.level(page)), [Some(1); 2]);
}

/// The whole slot is in the log at first. A clear splits the chunk of the pages that it clears.
#[test]
fn a_clear_splits_its_chunk_of_a_gigabyte() {
    for tracker in Tracker::ALL.into_iter().filter(|tracker| *tracker != Tracker::WriteProtect) {
        for (chunk, beside) in [(2 << 20, 2), (1 << 30, 3)] {
            let mut world = world(ALL);
            world.log().start(&LogOptions { chunk, ..LogOptions::new(tracker) }).unwrap();
            assert_eq!(world.level(0), Some(1));
            world.log().clear(512, 64, &[0b11]).unwrap();
            assert_eq!([512, 1024].map(|page| world.level(page)), [Some(3), Some(beside)], "{tracker:?}");
            assert_eq!([512, 514, 1024].map(|page| world.may_write(page)), [false, true, true]);
            let reported = world.get();
            assert!(!reported.contains(&512) && reported.contains(&514) && reported.contains(&1024));
        }
    }
}

/// Whichever table page is missing, a writable block is reported as a whole.
#[test]
fn a_gigabyte_that_cannot_be_split_is_reported_whole() {
    for tracker in Tracker::ALL {
        for more in 0..3 {
            let mut world = world(FEW + more);
            world.log().start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
            world.write_all(WRITTEN);
            let mut reported = DirtyPages::new();
            world.log().get(&mut reported).unwrap();
            assert!(WRITTEN.iter().all(|page| reported.contains(*page)), "{tracker:?}, {more} more");
            let blocks = world.guest.scan().leaves.into_iter().filter(|leaf| leaf.level < 3);
            for leaf in blocks.filter(|leaf| leaf.access().write) {
                let (first, pages) = ((leaf.ipa - BASE) / PAGE, leaf.span() / PAGE);
                let inside = reported.words().iter().filter(|word| (first..first + pages).contains(&word.first_page));
                assert_eq!(inside.map(|word| u64::from(word.mask.count_ones())).sum::<u64>(), pages, "{leaf:x?}");
                assert!(tracker != Tracker::WriteProtect, "a get has protected the block");
            }
        }
    }
}

/// Blocks of 2 MiB are coalesced where 1 GiB cannot be, since its first page is not mapped.
#[test]
fn smaller_blocks_come_back_where_the_largest_does_not() {
    let mut world = world(ALL);
    world.log().start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) }).unwrap();
    world.log().stop().unwrap();
    world.guest.memory.unmap(world.slot, world.ipa(0)..world.ipa(1)).unwrap();
    assert_eq!(world.log().coalesce_range(0, 600), Ok(CoalescedRange { blocks: 511, next: None }));
    assert_eq!([0, 1, 512, IN_GIB - 1].map(|page| world.level(page)), [None, Some(3), Some(2), Some(2)]);
    // The fault for that page finds the tables in its way, and coalesces the whole 1 GiB.
    world.write(0);
    assert_eq!([0, 1, 512, IN_GIB - 1].map(|page| world.level(page)), [Some(1); 4]);
}

/// The blocks that are coalesced are as large as the slot's ends and the frames' alignment allow.
#[test]
fn what_fits_comes_back() {
    for (start, largest, levels) in [
        (BASE, Level::L1, [Some(2), Some(2)]),
        (BASE, Level::L2, [Some(2), Some(2)]),
        (BASE, Level::L3, [Some(3), Some(3)]),
        (BASE + PAGE, Level::L2, [Some(3), Some(2)]),
    ] {
        let mut world = World::preallocated(FEATURES, Pages::Largest, start, 1536, largest, 16);
        world.write_all(0..1536);
        let shown = |world: &World| [0, 600].map(|page| world.level(page));
        assert_eq!(shown(&world), levels);
        world.start(LogOptions::new(Tracker::Manual));
        world.write_all([0, 600]);
        world.check_reported([0, 600]);
        assert_eq!(shown(&world), [Some(3); 2]);
        world.log().stop().unwrap();
        let CoalescedRange { next, .. } = world.log().coalesce_range(0, 9).unwrap();
        assert_eq!((next, shown(&world)), (None, levels), "{start} {largest:?}");
        world.copy_pages(0..1536);
    }
}

/// While a log runs, each page that is mapped may be executed only if the guest executed there; no page is zeroed.
#[test]
fn pages_that_are_mapped_for_a_log_allow_what_was_asked_for() {
    for tracker in [Tracker::Manual, Tracker::Hardware] {
        let mut world = World::preallocated(FEATURES, Pages::Largest, BASE, 600, Level::L2, 64);
        world.start(LogOptions::new(tracker));
        for (page, access) in [(3, AccessKind::Read), (4, AccessKind::Execute), (5, AccessKind::Write)] {
            let answer = world.guest.fault(world.ipa(page), FaultKind::Translation, access);
            assert_eq!(answer, Ok(Answer::Retry(Done::Mapped { level: Level::L3, first_touch: false })));
            let found = world.guest.access(world.ipa(page)).unwrap();
            assert_eq!((found.execute.any(), found.write), (page == 4, page == 5), "{access:?}");
            assert_eq!(world.is_hardware_tracked(page), tracker == Tracker::Hardware);
        }
    }
}
