// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that each tracker, however it is started and whatever is mapped then, reports the written pages, round by
//! round.

use std::collections::BTreeSet;

use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::{Answer, Done, Pages};
use twofold_stage2::IpaRange;
use twofold_stage2::fault::{AccessKind, Fault, FaultKind};

use crate::machine::PAGE;
use crate::world::{EDGES, World, all_starts};

#[test]
fn what_is_written_is_reported_and_nothing_else() {
    all_starts(|options, mapped| {
        let mut world = World::mapped(mapped);
        world.start(options);
        let written = EDGES.map(|page| page * 3 / 2 % world.pages);
        // A read is not a write, also where nothing is mapped yet.
        for page in [2, 70, 600, 1500] {
            world.touch(page, AccessKind::Read);
            world.touch(page + 1, AccessKind::Execute);
        }
        world.check_reported([]);
        world.write_all(written);
        world.check_reported(written);
        world.clear_and_copy(written);
        world.check_reported([]);
        // A page that is written again is reported again, as is a page that was read first.
        world.write_all(written.into_iter().chain([2, 70, 600, 1500]));
        world.check_reported(written.into_iter().chain([2, 70, 600, 1500]));
    });
}

/// The syndrome of a `DC CIVAC` is not taken for a write.
#[test]
fn what_is_cleaned_is_not_written() {
    let civac = Fault::from_syndrome(0x9200_0147).unwrap().access;
    all_starts(|options, mapped| {
        let mut world = World::mapped(mapped);
        world.start(options);
        for page in [2, 70, 600, 1500] {
            world.touch(page, civac);
            // Without `all_dirty`, no page may be written yet unless hardware records it.
            assert!(options.all_dirty || !world.may_write(page), "{options:?}, {mapped:?}: page {page} may be written");
        }
        world.check_reported([]);
    });
}

/// `DC IVAC` needs the permission to write. It gets it wherever the guest may write, even on pages that a log has
/// protected.
#[test]
fn what_is_invalidated_is_reported() {
    let mut world = World::new(Pages::Small);
    world.write_all(0..world.pages);
    world.start(LogOptions::new(Tracker::Manual));
    world.clear_and_copy(0..world.pages);
    let answer = world.guest.fault(world.ipa(5), FaultKind::Permission, AccessKind::Maintenance);
    assert_eq!(answer, Ok(Answer::Retry(Done::Widened)));
    world.check_reported([5]);
}

#[test]
fn what_a_device_writes_is_reported() {
    all_starts(|options, mapped| {
        let mut world = World::mapped(mapped);
        world.start(options);
        EDGES.iter().for_each(|page| world.device_writes(*page));
        world.check_reported(EDGES);
        world.clear_and_copy(EDGES);
        // `mark` is for writes past the tables: whole pages, and of those only the ones in the slot.
        let (start, end) = (world.ipa(0), world.ipa(world.pages));
        let mark = |range: IpaRange| world.log().mark(range);
        mark(world.ipa(100) + 8..world.ipa(102) + 1);
        mark(start + 3..start + 3);
        mark(end..end + PAGE);
        mark(world.ipa(world.pages - 1)..end + PAGE);
        world.check_reported([100, 101, 102, world.pages - 1]);
    });
}

#[test]
fn a_write_and_a_clear_by_get_come_one_after_the_other() {
    let mut world = World::new(Pages::Small);
    world.write_all(0..world.pages);
    world.start(LogOptions::new(Tracker::WriteProtect));
    world.write_all([3, 70]);
    world.check_reported([3, 70]);
    world.check_reported([]);
    assert!(!world.may_write(3) && !world.may_write(70));
    assert_eq!(world.write(3), 1, "it faults again");
    world.check_reported([3]);
}

#[test]
fn what_is_not_cleared_stays_in_the_log_and_costs_no_fault() {
    for tracker in [Tracker::Manual, Tracker::Combined, Tracker::Adaptive, Tracker::Hardware] {
        let mut world = World::new(Pages::Small);
        world.write_all(0..world.pages);
        world.start(LogOptions::new(tracker));
        world.write_all(EDGES);
        for _ in 0..3 {
            world.check_reported(EDGES);
            assert_eq!(EDGES.map(|page| world.write(page)), [0; EDGES.len()], "{tracker:?}");
        }
        let (cleared, kept) = EDGES.split_at(5);
        world.clear_and_copy(cleared.iter().copied());
        world.check_reported(kept.iter().copied());
    }
}

#[test]
fn a_clear_protects_what_was_set_and_not_what_is_between() {
    let mut world = World::new(Pages::Small);
    world.write_all(0..world.pages);
    world.start(LogOptions::new(Tracker::Manual));
    let written: BTreeSet<_> = (0..world.pages).filter(|page| page % 3 != 1).collect();
    world.write_all(written.iter().copied());
    // The first and the last page of each word, and one that was not written.
    let clears = |page: &u64| [0, 1, 63].contains(&(page % 64));
    world.clear_and_copy((0..world.pages).filter(clears));
    for page in 0..world.pages {
        let stays = written.contains(&page) && !clears(&page);
        assert_eq!(world.may_write(page), stays, "page {page}");
    }
    world.check_reported(written.into_iter().filter(|page| !clears(page)));
}

#[test]
fn a_piece_of_the_slot_is_cleared() {
    let mut world = World::new(Pages::Small);
    world.start(LogOptions::new(Tracker::Manual));
    world.write_all(EDGES);
    // Two words from page 64 on, with one bit in each; then the end of the slot, which is not a whole word.
    world.log().clear(64, 128, &[1 << 63, 1]).unwrap();
    world.log().clear(1088, 12, &[1 << 11]).unwrap();
    world.log().clear(0, 0, &[]).unwrap();
    world.copy_pages([127, 128, 1099]);
    world.check_reported(EDGES.into_iter().filter(|page| ![127, 128, 1099].contains(page)));
    assert!(world.may_write(64) && !world.may_write(127) && world.may_write(1098) && !world.may_write(1099));
}

#[test]
fn what_a_get_has_reported_is_cleared_at_once() {
    let mut world = World::new(Pages::Small);
    world.start(LogOptions::new(Tracker::Manual));
    world.write_all(EDGES);
    let mut dirty = twofold_memory::dirty::DirtyPages::new();
    world.log().get(&mut dirty).unwrap();
    world.write(200);
    world.log().clear_these(&dirty).unwrap();
    world.copy_pages(EDGES);
    world.check_reported([200]);
}

#[test]
fn with_hardware_nothing_faults_that_was_cleared_once() {
    for all_dirty in [false, true] {
        let mut world = World::new(Pages::Small);
        world.write_all(0..world.pages);
        world.start(LogOptions { all_dirty, ..LogOptions::new(Tracker::Hardware) });
        for round in 0..3 {
            assert_eq!((0..world.pages).map(|page| world.write(page)).sum::<usize>(), 0, "round {round}");
            world.check_reported(0..world.pages);
            world.clear_and_copy(0..world.pages);
            world.check_reported([]);
        }
    }
}

/// A write faults if nothing is mapped. From then on hardware records writes.
#[test]
fn with_hardware_what_is_mapped_is_tracked() {
    let mut world = World::new(Pages::Largest);
    world.start(LogOptions::new(Tracker::Hardware));
    world.touch(600, AccessKind::Read);
    assert!(world.is_hardware_tracked(600) && !world.may_write(600), "a page that was read is clean");
    assert_eq!((world.write(601), world.write(600)), (1, 0));
    assert!(world.is_hardware_tracked(601));
    world.check_reported([600, 601]);
    world.clear_and_copy([600, 601]);
    assert_eq!((world.write(601), world.write(600)), (0, 0));
    world.check_reported([600, 601]);
}

/// Any log may follow any other, whatever the first has left in the tables.
#[test]
fn trackers_follow_each_other() {
    for first in Tracker::ALL {
        for first_section in [8, 64, 512] {
            for then in Tracker::ALL {
                for all_dirty in [false, true].into_iter().filter(|all| !all || then != Tracker::WriteProtect) {
                    let mut world = World::new(Pages::Largest);
                    world.start(LogOptions { section: first_section, ..LogOptions::new(first) });
                    world.write_all(EDGES.into_iter().chain([5, 600]));
                    world.check_reported(EDGES.into_iter().chain([5, 600]));
                    world.clear_and_copy([600, 0]);
                    world.write(600);
                    world.log().stop().unwrap();
                    assert_eq!(world.log().tracker(), None);
                    world.write_all([6, 601, 1099]);
                    world.start(LogOptions { all_dirty, ..LogOptions::new(then) });
                    assert_eq!(world.log().tracker(), Some(then));
                    world.check_reported([]);
                    let written = [0, 5, 6, 600, 602, 1099];
                    world.write_all(written);
                    world.check_reported(written);
                    world.clear_and_copy(written);
                    world.check_reported([]);
                }
            }
        }
    }
}
