// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Coalescing: clean, break, flush, make. Only then are the old tables read, and freed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Coalesced, Error, Kib4Lpa2, Leaf, Memory, Shareability};

const WRITABLE: u64 = 1 << 7;
const RW: Access = Access::READ_WRITE;
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
const NO_FWB: Features = RANGES.with_forced_write_back(false);

fn coalesce(guest: &mut Guest, ipa: Ipa, level: Level, attributes: &Attributes) -> (Coalesced, Vec<Leaf>) {
    let mut reported = Vec::new();
    let dirty = &mut |leaf| reported.push(leaf);
    let pa = frame(ipa - BASE);
    let outcome = guest.stage2.coalesce(ipa, pa, level, attributes, &mut guest.pool, dirty);
    (outcome.unwrap(), reported)
}

fn done(tables: u64) -> (Coalesced, Vec<Leaf>) {
    (Coalesced::Done { tables }, vec![])
}

/// The flush of a table that maps `size` bytes, with its walk entries.
fn by_table(size: u64) -> Vec<Event> {
    by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + size, None))])
}

/// Maps all pages of a block in one call.
fn map_full(guest: &mut Guest, ipa: Ipa, attributes: &Attributes) {
    let range = range(ipa, MIB_2);
    guest.stage2.map_range(range, frame(ipa - BASE), Level::L3, attributes, &mut guest.pool).unwrap();
    guest.events();
}

fn unmap(guest: &mut Guest, range: IpaRange) {
    let pending = guest.stage2.unmap(range, &mut guest.pool, twofold_stage2::Unwatched).unwrap();
    pending.complete().free(&mut guest.pool);
}

#[test]
fn the_block_is_made_when_the_flush_is_complete_and_the_table_freed_after_that() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 4);
    let (mapped, free) = (BASE, BASE + 9 * KIB_4);
    guest.watch(mapped);
    guest.watch(free);
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &RAM), done(1));
    let expected = [
        vec![sees_nothing(mapped)],
        by_table(MIB_2),
        vec![sees(mapped, 2, frame(0), RW), sees(free, 2, frame(9 * KIB_4), RW), Event::Dsb(Domain::IshSt)],
        vec![Event::Give(table(1))],
    ];
    assert_eq!(guest.events(), expected.concat());
}

/// A level 2 table goes with the tables in it. Its blocks and pages become one block.
#[test]
fn a_block_of_1_gib_takes_the_place_of_all_that_is_below() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 1);
    map_full(&mut guest, BASE + MIB_2, &RAM);
    map(&mut guest, BASE + 2 * MIB_2, frame(2 * MIB_2), Level::L2, &RAM);
    guest.watch(BASE + MIB_2);
    assert_eq!(coalesce(&mut guest, BASE, Level::L1, &RAM), done(3));
    let events = guest.events();
    let (begin, frees) = events.split_at(events.len() - 3);
    let made = vec![sees(BASE + MIB_2, 1, frame(MIB_2), RW), Event::Dsb(Domain::IshSt)];
    assert_eq!(begin, [vec![sees_nothing(BASE + MIB_2)], by_table(GIB), made].concat());
    assert!(frees.iter().all(|event| matches!(event, Event::Give(_))), "{frees:x?}");
    assert!(guest.pool.out.is_empty());
    assert_eq!(guest.scan().leaves.len(), 1);
}

/// To unlock 512 tables takes as long as a flush (C5 before C6). The guest would fault meanwhile.
#[test]
fn the_tables_below_are_unlocked_when_the_block_is_made() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 1);
    map_full(&mut guest, BASE + MIB_2, &RAM);
    // The table of level 2, and two of level 3.
    let tables = [0, 1, 2].map(table);
    guest.watch(BASE);
    let (machine, moments) = (guest.machine.clone(), Rc::<RefCell<Vec<_>>>::default());
    let seen = moments.clone();
    guest.machine.set_hook(move |event, _| {
        let is_made = machine.mmu().translate(&|pa| machine.read(pa), BASE).is_ok();
        seen.borrow_mut().push((event.clone(), is_made, tables.map(|table| machine.is_locked(table))));
    });
    assert_eq!(coalesce(&mut guest, BASE, Level::L1, &RAM), done(3));
    // C4, C5, and the barrier after it: all are locked. C7: none is.
    let while_locked = [by_table(GIB), vec![Event::Dsb(Domain::IshSt)]].concat();
    let last = while_locked.len() - 1;
    for (number, (event, is_made, locked)) in moments.borrow().iter().enumerate() {
        let expected = (while_locked.get(number), number >= last, [number <= last; 3]);
        assert_eq!((Some(event).filter(|_| number <= last), *is_made, *locked), expected);
    }
    assert_eq!(moments.borrow().len(), while_locked.len() + 3);
}

/// The posted combined dirty log (Kolothum 2023) reads dirty state before the break, and loses what is written through
/// a TLB until the flush ends. Here hardware writes at each step of the flush.
#[test]
fn what_hardware_records_until_the_end_of_the_flush_is_reported() {
    for last_step in [Event::Dsb(Domain::IshSt), Event::Tlbi(Tlbi::VmallE1Is, Reach::Vmid)] {
        let mut guest = guest(RANGES);
        for page in [0, 1, 2, 511] {
            map(&mut guest, BASE + page * KIB_4, frame(page * KIB_4), Level::L3, &CLEAN);
        }
        let before = guest.walk(BASE + KIB_4).unwrap().entry;
        guest.machine.hardware_sets(before, WRITABLE);
        let (machine, entry) = (guest.machine.clone(), guest.walk(BASE + 511 * KIB_4).unwrap().entry);
        let written = Rc::new(Cell::new(false));
        let is_written = written.clone();
        guest.machine.set_hook(move |event, _| {
            if *event == last_step && !is_written.replace(true) {
                machine.hardware_sets(entry, WRITABLE);
            }
        });
        let (outcome, reported) = coalesce(&mut guest, BASE, Level::L2, &CLEAN);
        assert_eq!(outcome, Coalesced::Done { tables: 1 });
        assert!(reported.iter().all(|leaf| leaf.descriptor.is_hardware_dirty() && leaf.level == Level::L3));
        let reported: Vec<_> = reported.iter().map(|leaf| (leaf.ipa, leaf.descriptor.address())).collect();
        assert_eq!(reported, [1, 511].map(|page| (BASE + page * KIB_4, frame(page * KIB_4))));
        assert!(!guest.walk(BASE).unwrap().access().write, "the block is as it was asked for");
    }
}

#[test]
fn writes_that_hardware_does_not_record_are_not_reported() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 2);
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &CLEAN), done(1));
}

/// Each page was cleaned when it was mapped, and the guest has used it since.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn what_is_fully_mapped_is_not_cleaned_again() {
    let mut guest = guest(NO_FWB);
    map_full(&mut guest, BASE, &RAM);
    guest.watch(BASE);
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &RAM), done(1));
    let made = vec![sees(BASE, 2, frame(0), RW), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
    assert_eq!(guest.events(), [vec![sees_nothing(BASE)], by_table(MIB_2), made].concat());
}

/// The tables below are searched too: cleaning 1 GiB takes far longer than reading its tables.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn what_is_fully_mapped_by_tables_is_not_cleaned_again() {
    let cleaned = |memory: Memory, missing: bool| {
        let mut guest = guest(NO_FWB);
        map_full(&mut guest, BASE, &Attributes { memory, ..RAM });
        let blocks = range(BASE + MIB_2, GIB - MIB_2);
        guest.stage2.map_range(blocks, frame(MIB_2), Level::L2, &RAM, &mut guest.pool).unwrap();
        if missing {
            unmap(&mut guest, range(BASE + 5 * KIB_4, KIB_4));
        }
        guest.events();
        guest.watch(BASE);
        assert_eq!(coalesce(&mut guest, BASE, Level::L1, &RAM), done(2));
        guest.events()
    };
    let with_cleaning = |before: &[Event], after: &[Event]| {
        let broken = [vec![sees_nothing(BASE)], by_table(GIB)].concat();
        let made =
            [sees(BASE, 1, frame(0), RW), Event::Dsb(Domain::IshSt), Event::Give(table(1)), Event::Give(table(0))];
        [before, &broken, after, &made].concat()
    };
    assert_eq!(cleaned(Memory::Normal, false), with_cleaning(&[], &[]));
    let page = [Event::Clean(frame(5 * KIB_4), KIB_4), Event::Dsb(Domain::Ish)];
    assert_eq!(cleaned(Memory::Normal, true), with_cleaning(&page, &[]));
    // Cleaned again after the flush: until then the guest may have written past the caches.
    let pages = [Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
    assert_eq!(cleaned(Memory::NonCacheable, false), with_cleaning(&pages, &pages));
}

#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn what_is_not_mapped_is_cleaned_before_the_break() {
    // The first and the last page, a single one, and three in a row.
    let holes = [(0, 1), (7, 1), (100, 3), (511, 1)].map(|(page, pages)| (page * KIB_4, pages * KIB_4));
    let mut guest = guest(NO_FWB);
    map_full(&mut guest, BASE, &RAM);
    holes.iter().for_each(|(at, size)| unmap(&mut guest, range(BASE + *at, *size)));
    let mapped = BASE + KIB_4;
    guest.watch(mapped);
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &RAM), done(1));
    let cleaned = holes.map(|(at, size)| Event::Clean(frame(at), size));
    let cleaned = [&cleaned[..], &[Event::Dsb(Domain::Ish)]].concat();
    let broken = [vec![sees_nothing(mapped)], by_table(MIB_2)].concat();
    let made = vec![sees(mapped, 2, frame(KIB_4), RW), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
    assert_eq!(guest.events(), [cleaned, broken, made].concat());
}

/// If a table below has no page left, or there is no table, the hole is as long as the entry, and joins the next hole.
#[test]
fn holes_of_each_level_are_cleaned() {
    let mut guest = guest(NO_FWB);
    map_pages(&mut guest, BASE + 3 * MIB_2, frame(3 * MIB_2), 1);
    map(&mut guest, BASE + 4 * MIB_2, frame(4 * MIB_2), Level::L2, &RAM);
    guest.events();
    assert_eq!(coalesce(&mut guest, BASE, Level::L1, &RAM), done(2));
    let cleaned = guest.events().into_iter().filter(|event| matches!(event, Event::Clean(..)));
    let holes = [(0, 3 * MIB_2), (3 * MIB_2 + KIB_4, MIB_2 - KIB_4), (5 * MIB_2, GIB - 5 * MIB_2)];
    assert_eq!(cleaned.collect::<Vec<_>>(), holes.map(|(at, size)| Event::Clean(frame(at), size)));
}

/// The pages were cleaned for another type; with FEAT_S2FWB, normal memory was not cleaned at all. They are cleaned
/// again after the flush: until then the guest may have written past the caches. A block of a device needs no cleaning
/// before. What its pages left in caches is cleaned after the flush.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn pages_of_another_type_were_not_cleaned_for_this_one() {
    for (features, of_pages, of_block) in [
        (RANGES, Memory::Normal, Memory::NonCacheable),
        (NO_FWB, Memory::Device, Memory::Normal),
        (RANGES, Memory::Normal, Memory::Device),
        (NO_FWB, Memory::Normal, Memory::Device),
    ] {
        let mut guest = guest(features);
        map_full(&mut guest, BASE, &Attributes { memory: of_pages, ..RAM });
        let block = Attributes { memory: of_block, ..RAM };
        guest.watch(BASE);
        assert_eq!(coalesce(&mut guest, BASE, Level::L2, &block), done(1));
        let cleaned = vec![Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
        let made_ready = if of_block == Memory::Device { vec![] } else { cleaned.clone() };
        let flushed = [vec![sees_nothing(BASE)], by_table(MIB_2)].concat();
        let made = vec![sees(BASE, 2, frame(0), RW), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
        assert_eq!(guest.events(), [made_ready, flushed, cleaned, made].concat(), "{of_pages:?} becomes {of_block:?}");
    }
}

/// Lines that were cached with another shareability are cleaned like those of another type.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn pages_of_another_shareability_are_cleaned_as_those_of_another_type() {
    let mut guest = guest(NO_FWB);
    map_full(&mut guest, BASE, &Attributes { shareability: Shareability::OuterShareable, ..RAM });
    guest.watch(BASE);
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &RAM), done(1));
    let cleaned = vec![Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
    let flushed = [vec![sees_nothing(BASE)], by_table(MIB_2)].concat();
    let made = vec![sees(BASE, 2, frame(0), RW), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
    assert_eq!(guest.events(), [cleaned.clone(), flushed, cleaned, made].concat());
}

/// For every pair of types: between flush and make, no cached line is left that could be written back, and none that
/// hides what was written past the caches.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn a_page_of_another_type_is_cleaned_between_break_and_make() {
    const TYPES: [Memory; 3] = [Memory::Normal, Memory::NonCacheable, Memory::Device];
    for features in [RANGES, NO_FWB] {
        for (of_page, of_block) in TYPES.into_iter().flat_map(|page| TYPES.map(|block| (page, block))) {
            let context = format!("{of_page:?} becomes {of_block:?}, FWB {}", features.forced_write_back);
            let mut guest = guest(features);
            let block = Attributes { memory: of_block, ..RAM };
            map_full(&mut guest, BASE, &block);
            unmap(&mut guest, range(BASE + 5 * KIB_4, KIB_4));
            let page = Attributes { memory: of_page, ..RAM };
            map(&mut guest, BASE + 5 * KIB_4, frame(5 * KIB_4), Level::L3, &page);
            guest.watch(BASE);
            assert_eq!(coalesce(&mut guest, BASE, Level::L2, &block), done(1), "{context}");
            let events = guest.events();
            let flushed = events.iter().position(|event| *event == Event::Isb).expect("a flush");
            let changes = if of_page == of_block {
                vec![]
            } else {
                vec![Event::Clean(frame(5 * KIB_4), KIB_4), Event::Dsb(Domain::Ish)]
            };
            let made = [sees(BASE, 2, frame(0), RW), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
            assert_eq!(events[flushed + 1..], [&changes[..], &made].concat(), "{context}");
        }
    }
}

/// A coalesce of 1 GiB finds the page in a table two levels below.
#[test]
fn a_page_of_another_type_is_found_in_a_table_below() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 2);
    let page = Attributes { memory: Memory::NonCacheable, ..RAM };
    map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L3, &page);
    assert_eq!(coalesce(&mut guest, BASE, Level::L1, &RAM), done(3));
    let cleaned = guest.events().into_iter().filter(|event| matches!(event, Event::Clean(..)));
    assert_eq!(cleaned.collect::<Vec<_>>(), [Event::Clean(frame(MIB_2), KIB_4)]);
}

/// A device has no cache lines, and outside these tests not even a pointer.
#[test]
fn a_device_is_never_cleaned() {
    let mut guest = guest(NO_FWB);
    let device = Attributes::device();
    map(&mut guest, BASE, Pa::new(0x0800_0000), Level::L3, &device);
    guest.watch(BASE);
    let uart = Pa::new(0x0800_0000);
    let outcome =
        guest.stage2.coalesce(BASE, uart, Level::L2, &device, &mut guest.pool, &mut |leaf| panic!("{leaf:?}"));
    assert_eq!(outcome, Ok(Coalesced::Done { tables: 1 }));
    let made = vec![sees(BASE, 2, uart, RW), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
    assert_eq!(guest.events(), [vec![sees_nothing(BASE)], by_table(MIB_2), made].concat());
}

/// A coalesce leaves no mark of its claim in the record of the table's page.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn a_table_page_that_was_coalesced_is_used_and_coalesced_again() {
    let mut guest = guest(NO_FWB);
    for at in 0..3 {
        let ipa = BASE + at * MIB_2;
        map_full(&mut guest, ipa, &RAM);
        assert_eq!(coalesce(&mut guest, ipa, Level::L2, &RAM), done(1));
    }
    // A page of a table that was unlinked together with its parent.
    let _ = coalesce(&mut guest, BASE, Level::L1, &RAM);
    map_full(&mut guest, BASE + GIB, &RAM);
    assert_eq!(coalesce(&mut guest, BASE + GIB, Level::L2, &RAM), done(1));
}

#[test]
fn where_no_table_is_it_is_a_mapping() {
    let mut guest = guest(HINTS);
    let outcome = coalesce(&mut guest, BASE, Level::L2, &RAM).0;
    assert_eq!(outcome, Coalesced::Mapped(Mapped::New));
    guest.events();
    let entry = guest.stage2.look_up(BASE).unwrap().descriptor;
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &RAM).0, Coalesced::Mapped(Mapped::Already(entry)));
    assert_eq!(guest.events(), []);
}

/// With FEAT_LPA2. Smaller blocks replace tables there, too.
#[test]
fn a_block_of_512_gib_replaces_no_table() {
    const SIZE: u64 = 512 * GIB;
    let mut guest = Guest::of(Kib4Lpa2, HINTS.with_lpa2_4k(true).with_pa_bits(52), 48, 24);
    let Guest { stage2, pool, .. } = &mut guest;
    let (first, second) = (Ipa::new(SIZE), Ipa::new(2 * SIZE));
    let mut coalesce = |ipa: Ipa, level| {
        let pa = Pa::new(1 << 50) + (ipa - first);
        stage2.coalesce(ipa, pa, level, &RAM, pool, &mut |leaf| panic!("{leaf:?}"))
    };
    assert_eq!(coalesce(first, Level::L0), Ok(Coalesced::Mapped(Mapped::New)));
    assert_eq!(coalesce(second, Level::L3), Err(Error::NoLeafAtLevel { level: Level::L3 }));
    assert_eq!(coalesce(second, Level::L2), Ok(Coalesced::Mapped(Mapped::New)));
    let in_the_way = Error::TableInTheWay { ipa: second, level: Level::L0 };
    assert_eq!(coalesce(second, Level::L0), Err(in_the_way));
    assert_eq!(coalesce(second, Level::L1), Ok(Coalesced::Done { tables: 1 }));
    assert_eq!(coalesce(second, Level::L0), Err(in_the_way));
    let levels = [first, second].map(|ipa| guest.stage2.look_up(ipa).unwrap().level);
    assert_eq!(levels, [Level::L0, Level::L1]);
}

/// Code is invalidated once, before the break.
#[test]
fn executable_memory_is_made_ready_before_the_break() {
    let mut guest = guest(RANGES.with_instruction_cache_pipt(true));
    map_pages(&mut guest, BASE, frame(0), 1);
    guest.watch(BASE);
    assert_eq!(coalesce(&mut guest, BASE, Level::L2, &Attributes::ram(Access::ALL)), done(1));
    let code = vec![Event::Dsb(Domain::Ish), Event::InvalidateCode(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
    let made = vec![sees(BASE, 2, frame(0), Access::ALL), Event::Dsb(Domain::IshSt), Event::Give(table(1))];
    assert_eq!(guest.events(), [code, vec![sees_nothing(BASE)], by_table(MIB_2), made].concat());
}

/// The memory type of the old pages is forgotten, and that of the block is kept. When the block goes, non-cacheable
/// memory is cleaned. Memory that FEAT_S2FWB forces to be cached is not cleaned, nor flushed before its `Pending` is
/// complete.
#[test]
fn a_coalesced_block_is_cleaned_when_it_goes_if_it_has_to_be() {
    for memory in [Memory::NonCacheable, Memory::Normal] {
        let mut guest = guest(HINTS);
        map_full(&mut guest, BASE, &RAM);
        // Keeps the level 2 table linked.
        map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
        assert_eq!(coalesce(&mut guest, BASE, Level::L2, &Attributes { memory, ..RAM }), done(1));
        guest.events();
        let removed = |_: twofold_stage2::Broken| ();
        let pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, removed).unwrap();
        let before = guest.machine.events();
        let _ = pending.complete();
        let after = guest.machine.events();
        let cleaned = vec![Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
        let flush = by_leaf(BASE, Some(2));
        let expected = match memory {
            Memory::NonCacheable => ([flush, cleaned].concat(), vec![]),
            _ => (vec![], flush),
        };
        assert_eq!((before, after), expected, "{memory:?}");
    }
}
