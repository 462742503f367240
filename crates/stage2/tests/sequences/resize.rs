// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A block and a table replace each other in one step, on a CPU with FEAT_BBM level 2 that raises no conflict abort.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;

use super::*;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Coalesced, Leaf, Memory, Split, Unwatched};

const LIVE: Features = RANGES.with_bbm(2).with_no_conflict_abort(true);
const WRITABLE: u64 = 1 << 7;
const RW: Access = Access::READ_WRITE;
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };

fn split(guest: &mut Guest, range: IpaRange) -> Split {
    guest.stage2.split(range, GIB, &mut guest.pool, |_, _| ControlFlow::Continue(())).unwrap()
}

fn coalesce(guest: &mut Guest, attributes: &Attributes) -> Vec<Leaf> {
    let mut reported = Vec::new();
    let dirty = &mut |leaf| reported.push(leaf);
    let done = guest.stage2.coalesce(BASE, frame(0), Level::L2, attributes, &mut guest.pool, dirty);
    assert_eq!(done, Ok(Coalesced::Done { tables: 1 }));
    reported
}

/// All pages of a block.
fn map_full(guest: &mut Guest, attributes: &Attributes) {
    guest.stage2.map_range(range(BASE, MIB_2), frame(0), Level::L3, attributes, &mut guest.pool).unwrap();
    guest.events();
}

/// The guest finds the block, and then the page. Nothing is flushed.
#[test]
fn a_block_becomes_a_table_without_a_break_or_a_flush() {
    let mut guest = guest(LIVE);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let last = BASE + 511 * KIB_4;
    guest.watch(last);
    let done = split(&mut guest, range(BASE, MIB_2));
    assert_eq!(done, Split { blocks: 1, done: BASE + MIB_2, stopped: None });
    let page = sees(last, 3, frame(511 * KIB_4), RW);
    assert_eq!(guest.events(), [Event::Take(table(1)), page, Event::Dsb(Domain::IshSt)]);
    assert_eq!(guest.scan().leaves.len(), 512);
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of tables take too long there")]
fn a_block_of_1_gib_becomes_pages_without_a_flush() {
    let mut guest = Guest::with_pages(LIVE, IPA_BITS, 513);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    let done = split(&mut guest, range(BASE, GIB));
    assert_eq!(done, Split { blocks: 1, done: BASE + GIB, stopped: None });
    let events = guest.events();
    assert!(events[..513].iter().all(|event| matches!(event, Event::Take(_))));
    assert_eq!(events[513..], [Event::Dsb(Domain::IshSt)]);
    let scan = guest.scan();
    assert_eq!((scan.leaves.len(), scan.links.len()), (512 * 512, 513));
}

/// TLBs may still hold the block, which a hint of level 3 would miss. Before the first such split, hints are given.
#[test]
fn no_later_flush_names_a_level() {
    let mut guest = guest(LIVE);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L3, &RAM);
    let page = |at: Ipa| range(at, KIB_4);
    let flush = |guest: &Guest, at| {
        let _ = guest.stage2.write_protect(page(at)).unwrap().complete();
    };
    flush(&guest, BASE + MIB_2);
    assert_eq!(guest.events(), by_leaf(BASE + MIB_2, Some(3)));
    let _ = split(&mut guest, range(BASE, MIB_2));
    guest.events();
    flush(&guest, BASE);
    assert_eq!(guest.events(), by_leaf(BASE, None));
    let _ = guest.stage2.write_protect(range(BASE, MIB_2)).unwrap().complete();
    let events = guest.events();
    let named = |event: &Event, named: bool| matches!(event, Event::Tlbi(_, Reach::Range(_, _, level)) if level.is_some() == named);
    assert!(!events.iter().any(|event| named(event, true)), "{events:?}");
    assert!(events.iter().any(|event| named(event, false)), "{events:?}");
    // On this CPU only, for a page that may be written again.
    let _ = guest.stage2.relax(BASE, RW).unwrap();
    assert_eq!(guest.events(), on_this_cpu(BASE, None));
}

/// Hardware records in the block after the table was filled, and before the block is replaced: the pages have it.
#[test]
fn what_hardware_records_meanwhile_is_in_each_page() {
    for at in 1..=3 {
        let mut guest = guest(LIVE);
        map(&mut guest, BASE, frame(0), Level::L2, &CLEAN);
        let entry = guest.walk(BASE).unwrap().entry;
        let (machine, recorded) = (guest.machine.clone(), Rc::new(Cell::new(false)));
        let there = recorded.clone();
        guest.machine.before_atomic(at, move || {
            if machine.read(entry) & 0b11 == 0b01 {
                machine.hardware_sets(entry, WRITABLE);
                there.set(true);
            }
        });
        let _ = split(&mut guest, range(BASE, MIB_2));
        let writable = guest.scan().leaves.iter().filter(|leaf| leaf.raw & WRITABLE != 0).count();
        assert_eq!(writable, if recorded.get() { 512 } else { 0 }, "before atomic access {at}");
    }
}

/// The block is there before the flush. The table is freed, and its records are read, after it.
#[test]
fn a_full_table_becomes_a_block_without_a_break() {
    let mut guest = guest(LIVE);
    map_full(&mut guest, &CLEAN);
    guest.watch(BASE);
    let written = guest.walk(BASE + 5 * KIB_4).unwrap().entry;
    let machine = guest.machine.clone();
    // A TLB leads hardware to the old page until the flush is complete.
    guest.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(Tlbi::Ripas2E1Is, _)) {
            machine.hardware_sets(written, WRITABLE);
        }
    });
    let dirty: Vec<_> = coalesce(&mut guest, &CLEAN).iter().map(|leaf| leaf.ipa).collect();
    assert_eq!(dirty, [BASE + 5 * KIB_4]);
    let flush = by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]);
    let made = vec![sees(BASE, 2, frame(0), Access::READ)];
    assert_eq!(guest.events(), [made, flush, vec![Event::Give(table(1))]].concat());
}

/// The pages were cleaned for their type, and the block has the same one.
#[test]
fn a_full_table_of_any_memory_becomes_a_block_without_a_break() {
    for memory in [Memory::NonCacheable, Memory::Device] {
        let mut guest = guest(LIVE);
        let attributes = Attributes { memory, ..RAM };
        map_full(&mut guest, &attributes);
        guest.watch(BASE);
        coalesce(&mut guest, &attributes);
        let flush = by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]);
        let made = vec![sees(BASE, 2, frame(0), RW)];
        assert_eq!(guest.events(), [made, flush, vec![Event::Give(table(1))]].concat(), "{memory:?}");
        // The block is cleaned when it goes, if its type needs that.
        let pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, Unwatched).unwrap();
        pending.complete().free(&mut guest.pool);
        let is_cleaned = guest.events().contains(&Event::Clean(frame(0), MIB_2));
        assert_eq!(is_cleaned, memory == Memory::NonCacheable, "{memory:?}");
    }
}

/// The parent is locked while the old table may be in a TLB: no other CPU changes the block then.
#[test]
fn the_parent_is_locked_during_the_flush() {
    let mut guest = guest(LIVE);
    map_full(&mut guest, &RAM);
    let (machine, seen) = (guest.machine.clone(), Rc::new(Cell::new(0)));
    let count = seen.clone();
    guest.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(..) | Event::Dsb(_)) {
            assert!(machine.is_locked(table(0)) && machine.is_locked(table(1)), "{event:?}");
            count.set(count.get() + 1);
        }
    });
    coalesce(&mut guest, &RAM);
    assert_eq!(seen.get(), 5);
    assert!(!guest.machine.is_locked(table(0)) && !guest.machine.is_locked(table(1)));
}

/// Break-before-make, as without the feature, for a table that does not map the whole block, or not as the block does.
#[test]
fn a_table_that_maps_anything_else_is_broken_first() {
    type Change = fn(&mut Guest);
    let changes: [Change; 4] = [
        |guest| {
            let _ = guest.stage2.map(BASE, frame(3 * MIB_2), Level::L3, &RAM, &mut guest.pool).unwrap();
        },
        |guest| {
            let pending = guest.stage2.unmap(range(BASE + 7 * KIB_4, KIB_4), &mut guest.pool, Unwatched).unwrap();
            pending.complete().free(&mut guest.pool);
        },
        |guest| {
            let (last, other) = (BASE + 511 * KIB_4, frame(3 * MIB_2));
            let _ = guest.stage2.map(last, other, Level::L3, &RAM, &mut guest.pool).unwrap();
        },
        |guest| {
            let device = Attributes { memory: Memory::Device, ..RAM };
            let at = BASE + 2 * KIB_4;
            let _ = guest.stage2.map(at, frame(2 * KIB_4), Level::L3, &device, &mut guest.pool).unwrap();
        },
    ];
    for change in changes {
        let mut guest = guest(LIVE);
        map_full(&mut guest, &RAM);
        change(&mut guest);
        guest.events();
        guest.watch(BASE);
        coalesce(&mut guest, &RAM);
        let events = guest.events();
        assert!(events.contains(&sees_nothing(BASE)), "{events:?}");
    }
}

/// At level 1 a block had to be flushed twice, and at level 2 other CPUs raise conflict aborts.
#[test]
fn other_cpus_break_a_block() {
    for (bbm, no_conflict_abort) in [(0, true), (1, true), (2, false)] {
        let mut guest = guest(RANGES.with_bbm(bbm).with_no_conflict_abort(no_conflict_abort));
        map(&mut guest, BASE, frame(0), Level::L2, &RAM);
        guest.watch(BASE);
        let _ = split(&mut guest, range(BASE, MIB_2));
        let events = guest.events();
        assert!(events.contains(&sees_nothing(BASE)), "level {bbm}: {events:?}");
    }
}
