// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves which sections are armed, by which writes, and for how long.

use std::cell::Cell;
use std::rc::Rc;

use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::{Answer, GuestFault, Pages};
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::world::{EDGES, FEATURES, START, World};

fn armed(world: &World) -> Vec<u64> {
    (0..world.pages).filter(|page| world.is_armed(*page)).collect()
}

fn world(options: LogOptions) -> World {
    let mut world = World::new(Pages::Small);
    world.write_all(0..world.pages);
    world.start(options);
    assert_eq!(armed(&world), []);
    world
}

#[test]
fn combined_arms_the_section_of_a_write_and_no_other() {
    for section in [8, 64, 512] {
        for page in EDGES {
            let mut world = world(LogOptions { section, ..LogOptions::new(Tracker::Combined) });
            assert_eq!(world.write(page), 1);
            let first = page / section * section;
            let around = first..(first + section).min(world.pages);
            assert_eq!(armed(&world), around.clone().collect::<Vec<_>>());
            // From here on, nothing faults in it.
            assert_eq!(around.clone().map(|page| world.write(page)).sum::<usize>(), 0);
            world.check_told(around.clone());
            // Until it is looked through: hardware's records are over, and what was written may be written on.
            assert_eq!(armed(&world), []);
            assert_eq!(around.clone().map(|page| world.write(page)).sum::<usize>(), 0);
            world.clear_and_copy(around.clone());
            world.check_told([]);
            assert_eq!(world.write(page), 1);
        }
    }
}

/// What was only read in an armed section is not told, and faults after the next get.
#[test]
fn combined_protects_what_was_armed_and_not_written() {
    let mut world = world(LogOptions::new(Tracker::Combined));
    world.write(70);
    world.check_told([70]);
    assert_eq!(world.write(71), 1);
    assert_eq!(world.write(72), 0, "the section is armed again");
    world.check_told([70, 71, 72]);
}

/// What an earlier log had armed, this one has not.
#[test]
fn a_log_arms_anew_what_an_earlier_one_had_armed() {
    for tracker in [Tracker::Combined, Tracker::Adaptive] {
        let mut world = world(LogOptions::new(tracker));
        world.write_all([70, 71, 72]);
        assert!(!armed(&world).is_empty());
        world.log().stop().unwrap();
        world.start(LogOptions { all_dirty: false, ..LogOptions::new(tracker) });
        assert_eq!(armed(&world), []);
        let faults = [70, 71, 72].map(|page| world.write(page));
        assert_eq!((faults[0], faults[2]), (1, 0), "{tracker:?} arms at the first fault, or at the second");
        world.check_told([70, 71, 72]);
    }
}

#[test]
fn adaptive_arms_more_where_more_is_written_and_ends_what_is_cold() {
    let mut world = world(LogOptions::new(Tracker::Adaptive));
    assert_eq!((world.write(0), armed(&world)), (1, vec![]), "one fault is none");
    assert_eq!((world.write(1), world.write(2)), (1, 0));
    assert!(armed(&world).starts_with(&Vec::from_iter(0..64)), "the second one arms its section at least");
    world.check_told([0, 1, 2]);
    world.clear_and_copy([0, 1, 2]);
    assert_eq!((world.write(1), world.write(0)), (0, 0), "it stays armed");
    world.check_told([0, 1]);
    world.clear_and_copy([0, 1]);
    // Until nothing was written there for long.
    let (mut rounds, mut flushes) = (0, 0);
    while !armed(&world).is_empty() {
        flushes += world.flushes(|world| world.check_told([])).1;
        rounds += 1;
        assert!(rounds < 1000, "it stays armed for ever");
    }
    assert_eq!(flushes, 1, "one round ends it, and that alone flushes");
    assert_eq!(world.write(0), 1);
    world.check_told([0]);
}

/// A page of an armed section that was mapped, or faulted, apart from it.
#[test]
fn adaptive_tells_of_pages_that_are_not_armed_in_a_section_that_is() {
    let mut world = World::new(Pages::Small);
    world.start(LogOptions::new(Tracker::Adaptive));
    // Nothing is mapped when the section is armed.
    world.write_all(0..64);
    world.check_told(0..64);
    for _ in 0..3 {
        world.clear_and_copy(0..64);
        world.check_told([]);
        world.write_all(0..64);
        world.check_told(0..64);
    }
}

/// Sections that are written in each round are never cold: the first and the last of a word, in another word, and two that
/// hardware's record is told of at once, since a table begins between them.
#[test]
fn adaptive_keeps_what_is_written_in_each_round() {
    const WRITTEN: [u64; 7] = [63, 575, 580, 4031, 4095, 4106, 4170];
    let mut world = World::with(FEATURES, Pages::Small, START, 4300, 64);
    world.write_all(WRITTEN.map(|page| page ^ 1));
    world.write_all(WRITTEN);
    world.start(LogOptions::new(Tracker::Adaptive));
    // Two faults in each of the sections arm it. One of them is not written any more, and ends before the others.
    world.write_all([1350, 1351]);
    world.clear_and_copy([1350, 1351]);
    world.write_all(WRITTEN.map(|page| page ^ 1));
    world.write_all(WRITTEN);
    world.check_told(WRITTEN.into_iter().flat_map(|page| [page, page ^ 1]));
    world.clear_and_copy(0..world.pages);
    for round in 0..150 {
        assert_eq!(WRITTEN.map(|page| world.write(page)), [0; 7], "round {round}");
        world.check_told(WRITTEN);
        world.clear_and_copy(WRITTEN);
    }
    assert!(!world.is_armed(1350), "it is cold by now");
}

/// A log is stopped and another one started at each moment of a write fault. What the fault armed for the first one is not
/// left armed for one that does not look there, and the write is not lost.
#[test]
fn what_a_fault_arms_for_a_log_is_not_left_to_another() {
    let manual = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) };
    for tracker in [Tracker::Combined, Tracker::Hardware] {
        let mut overtaken = 0;
        for moment in 1.. {
            let mut world = World::new(Pages::Small);
            let first = if tracker == Tracker::Hardware { 10..64 } else { 0..64 };
            world.write_all(first);
            world.start(LogOptions { all_dirty: false, ..LogOptions::new(tracker) });
            let kind = if tracker == Tracker::Hardware { FaultKind::Translation } else { FaultKind::Permission };
            let ipa = world.ipa(5);
            let (machine, memory, slot) = world.into_parts();
            let other = Rc::clone(&memory);
            let is_over = Rc::new(Cell::new(false));
            let done = Rc::clone(&is_over);
            machine.before_atomic(moment, move || {
                let log = other.dirty_log(slot).unwrap();
                log.stop().unwrap();
                log.start(&manual).unwrap();
                done.set(true);
            });
            let fault = GuestFault { ipa, kind, access: AccessKind::Write };
            assert!(matches!(memory.fault(&fault), Ok(Answer::Retry(_))));
            if !is_over.get() {
                break;
            }
            overtaken += 1;
            let mmu = machine.mmu();
            let leaves = mmu.scan(&|pa| machine.word(pa)).leaves;
            assert!(leaves.iter().all(|leaf| !leaf.dirty_by_hardware()), "{tracker:?}, at atomic {moment}");
            let written = leaves.iter().find(|leaf| leaf.ipa == ipa).is_some_and(|leaf| leaf.access().write);
            let mut dirty = DirtyPages::new();
            memory.dirty_log(slot).unwrap().get(&mut dirty).unwrap();
            assert!(!written || dirty.pages().any(|page| page == 5), "{tracker:?}, at atomic {moment}: page 5 is lost");
        }
        assert!(overtaken > 1, "{tracker:?} was overtaken {overtaken} times");
    }
}
