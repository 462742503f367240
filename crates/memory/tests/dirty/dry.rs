// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that no write is lost if table pages run out, whichever is the first that is missing: a block that cannot be
//! split is reported as a whole.

use std::collections::BTreeSet;

use twofold_memory::Pages;
use twofold_memory::dirty::{CoalescedRange, LogOptions, Tracker};

use crate::machine::PAGE;
use crate::world::{BASE, FEATURES, Mapped, World, all_starts};

/// Pages in a slot of three whole huge pages and 70 pages.
const PAGES: u64 = 3 * 512 + 70;
/// Table pages that map it in blocks: one of level 2, and one for the 70 pages.
const TABLES: u64 = 2;

/// The pages of all huge pages around `pages` that could be blocks, and the other pages themselves.
fn with_sections(pages: &[u64]) -> BTreeSet<u64> {
    let around = |page: &u64| if *page < 1536 { page / 512 * 512..(page / 512 + 1) * 512 } else { *page..page + 1 };
    pages.iter().flat_map(around).collect()
}

#[test]
fn blocks_that_cannot_be_split_are_reported_whole() {
    all_starts(|options, mapped| {
        let most = if mapped == Mapped::Blocks { 3 } else { return };
        for more in 0..=most {
            let mut world = World::with(FEATURES, Pages::Largest, BASE, PAGES, TABLES + more);
            world.write_all(0..PAGES);
            assert_eq!(world.guest.memory.frames().free(), more);
            world.start(options);
            for round in 0..3 {
                let written = [3, 511, 700 + round, 1024, 1535, 1540];
                for page in written {
                    assert!(world.write(page) <= 1, "page {page} faults again");
                    // A writable block is in the log as a whole.
                    world.write(page / 512 * 512 + 9);
                }
                let reported = world.get();
                let all: Vec<_> = written.into_iter().chain(written.map(|page| page / 512 * 512 + 9)).collect();
                assert!(all.iter().all(|page| reported.contains(page)), "{options:?}, {more} more: {reported:?}");
                assert!(reported.is_subset(&with_sections(&all)));
                if more == most && round == 0 {
                    assert_eq!(reported, all.into_iter().collect(), "there is a table page for each block");
                }
                world.check_copy(&match options.tracker {
                    Tracker::WriteProtect => BTreeSet::new(),
                    _ => reported.clone(),
                });
                // A clear of some pages of each block: the rest stays in the log, although the whole block is
                // protected.
                let cleared: Vec<_> =
                    reported.iter().copied().filter(|page| page % 512 / 64 == 0 || *page == 511).collect();
                world.clear_and_copy(cleared);
            }
            let dirty = world.get();
            world.check_copy(&if options.tracker == Tracker::WriteProtect { BTreeSet::new() } else { dirty });
        }
    });
}

/// Nothing is mapped at first: some writes find no table page, and fail.
#[test]
fn what_could_not_be_written_is_not_missed() {
    for tracker in Tracker::ALL {
        for all_dirty in [false, tracker != Tracker::WriteProtect] {
            for tables in 0..=5 {
                let mut world = World::with(FEATURES, Pages::Largest, BASE, PAGES, tables);
                // Take all frames of RAM, so that none becomes a table.
                [0, 600, 1030, 1540].into_iter().for_each(|page| world.device_writes(page));
                let block = world.try_write(1030).is_ok();
                assert_eq!(block, tables > 0);
                world.start(LogOptions { all_dirty, ..LogOptions::new(tracker) });
                let mut written = Vec::new();
                for page in [0, 600, 1030, 1100, 1540] {
                    if world.try_write(page).is_ok() {
                        written.push(page);
                    }
                }
                assert_eq!(written.is_empty(), tables == 0);
                // A page takes two tables; the split of the block may have taken the second.
                assert!(!written.contains(&0) || tables >= 2);
                assert!(written.contains(&0) || tables <= 2);
                let reported = world.get();
                assert!(
                    written.iter().all(|page| reported.contains(page)),
                    "{tracker:?}, {tables} tables: {reported:?}"
                );
                assert!(reported.is_subset(&with_sections(&written)), "{tracker:?}, {tables} tables: {reported:?}");
                // Donate more pages.
                let more = world.guest.machine.donate(crate::world::SPARE, 8 * PAGE);
                world.guest.memory.frames().add(more);
                world.clear_and_copy(reported);
                world.write_all([0, 600, 1540]);
                let reported = world.get();
                assert!([0, 600, 1540].iter().all(|page| reported.contains(page)));
            }
        }
    }
}

/// Two blocks are written, and one is cleared. The get that ends hardware's records in both finds the other block
/// writable and in the log as a whole, and puts no page of the cleared block there.
#[test]
fn a_block_beside_one_that_is_written_stays_clear() {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, 1024, 1);
    world.write_all(0..1024);
    world.start(LogOptions { all_dirty: false, section: 512, ..LogOptions::new(Tracker::Combined) });
    world.write_all([3, 600]);
    assert_eq!([0, 512].map(|page| (world.level(page), world.may_write(page))), [(Some(2), true); 2]);
    world.clear_and_copy(0..512);
    world.check_reported(512..1024);
}

/// Coalescing a huge page takes no table page, and gives one back.
#[test]
fn blocks_come_back_without_a_page() {
    let mut world = World::with(FEATURES, Pages::Largest, BASE, PAGES, TABLES + 3);
    world.write_all(0..PAGES);
    world.start(LogOptions::new(Tracker::Manual));
    assert_eq!(world.guest.memory.frames().free(), 0);
    world.log().stop().unwrap();
    assert_eq!(world.log().coalesce_range(0, 9), Ok(CoalescedRange { blocks: 3, next: None }));
    assert_eq!(world.guest.memory.frames().free(), 3);
    world.copy_pages(0..PAGES);
}
