// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping where nothing is mapped: cache maintenance, tables, the entry, one barrier, and no TLB invalidation.

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Error, Memory};

/// Each table is made visible when it is linked: another CPU may map below it at once.
const TAKE_TWO: [Event; 4] = [
    Event::Take(Pa::new(0x8_4001_0000)),
    Event::Dsb(Domain::IshSt),
    Event::Take(Pa::new(0x8_4001_1000)),
    Event::Dsb(Domain::IshSt),
];
const CLEAN: [Event; 2] = [Event::Clean(Pa::new(0x10_0000_0000), KIB_4), Event::Dsb(Domain::Ish)];
/// Instruction fetches after the map must see what was written before it.
const CODE: [Event; 3] =
    [Event::Dsb(Domain::Ish), Event::InvalidateCode(Pa::new(0x10_0000_0000), KIB_4), Event::Dsb(Domain::Ish)];
const ALL_CODE: [Event; 3] = [Event::Dsb(Domain::Ish), Event::InvalidateAllCode, Event::Dsb(Domain::Ish)];

const FWB: Features = PLAIN.with_forced_write_back(true);
const PIPT: Features = PLAIN.with_instruction_cache_pipt(true);
const DIC: Features = PIPT.with_instruction_cache_coherent(true);

/// Checks the events of mapping a page into an empty tree: two tables, this maintenance, the entry, a barrier.
#[track_caller]
fn maps_with(features: Features, attributes: Attributes, maintenance: &[&[Event]]) {
    let mut guest = guest(features);
    guest.watch(BASE);
    let outcome = guest.stage2.map(BASE, frame(0), Level::L3, &attributes, &mut guest.pool);
    assert_eq!(outcome, Ok(Mapped::New));
    let expected = [
        &TAKE_TWO[..],
        &maintenance.concat(),
        &[sees(BASE, 3, frame(0), attributes.access), Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());
}

#[test]
fn data_is_cleaned_before_the_entry_is_made() {
    maps_with(PLAIN, RAM, &[&CLEAN]);
}

#[test]
fn code_is_cleaned_then_invalidated() {
    let all = Attributes::ram(Access::ALL);
    maps_with(PIPT, all, &[&CLEAN, &CODE]);
    maps_with(PLAIN, all, &[&CLEAN, &ALL_CODE]);
}

#[test]
fn forced_write_back_saves_the_cleaning() {
    maps_with(FWB, RAM, &[]);
    maps_with(FWB, Attributes::ram(Access::ALL), &[&ALL_CODE]);
}

#[test]
fn dic_saves_the_instruction_side() {
    maps_with(DIC, Attributes::ram(Access::ALL), &[&CLEAN]);
    maps_with(DIC.with_forced_write_back(true), Attributes::ram(Access::ALL), &[]);
}

/// A dirty line would overwrite what the guest writes past the cache, and FEAT_S2FWB does not reach this type.
#[test]
fn memory_that_is_not_cached_is_cleaned_always() {
    let memory = Memory::NonCacheable;
    maps_with(PIPT, Attributes { memory, ..RAM }, &[&CLEAN]);
    maps_with(PIPT, Attributes { memory, ..Attributes::ram(Access::ALL) }, &[&CLEAN, &CODE]);
    maps_with(FWB, Attributes { memory, ..RAM }, &[&CLEAN]);
}

/// Device addresses are mapped nowhere: a request for a pointer would panic.
#[test]
fn devices_are_left_alone_by_cache_maintenance() {
    let uart = Pa::new(0x0900_0000);
    let executable = Attributes { access: Access::ALL, ..Attributes::device() };
    for (features, attributes) in [(PLAIN, Attributes::device()), (PLAIN, executable), (PIPT, executable)] {
        let mut guest = guest(features);
        assert_eq!(guest.stage2.map(BASE, uart, Level::L3, &attributes, &mut guest.pool), Ok(Mapped::New));
        assert_eq!(guest.events(), [&TAKE_TWO[..], &[Event::Dsb(Domain::IshSt)]].concat());
        assert_eq!(guest.walk(BASE).unwrap().pa(), uart);
    }
}

/// The address field of an invalid entry is 0 too.
#[test]
fn what_is_not_mapped_is_not_mapped_to_0() {
    let mut guest = guest(PLAIN);
    map(&mut guest, BASE + KIB_4, Pa::new(KIB_4), Level::L3, &Attributes::device());
    map(&mut guest, BASE, Pa::new(0), Level::L3, &Attributes::device());
    assert_eq!(guest.walk(BASE).unwrap().pa(), Pa::new(0));
}

#[test]
fn a_block_is_maintained_as_a_whole() {
    let mut guest = guest(PIPT);
    guest.watch(BASE);
    let attributes = Attributes::ram(Access::ALL);
    assert_eq!(guest.stage2.map(BASE, frame(0), Level::L2, &attributes, &mut guest.pool), Ok(Mapped::New));
    let expected = [
        &TAKE_TWO[..2],
        &[Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)],
        &[Event::Dsb(Domain::Ish), Event::InvalidateCode(frame(0), MIB_2), Event::Dsb(Domain::Ish)],
        &[sees(BASE, 2, frame(0), Access::ALL), Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());
}

/// Instruction caches may have other line sizes than data caches. No line is left out, and none is invalidated twice.
#[test]
fn code_is_invalidated_by_its_own_lines() {
    for (data_line, instruction_line) in [(128, 64), (64, 128)] {
        let features = PIPT.with_data_line(data_line).with_instruction_line(instruction_line);
        maps_with(features, Attributes::ram(Access::ALL), &[&CLEAN, &CODE]);
    }
}

/// The limit is a number of lines: 1024 lines of 2 KiB are a 2 MiB block, and twice as many are too many.
#[test]
fn beyond_the_limit_of_lines_all_code_is_invalidated() {
    let mut guest = guest(PIPT.with_instruction_line(1024).with_forced_write_back(true));
    let attributes = Attributes::ram(Access::ALL);
    assert_eq!(guest.stage2.map(BASE, frame(0), Level::L2, &attributes, &mut guest.pool), Ok(Mapped::New));
    let expected = [&TAKE_TWO[..2], &ALL_CODE, &[Event::Dsb(Domain::IshSt)]];
    assert_eq!(guest.events(), expected.concat());
}

/// A page from the source may hold anything. A walk at any instruction must not read its old content.
#[test]
fn tables_are_zeroed_before_they_are_linked() {
    let mut guest = guest(FWB.with_zero_block(512));
    guest.watch(BASE + KIB_4);
    assert_eq!(guest.stage2.map(BASE, frame(0), Level::L3, &RAM, &mut guest.pool), Ok(Mapped::New));
    let expected = [
        Event::Take(table(0)),
        Event::Zero(table(0), KIB_4),
        Event::Dsb(Domain::IshSt),
        Event::Take(table(1)),
        Event::Zero(table(1), KIB_4),
        Event::Dsb(Domain::IshSt),
        Event::Dsb(Domain::IshSt),
    ];
    assert_eq!(guest.events(), expected);
    assert_eq!(guest.scan().leaves.len(), 1);
}

/// The guest may run on empty tables, and fault.
#[test]
fn an_empty_root_is_zeroed_and_visible() {
    let guest = Guest::new(FWB.with_zero_block(512), IPA_BITS);
    assert_eq!(guest.events(), [Event::Zero(platform::memory::ROOT, 2 * KIB_4), Event::Dsb(Domain::IshSt)]);
    assert_eq!(guest.scan(), platform::mmu::Scan::default());
}

#[test]
fn a_second_page_takes_no_table() {
    let mut guest = guest(FWB);
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    let outcome = guest.stage2.map(BASE + KIB_4, frame(KIB_4), Level::L3, &RAM, &mut guest.pool);
    assert_eq!((outcome, guest.events()), (Ok(Mapped::New), vec![Event::Dsb(Domain::IshSt)]));
}

/// The fast path is for leaves that need no maintenance. Here the table is linked already, as for most faults.
#[test]
fn a_second_page_is_maintained_too() {
    let mut guest = guest(PIPT);
    map(&mut guest, BASE, frame(KIB_4), Level::L3, &RAM);
    let outcome = guest.stage2.map(BASE + KIB_4, frame(0), Level::L3, &Attributes::ram(Access::ALL), &mut guest.pool);
    assert_eq!(outcome, Ok(Mapped::New));
    assert_eq!(guest.events(), [&CLEAN[..], &CODE, &[Event::Dsb(Domain::IshSt)]].concat());
}

#[test]
fn what_is_mapped_already_is_not_touched() {
    let mut guest = guest(PLAIN);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let entry = guest.stage2.look_up(BASE).unwrap().descriptor;
    let exec = Attributes { software: 3, ..Attributes::ram(Access::ALL) };
    for (offset, level, attributes) in [(0, Level::L2, &RAM), (0, Level::L2, &exec), (0x5000, Level::L3, &exec)] {
        let outcome = guest.stage2.map(BASE + offset, frame(offset), level, attributes, &mut guest.pool);
        assert_eq!((outcome, guest.events()), (Ok(Mapped::Already(entry)), vec![]));
    }
}

#[test]
fn what_is_refused_leaves_no_trace() {
    let mut guest = guest(PLAIN);
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    let before = guest.scan();
    let (far, end) = (Ipa::new(1 << IPA_BITS), (1 << IPA_BITS) - KIB_4);
    for (ipa, pa, level, error) in [
        (BASE, frame(0), Level::L2, Error::TableInTheWay { ipa: BASE, level: Level::L2 }),
        (BASE, frame(0), Level::L1, Error::TableInTheWay { ipa: BASE, level: Level::L1 }),
        (BASE, frame(0), Level::L0, Error::NoLeafAtLevel { level: Level::L0 }),
        (BASE + KIB_4, frame(0), Level::L2, Error::Misaligned { address: (BASE + KIB_4).raw(), size: MIB_2 }),
        (BASE, frame(KIB_4), Level::L2, Error::Misaligned { address: frame(KIB_4).raw(), size: MIB_2 }),
        (BASE + 1, frame(0), Level::L3, Error::Misaligned { address: BASE.raw() + 1, size: KIB_4 }),
        (BASE, frame(1), Level::L3, Error::Misaligned { address: frame(1).raw(), size: KIB_4 }),
        (far, frame(0), Level::L3, Error::OutsideIpa { ipa: far, bits: IPA_BITS }),
        (Ipa::new(end), Pa::new(1 << 48), Level::L3, Error::OutsidePa { pa: Pa::new(1 << 48), bits: 48 }),
    ] {
        assert_eq!(guest.stage2.map(ipa, pa, level, &RAM, &mut guest.pool), Err(error));
        assert_eq!((guest.events(), guest.scan()), (vec![], before.clone()));
    }
}

/// No leaf is at level 0, or above the root's level.
#[test]
fn a_level_without_leaves_is_refused() {
    for (ipa_bits, level) in [(48, Level::L0), (32, Level::L1), (32, Level::L0)] {
        let mut guest = Guest::new(HINTS, ipa_bits);
        guest.events();
        let outcome = guest.stage2.map(Ipa::new(0), Pa::new(0), level, &RAM, &mut guest.pool);
        assert_eq!(outcome, Err(Error::NoLeafAtLevel { level }), "{ipa_bits} bits");
        assert_eq!((guest.events(), guest.scan().leaves), (vec![], vec![]));
    }
}
