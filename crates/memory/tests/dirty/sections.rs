// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves which sections become hardware-tracked, by which writes, and for how long.

use std::cell::Cell;
use std::rc::Rc;

use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::{Answer, Done, GuestFault, Pages};
use twofold_stage2::Level;
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::machine::PAGE;
use crate::world::{EDGES, FEATURES, PAGES, SPARE, START, World};

fn tracked(world: &World) -> Vec<u64> {
    (0..world.pages).filter(|page| world.is_hardware_tracked(*page)).collect()
}

fn world(options: LogOptions) -> World {
    let mut world = World::new(Pages::Small);
    world.write_all(0..world.pages);
    world.start(options);
    assert_eq!(tracked(&world), []);
    world
}

#[test]
fn combined_sets_dbm_on_the_section_of_a_write_and_no_other() {
    for section in [8, 64, 512] {
        for page in EDGES {
            let mut world = world(LogOptions { section, ..LogOptions::new(Tracker::Combined) });
            assert_eq!(world.write(page), 1);
            let first = page / section * section;
            let around = first..(first + section).min(world.pages);
            assert_eq!(tracked(&world), around.clone().collect::<Vec<_>>());
            // From here on, no write to the section faults.
            assert_eq!(around.clone().map(|page| world.write(page)).sum::<usize>(), 0);
            world.check_reported(around.clone());
            // The get has cleared DBM. Pages that were written may still be written.
            assert_eq!(tracked(&world), []);
            assert_eq!(around.clone().map(|page| world.write(page)).sum::<usize>(), 0);
            world.clear_and_copy(around.clone());
            world.check_reported([]);
            assert_eq!(world.write(page), 1);
        }
    }
}

/// In a hardware-tracked section, a page that was not written is not reported, and its first write faults after the
/// next get.
#[test]
fn combined_protects_what_was_tracked_and_not_written() {
    let mut world = world(LogOptions::new(Tracker::Combined));
    world.write(70);
    world.check_reported([70]);
    assert_eq!(world.write(71), 1);
    assert_eq!(world.write(72), 0, "the section is hardware-tracked again");
    world.check_reported([70, 71, 72]);
}

/// Sections that were hardware-tracked for an earlier log are not for this one.
#[test]
fn a_log_sets_dbm_anew_on_what_an_earlier_one_had_tracked() {
    for tracker in [Tracker::Combined, Tracker::Adaptive] {
        let mut world = world(LogOptions::new(tracker));
        world.write_all([70, 71, 72]);
        assert!(!tracked(&world).is_empty());
        world.log().stop().unwrap();
        world.start(LogOptions { all_dirty: false, ..LogOptions::new(tracker) });
        assert_eq!(tracked(&world), []);
        let faults = [70, 71, 72].map(|page| world.write(page));
        assert_eq!((faults[0], faults[2]), (1, 0), "{tracker:?} sets DBM at the first fault, or at the second");
        world.check_reported([70, 71, 72]);
    }
}

#[test]
fn adaptive_sets_dbm_on_more_where_more_is_written_and_ends_what_is_cold() {
    let mut world = world(LogOptions::new(Tracker::Adaptive));
    assert_eq!((world.write(0), tracked(&world)), (1, vec![]), "one fault sets no DBM");
    assert_eq!((world.write(1), world.write(2)), (1, 0));
    assert!(tracked(&world).starts_with(&Vec::from_iter(0..64)), "the second fault sets DBM on its section at least");
    world.check_reported([0, 1, 2]);
    world.clear_and_copy([0, 1, 2]);
    assert_eq!((world.write(1), world.write(0)), (0, 0), "the section stays hardware-tracked");
    world.check_reported([0, 1]);
    world.clear_and_copy([0, 1]);
    // Until no page there was written for many rounds.
    let (mut rounds, mut flushes) = (0, 0);
    while !tracked(&world).is_empty() {
        flushes += world.flushes(|world| world.check_reported([])).1;
        rounds += 1;
        assert!(rounds < 1000, "the section stays hardware-tracked for ever");
    }
    assert_eq!(flushes, 1, "one round ends the section, and only that round flushes");
    assert_eq!(world.write(0), 1);
    world.check_reported([0]);
}

/// Where DBM is set on a whole group, a pending interrupt ends the fault, and the next fault there goes on. No write is
/// lost meanwhile.
#[test]
fn adaptive_leaves_the_rest_of_a_group_to_the_next_faults() {
    const COUNT: u64 = 4300;
    const AT_ONCE: u64 = 1024;
    for interrupted in [false, true] {
        let mut world = World::with(FEATURES, Pages::Small, START, COUNT, 64);
        world.write_all(0..COUNT);
        world.start(LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Adaptive) });
        world.guest.machine.set_interrupt_hook(move || interrupted);
        let mut written: Vec<_> = (0..8).map(|table| 512 * table).collect();
        world.write_all(written.clone());
        let mut end = if interrupted { AT_ONCE } else { COUNT };
        assert_eq!(tracked(&world), Vec::from_iter(0..end), "interrupted: {interrupted}");
        for page in COUNT - 9..COUNT {
            assert_eq!(world.write(page), usize::from(end < COUNT), "page {page}");
            end = COUNT.min(end + AT_ONCE);
            assert_eq!(tracked(&world).iter().filter(|page| **page < COUNT - 9).count() as u64, end.min(COUNT - 9));
            written.push(page);
        }
        world.check_reported(written);
    }
}

/// Only a fault that sets DBM on more than it does at once reports that, and looks for interrupts.
#[test]
fn a_fault_that_sets_dbm_on_many_pages_reports_it() {
    let fault = |world: &mut World, page| {
        let ipa = world.ipa(page);
        world.guest.fault(ipa, FaultKind::Permission, AccessKind::Write)
    };
    let mut world = world(LogOptions { section: 512, ..LogOptions::new(Tracker::Combined) });
    world.guest.machine.set_interrupt_hook(|| panic!("a section is short work"));
    assert_eq!(fault(&mut world, 70), Ok(Answer::Retry(Done::Widened)));

    let mut world = World::with(FEATURES, Pages::Small, START, 4300, 64);
    world.write_all(0..4300);
    world.start(LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Adaptive) });
    for table in 0..7 {
        assert_eq!(fault(&mut world, 512 * table), Ok(Answer::Retry(Done::Widened)));
    }
    assert_eq!(fault(&mut world, 512 * 7), Ok(Answer::Retry(Done::WidenedAround)));
    assert_eq!(tracked(&world).len(), 4300);
}

/// Pages of a hardware-tracked section that were mapped, or that faulted, after DBM was set on the others.
#[test]
fn adaptive_tells_of_pages_that_are_not_tracked_in_a_section_that_is() {
    let mut world = World::new(Pages::Small);
    world.start(LogOptions::new(Tracker::Adaptive));
    // Most pages are not mapped yet when DBM is set on the section.
    world.write_all(0..64);
    world.check_reported(0..64);
    for _ in 0..3 {
        world.clear_and_copy(0..64);
        world.check_reported([]);
        world.write_all(0..64);
        world.check_reported(0..64);
    }
}

/// Sections that are written in each round are never cold: the first and the last of a word, one in another word, and
/// two that are reported in one piece, since a table begins between them.
#[test]
fn adaptive_keeps_what_is_written_in_each_round() {
    const WRITTEN: [u64; 7] = [63, 575, 580, 4031, 4095, 4106, 4170];
    let mut world = World::with(FEATURES, Pages::Small, START, 4300, 64);
    world.write_all(WRITTEN.map(|page| page ^ 1));
    world.write_all(WRITTEN);
    world.start(LogOptions::new(Tracker::Adaptive));
    // Two faults in a section set DBM on it. One of the sections is not written any more, and ends before the others.
    world.write_all([1350, 1351]);
    world.clear_and_copy([1350, 1351]);
    world.write_all(WRITTEN.map(|page| page ^ 1));
    world.write_all(WRITTEN);
    world.check_reported(WRITTEN.into_iter().flat_map(|page| [page, page ^ 1]));
    world.clear_and_copy(0..world.pages);
    for round in 0..150 {
        assert_eq!(WRITTEN.map(|page| world.write(page)), [0; 7], "round {round}");
        world.check_reported(WRITTEN);
        world.clear_and_copy(WRITTEN);
    }
    assert!(!world.is_hardware_tracked(1350), "the section is cold by now");
}

/// Hardware's records end in a section that is cold, and in none before or after it: a page there that is written again
/// after some rounds takes no fault.
#[test]
fn adaptive_ends_the_records_of_a_cold_section_and_no_others() {
    for (cold, hot) in [(0, 600), (600, 0)] {
        let mut world = world(LogOptions::new(Tracker::Adaptive));
        let written = [cold, cold + 1, hot, hot + 1];
        assert_eq!(written.map(|page| world.write(page)), [1; 4]);
        world.check_reported(written);
        world.clear_and_copy(written);
        assert_eq!(tracked(&world), (0..64).chain(576..640).collect::<Vec<_>>());
        let mut rounds_after = 0;
        for round in 0..1000 {
            // The two pages take turns, so that one of them is clean when the other section's records end.
            let page = hot + round % 2;
            assert_eq!(world.write(page), 0, "round {round}: page {page}");
            world.check_reported([page]);
            world.clear_and_copy([page]);
            rounds_after += u64::from(!world.is_hardware_tracked(cold));
            if rounds_after == 2 {
                break;
            }
        }
        assert_eq!(rounds_after, 2, "the section stays hardware-tracked for ever");
    }
}

/// A slot ends in the middle of a section, and another slot begins there. A get of the first slot ends no records of
/// the second, so no record there is lost.
#[test]
fn records_end_where_their_slot_ends() {
    let mut world = World::new(Pages::Small);
    let (end, size) = (world.ipa(PAGES), 8 * PAGE);
    let backing = world.guest.machine.give(SPARE, size, Level::L3);
    let behind = world.guest.add(end, size, backing, true);
    world.start(LogOptions::new(Tracker::Combined));
    let hardware = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Hardware) };
    world.guest.memory.dirty_log(behind).unwrap().start(&hardware).unwrap();
    // The last page of one slot is mapped, and DBM set on its section; then the first page of the other.
    world.touch(PAGES - 1, AccessKind::Read);
    world.write_all([PAGES - 1, PAGES]);
    assert!(world.is_hardware_tracked(PAGES - 1) && world.is_hardware_tracked(PAGES));
    assert_eq!(world.get(), [PAGES - 1].into());
    let mut dirty = DirtyPages::new();
    world.guest.memory.dirty_log(behind).unwrap().get(&mut dirty).unwrap();
    assert!(dirty.pages().eq([0]), "{dirty:?}");
    assert!(!world.is_hardware_tracked(PAGES - 1) && world.is_hardware_tracked(PAGES));
}

/// Only combined has sections of another size.
#[test]
fn adaptive_has_sections_of_one_size() {
    for section in [8, 64, 512] {
        let mut world = world(LogOptions { section, ..LogOptions::new(Tracker::Adaptive) });
        assert_eq!([0, 1].map(|page| world.write(page)), [1; 2]);
        assert_eq!(tracked(&world), (0..64).collect::<Vec<_>>(), "{section}");
        world.check_reported([0, 1]);
        // DBM is set on the next section of the same table by that section's own second fault only.
        assert_eq!([64, 65, 66].map(|page| world.write(page)), [1, 1, 0], "{section}");
        assert_eq!(tracked(&world), (0..128).collect::<Vec<_>>(), "{section}");
        world.check_reported([0, 1, 64, 65, 66]);
    }
}

/// A log is stopped and another one started at each moment of a write fault. No DBM that the fault set for the first
/// log is left for the second, which does not look there; and the write is not lost.
#[test]
fn what_a_fault_sets_dbm_on_for_a_log_is_not_left_to_another() {
    // Combined after combined: only the number of the start distinguishes the second log from the first.
    for (tracker, second) in [
        (Tracker::Combined, Tracker::Manual),
        (Tracker::Combined, Tracker::Combined),
        (Tracker::Hardware, Tracker::Manual),
    ] {
        let second = LogOptions { all_dirty: false, ..LogOptions::new(second) };
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
                log.start(&second).unwrap();
                done.set(true);
            });
            let fault = GuestFault { ipa, kind, access: AccessKind::Write };
            assert!(matches!(memory.fault(&fault), Ok(Answer::Retry(_))));
            if !is_over.get() {
                break;
            }
            overtaken += 1;
            let mmu = machine.mmu();
            let leaves = mmu.scan(&|pa| machine.read(pa)).leaves;
            assert!(leaves.iter().all(|leaf| !leaf.dirty_by_hardware()), "{tracker:?}, {second:?}, at atomic {moment}");
            let written = leaves.iter().find(|leaf| leaf.ipa == ipa).is_some_and(|leaf| leaf.access().write);
            let mut dirty = DirtyPages::new();
            memory.dirty_log(slot).unwrap().get(&mut dirty).unwrap();
            assert!(!written || dirty.pages().any(|page| page == 5), "{tracker:?}, at atomic {moment}: page 5 is lost");
        }
        assert!(overtaken > 1, "{tracker:?} was overtaken {overtaken} times");
    }
}
