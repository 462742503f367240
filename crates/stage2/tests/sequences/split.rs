// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splitting ahead of need: tables are filled where no walk sees them; then one break, one flush, one make.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::*;
use crate::platform::{KIB_4, MIB_2, Pool, frame, table};
use twofold_stage2::{Error, Kib4Lpa2, Split, Stopped};

const WRITABLE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 10;
const RW: Access = Access::READ_WRITE;
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, accessed: false, ..Attributes::ram(Access::READ) };

fn split(guest: &mut Guest, range: IpaRange, chunk: u64) -> Split {
    guest.stage2.split(range, chunk, &mut guest.pool, |_, _| ControlFlow::Continue(())).unwrap()
}

fn done(blocks: u64, end: Ipa) -> Split {
    Split { blocks, done: end, stopped: None }
}

fn is_break(event: &Event) -> bool {
    matches!(event, Event::Sees(_, None))
}

#[test]
fn a_block_of_2_mib_takes_one_page_and_one_break() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let (first, last) = (BASE, BASE + 511 * KIB_4);
    guest.watch(first);
    guest.watch(last);
    assert_eq!(split(&mut guest, range(BASE, MIB_2), GIB), done(1, BASE + MIB_2));
    let expected = [
        vec![Event::Take(table(1)), sees_nothing(first), sees_nothing(last)],
        by_leaf(BASE, Some(2)),
        vec![sees(first, 3, frame(0), RW), sees(last, 3, frame(511 * KIB_4), RW), Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());
    assert_eq!(guest.scan().leaves.len(), 512);
}

/// All pages are taken and filled before the break. Only the flush is between break and make.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_block_of_1_gib_takes_513_pages_and_one_break() {
    let mut guest = Guest::with_pages(HINTS, IPA_BITS, 513);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    let last = BASE + (GIB - KIB_4);
    guest.watch(last);
    assert_eq!(split(&mut guest, range(BASE, GIB), GIB), done(1, BASE + GIB));
    let events = guest.events();
    let (takes, rest) = events.split_at(513);
    assert!(takes.iter().all(|event| matches!(event, Event::Take(_))), "{takes:x?}");
    let made = vec![sees(last, 3, frame(GIB - KIB_4), RW), Event::Dsb(Domain::IshSt)];
    assert_eq!(rest, [vec![sees_nothing(last)], by_leaf(BASE, Some(1)), made].concat());
    let scan = guest.scan();
    assert_eq!((scan.leaves.len(), scan.links.len()), (512 * 512, 513));
    assert!(scan.leaves.iter().all(|leaf| leaf.level == 3 && leaf.pa() == frame(leaf.ipa - BASE)));
}

/// Another CPU has changed the entry: all 513 tables that were filled in vain are given back.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn all_tables_of_a_split_that_comes_too_late_are_given_back() {
    const SOFTWARE: u64 = 1 << 55;
    let mut guest = Guest::with_pages(HINTS, IPA_BITS, 514);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    let (machine, entry) = (guest.machine.clone(), guest.walk(BASE).unwrap().entry);
    let changed = Cell::new(false);
    guest.machine.set_hook(move |event, _| {
        if matches!(event, Event::Take(_)) && !changed.replace(true) {
            machine.write(entry, machine.read(entry) | SOFTWARE);
        }
    });
    assert_eq!(split(&mut guest, range(BASE, GIB), GIB), done(1, BASE + GIB));
    assert_eq!(guest.pool.out.len(), 513, "the rest came back");
    assert!(guest.scan().leaves.iter().all(|leaf| leaf.software() == 1));
}

/// At each instruction a walk finds the block, nothing during the flush, or the page.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_table_is_complete_before_it_is_linked() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let (machine, mmu) = (guest.machine.clone(), guest.mmu());
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    guest.machine.set_atomic_hook(move || {
        for page in 0..512 {
            let found = mmu.translate(&|pa| machine.read(pa), BASE + page * KIB_4);
            assert!(found.is_err() || found.unwrap().output(BASE + page * KIB_4) == frame(page * KIB_4));
        }
        count.set(count.get() + 1);
    });
    let _ = split(&mut guest, range(BASE, MIB_2), GIB);
    assert!(seen.get() > 1);
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn with_one_page_a_large_block_is_split_by_one_level() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    guest.watch(BASE);
    guest.pool.limit = 1;
    let outcome = split(&mut guest, range(BASE, GIB), GIB);
    assert_eq!(outcome, Split { blocks: 1, done: BASE, stopped: Some(Stopped::Dry) });
    let events: Vec<_> = guest.events();
    let seen: Vec<_> = events.iter().filter(|event| matches!(event, Event::Sees(..))).collect();
    assert_eq!(seen, [&sees_nothing(BASE), &sees(BASE, 2, frame(0), RW)], "{events:x?}");
    assert_eq!((guest.scan().leaves.len(), guest.pool.out.len()), (512, 1), "and no page more is held back");

    guest.pool.limit = 3;
    let outcome = split(&mut guest, range(BASE, GIB), GIB);
    assert_eq!(outcome, Split { blocks: 3, done: BASE + 3 * MIB_2, stopped: Some(Stopped::Dry) });
    assert_eq!(guest.scan().leaves.len(), 509 + 3 * 512);
}

#[test]
fn without_a_page_nothing_is_broken_and_nothing_is_wrong() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    guest.watch(BASE);
    guest.pool.limit = 0;
    let outcome = split(&mut guest, range(BASE, GIB), MIB_2);
    assert_eq!(outcome, Split { blocks: 0, done: BASE, stopped: Some(Stopped::Dry) });
    assert_eq!(guest.events(), []);
}

#[test]
fn where_the_caller_breaks_off_it_goes_on_later() {
    let mut guest = guest(HINTS);
    (0..4).for_each(|at| map(&mut guest, BASE + at * MIB_2, frame(at * MIB_2), Level::L2, &RAM));
    let all = range(BASE, 4 * MIB_2);
    let mut chunks = 0;
    let between = |_: &mut Pool, _| {
        chunks += 1;
        if chunks <= 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let outcome = guest.stage2.split(all.clone(), MIB_2, &mut guest.pool, between).unwrap();
    assert_eq!(outcome, Split { blocks: 2, done: BASE + 2 * MIB_2, stopped: Some(Stopped::Asked) });
    assert_eq!(split(&mut guest, outcome.done..all.end, MIB_2), done(2, all.end));
}

/// A caller that provides the announced number of pages never runs dry, for any start of the range and any chunk.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn what_is_announced_is_enough() {
    for (level, offset, size) in [
        (Level::L1, 0, GIB),
        (Level::L1, MIB_2 - KIB_4, 2 * KIB_4),
        (Level::L1, MIB_2 / 2, MIB_2),
        (Level::L2, 0, MIB_2),
        (Level::L2, KIB_4, KIB_4),
    ] {
        for chunk in [KIB_4, MIB_2, GIB] {
            let mut guest = Guest::with_pages(HINTS, IPA_BITS, 514);
            map(&mut guest, BASE, frame(0), level, &RAM);
            guest.pool.limit = 0;
            let all = range(BASE + offset, size);
            // Chunks of one page in a range of 1 GiB would only repeat the same 512 times.
            let chunk = if size == GIB { chunk.max(MIB_2) } else { chunk };
            let between = |pool: &mut Pool, most: usize| {
                pool.limit = most;
                ControlFlow::Continue(())
            };
            let outcome = guest.stage2.split(all.clone(), chunk, &mut guest.pool, between).unwrap();
            assert_eq!((outcome.stopped, outcome.done), (None, all.end), "{level} {offset:#x} {size:#x} {chunk:#x}");
        }
    }
}

#[test]
fn entries_of_level_3_are_not_looked_at_again() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 8);
    guest.pool.limit = 0;
    assert_eq!(split(&mut guest, range(BASE, GIB), GIB), done(0, BASE + GIB));
    assert_eq!(guest.events(), []);
}

/// Splits a block. At the atomic access numbered `moment`, hardware records a write in the block, if it is still there.
/// Returns the number of atomic accesses, of leaves, and of leaves with the write.
fn split_with_a_write_at(moment: usize, level: Level, size: u64) -> (usize, usize, usize) {
    let mut guest = Guest::with_pages(HINTS, IPA_BITS, 513);
    map(&mut guest, BASE, frame(0), level, &CLEAN);
    let entry = guest.walk(BASE).unwrap().entry;
    let (machine, atomics) = (guest.machine.clone(), Rc::new(Cell::new(0)));
    let at = atomics.clone();
    guest.machine.set_atomic_hook(move || {
        if at.get() == moment && machine.read(entry) & 3 == 1 {
            machine.hardware_sets(entry, WRITABLE | ACCESSED);
        }
        at.set(at.get() + 1);
    });
    assert_eq!(split(&mut guest, range(BASE, size), GIB).stopped, None);
    let scan = guest.scan();
    let recorded = scan.leaves.iter().filter(|leaf| leaf.access().write && leaf.accessed()).count();
    (atomics.get(), scan.leaves.len(), recorded)
}

/// The posted combined dirty log (Kolothum 2023) applies a stale value again, and loses what was recorded since. The
/// read-modify-write that breaks the block is one of the moments. Up to it, every record is in every part.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn what_hardware_records_between_filling_and_break_is_in_the_parts() {
    for (level, size) in [(Level::L2, MIB_2), (Level::L1, GIB)] {
        let (atomics, parts, none) = split_with_a_write_at(usize::MAX, level, size);
        assert_eq!((parts as u64, none), (size / KIB_4, 0));
        let moments = (0..atomics).filter(|moment| moment % 97 == 0 || moment + 5 >= atomics);
        let recorded: Vec<_> = moments.map(|moment| split_with_a_write_at(moment, level, size).2).collect();
        let before_the_break = recorded.iter().take_while(|recorded| **recorded == parts).count();
        assert!(before_the_break >= 2, "{recorded:?}");
        assert!(recorded[before_the_break..].iter().all(|recorded| *recorded == 0), "{recorded:?}");
    }
}

#[test]
fn a_chunk_is_a_power_of_two_and_no_less_than_a_page() {
    let mut guest = guest(HINTS);
    for chunk in [0, 1, 2048, 3 * KIB_4] {
        let outcome = guest.stage2.split(range(BASE, GIB), chunk, &mut guest.pool, |_, _| panic!("nothing to do"));
        assert_eq!(outcome, Err(Error::Chunk { size: chunk, least: KIB_4 }));
    }
}

#[test]
fn a_split_waits_once_for_each_block_and_not_for_each_part() {
    let mut guest = guest(HINTS);
    (0..3).for_each(|at| map(&mut guest, BASE + at * MIB_2, frame(at * MIB_2), Level::L2, &RAM));
    guest.watch(BASE);
    let _ = split(&mut guest, range(BASE, 3 * MIB_2), GIB);
    let events = guest.events();
    assert_eq!(events.iter().filter(|event| is_break(event)).count(), 1, "of the one that is watched");
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Tlbi(Tlbi::Ipas2Le1Is, _))).count(), 3);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Tlbi(..))).count(), 6);
}

/// The most pages that a chunk needs: one for each level 2 and level 1 block that it touches.
#[test]
fn the_number_of_pages_a_chunk_can_take_is_reported() {
    let asked = |ipa_bits: u32, base: Ipa, level: Level, range: IpaRange| {
        let mut guest = Guest::new(HINTS, ipa_bits);
        map(&mut guest, base, frame(0), level, &RAM);
        if level == Level::L2 {
            map(&mut guest, base + MIB_2, frame(MIB_2), level, &RAM);
        }
        let mut asked = Vec::new();
        let between = |_: &mut Pool, pages| {
            asked.push(pages);
            ControlFlow::Break(())
        };
        let split = guest.stage2.split(range, GIB, &mut guest.pool, between).unwrap();
        assert_eq!(split.stopped, Some(Stopped::Asked));
        asked
    };
    assert_eq!(asked(IPA_BITS, BASE, Level::L1, range(BASE, GIB)), [513]);
    assert_eq!(asked(IPA_BITS, BASE, Level::L1, range(BASE + 5 * KIB_4, KIB_4)), [2]);
    assert_eq!(asked(IPA_BITS, BASE, Level::L1, range(BASE + (5 * MIB_2 - KIB_4), 2 * KIB_4)), [3]);
    assert_eq!(asked(IPA_BITS, BASE, Level::L2, range(BASE, 2 * MIB_2)), [3]);
    // The root is of level 2 there, so no level 1 block can be.
    let base = Ipa::new(GIB);
    assert_eq!(asked(32, base, Level::L2, range(base, 2 * MIB_2)), [2]);
    assert_eq!(asked(32, base, Level::L2, range(base + KIB_4, KIB_4)), [1]);
}

/// If a range has only a part of a block, at its start, at its end or between, the block is split around that part,
/// however many pages there are.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_part_of_a_large_block_takes_two_pages() {
    for (start, size, chunk, number) in [
        (3 * MIB_2, KIB_4, KIB_4, 3),
        (3 * MIB_2, MIB_2, GIB, 3),
        (0, MIB_2, GIB, 0),
        (0, MIB_2, MIB_2, 0),
        (GIB - MIB_2, MIB_2, GIB, 511),
    ] {
        let mut guest = Guest::with_pages(HINTS, IPA_BITS, 520);
        map(&mut guest, BASE, frame(0), Level::L1, &RAM);
        let out = guest.pool.out.len();
        assert_eq!(split(&mut guest, range(BASE + start, size), chunk), done(2, BASE + start + size));
        assert_eq!(guest.pool.out.len(), out + 2);
        for leaf in guest.scan().leaves {
            assert_eq!(leaf.level == 3, (leaf.ipa - BASE) / MIB_2 == number, "{leaf:x?}");
        }
    }
}

/// The tables that were filled before the pages ran out are all given back, from the first to the last.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_large_block_that_pages_do_not_suffice_for_is_split_with_all_there_are() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    guest.pool.limit = 4;
    let outcome = split(&mut guest, range(BASE, GIB), GIB);
    assert_eq!(outcome, Split { blocks: 4, done: BASE + 3 * MIB_2, stopped: Some(Stopped::Dry) });
    let links = guest.scan().links.into_iter().map(|link| link.table).collect();
    assert_eq!((guest.pool.out.len(), &guest.pool.out), (4, &links));
}

/// Blocks are found after the end of a table, inside it, and below tables that hold only tables. None is found before
/// the range.
#[test]
fn blocks_are_found_in_every_table() {
    for ipa_bits in [IPA_BITS, 48] {
        let mut guest = Guest::new(HINTS, ipa_bits);
        for number in [0, 512, 1025] {
            map(&mut guest, BASE + number * MIB_2, frame(number * MIB_2), Level::L2, &RAM);
        }
        let part = BASE + MIB_2..BASE + 3 * GIB;
        assert_eq!(split(&mut guest, part.clone(), GIB), done(2, part.end), "{ipa_bits} bits");
        let leaves = guest.scan().leaves;
        assert_eq!(leaves.len(), 1 + 2 * 512);
        assert!(leaves.iter().all(|leaf| (leaf.level == 3) == part.contains(&leaf.ipa)));
    }
}

/// Hardware records a write in a block during its split: all its pages have the record, each with its own frame.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_record_at_the_last_moment_is_in_each_page() {
    for (level, pages) in [(Level::L1, 513), (Level::L1, 2), (Level::L2, 1)] {
        let mut guest = Guest::with_pages(HINTS, IPA_BITS, 600);
        map(&mut guest, BASE, frame(0), level, &CLEAN);
        guest.pool.limit = pages;
        let (machine, entry) = (guest.machine.clone(), guest.walk(BASE).unwrap().entry);
        let raw = machine.read(entry);
        guest.machine.set_atomic_hook(move || {
            if machine.read(entry) == raw {
                machine.hardware_sets(entry, WRITABLE | ACCESSED);
            }
        });
        let size = if level == Level::L1 { GIB } else { MIB_2 };
        let _ = split(&mut guest, range(BASE, size), GIB);
        guest.machine.set_atomic_hook(|| ());
        for offset in (0..size).step_by(MIB_2 as usize / 4 + KIB_4 as usize) {
            let leaf = guest.walk(BASE + offset).unwrap();
            assert_eq!(leaf.output(BASE + offset), frame(offset), "{level:?} with {pages} pages, at {offset:#x}");
            assert!(leaf.access().write && leaf.accessed());
        }
    }
}

/// With FEAT_LPA2. To its pages it would take a quarter of a million tables, so none is tried: the next level is enough. Its
/// blocks of 1 GiB are split to pages.
#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_block_of_512_gib_is_split_to_the_next_level() {
    let features = PLAIN.with_forced_write_back(true).with_lpa2_4k(true).with_pa_bits(52);
    let mut guest = Guest::of(Kib4Lpa2, features, 48, 514);
    guest.pool.limit = 514;
    let first = Ipa::new(512 * GIB);
    map(&mut guest, first, Pa::new(1 << 50), Level::L0, &RAM);
    let split =
        guest.stage2.split(range(first, 512 * GIB), 512 * GIB, &mut guest.pool, |_, _| ControlFlow::Continue(()));
    assert_eq!(split, Ok(Split { blocks: 2, done: first + GIB, stopped: Some(Stopped::Dry) }));
    let events = guest.events();
    assert!(!events.iter().any(|event| matches!(event, Event::Give(_))));
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Take(_))).count(), 514);
    let levels = [first, first + GIB].map(|ipa| guest.stage2.look_up(ipa).unwrap().level);
    assert_eq!(levels, [Level::L3, Level::L1]);
}
