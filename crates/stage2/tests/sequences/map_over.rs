// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping where something else is mapped: break, flush, and only then make.

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Error, Memory};

const WRITABLE: u64 = 1 << 7;

#[test]
fn a_leaf_is_replaced_by_break_before_make() {
    // Longer lines for larger leaves, since each line is a call.
    for (level, size, data_line) in [(Level::L3, KIB_4, 64), (Level::L2, MIB_2, KIB_4), (Level::L1, GIB, MIB_2)] {
        let mut guest = guest(PLAIN.with_tlbi_level_hint(true).with_data_line(data_line));
        map(&mut guest, BASE, frame(0), level, &RAM);
        let old = guest.stage2.look_up(BASE).unwrap().descriptor;
        guest.watch(BASE);

        let outcome = guest.stage2.map(BASE, frame(GIB), level, &RAM, &mut guest.pool);

        assert_eq!(outcome, Ok(Mapped::Replaced(old)));
        let expected = [
            vec![sees_nothing(BASE)],
            by_leaf(BASE, Some(level.raw())),
            // The old frame, which the guest may have written past the caches, and the new one.
            vec![Event::Clean(frame(0), size), Event::Dsb(Domain::Ish)],
            vec![Event::Clean(frame(GIB), size), Event::Dsb(Domain::Ish)],
            vec![sees(BASE, level.raw(), frame(GIB), Access::READ_WRITE), Event::Dsb(Domain::IshSt)],
        ];
        assert_eq!(guest.events(), expected.concat());
    }
}

#[test]
fn another_memory_type_is_another_leaf() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    guest.watch(BASE);
    let attributes = Attributes { memory: Memory::NonCacheable, ..RAM };
    let outcome = guest.stage2.map(BASE, frame(0), Level::L3, &attributes, &mut guest.pool);
    assert!(matches!(outcome, Ok(Mapped::Replaced(_))));
    let cleaned = [Event::Clean(frame(0), KIB_4), Event::Dsb(Domain::Ish)];
    let made = [sees(BASE, 3, frame(0), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.events(), [&[sees_nothing(BASE)], &by_leaf(BASE, Some(3))[..], &cleaned, &made].concat());
    assert_eq!(guest.walk(BASE).unwrap().memory(true), Memory::NonCacheable);
}

/// For every pair of types at an address: no cached line is left that could be written back over the guest's memory,
/// and none that hides what was written past the caches.
#[test]
fn memory_of_another_type_is_cleaned_between_break_and_make() {
    const TYPES: [Memory; 3] = [Memory::Normal, Memory::NonCacheable, Memory::Device];
    for features in [HINTS, PLAIN.with_tlbi_level_hint(true)] {
        for (of_old, of_new) in TYPES.into_iter().flat_map(|old| TYPES.map(|new| (old, new))) {
            let mut guest = guest(features);
            let [old, new] = [of_old, of_new].map(|memory| Attributes { memory, ..RAM });
            map(&mut guest, BASE, frame(0), Level::L3, &old);
            guest.watch(BASE);
            let outcome = guest.stage2.map(BASE, frame(0), Level::L3, &new, &mut guest.pool);
            if of_old == of_new {
                assert!(matches!(outcome, Ok(Mapped::Already(_))));
                continue;
            }
            assert!(matches!(outcome, Ok(Mapped::Replaced(_))));
            let cleaned = [Event::Clean(frame(0), KIB_4), Event::Dsb(Domain::Ish)];
            let made = [sees(BASE, 3, frame(0), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
            let expected = [&[sees_nothing(BASE)], &by_leaf(BASE, Some(3))[..], &cleaned, &made].concat();
            assert_eq!(guest.events(), expected, "{of_old:?} becomes {of_new:?}");
        }
    }
}

/// The owner reads the old frame next.
#[test]
fn a_frame_that_was_not_cacheable_is_cleaned_when_another_takes_its_place() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &Attributes { memory: Memory::NonCacheable, ..RAM });
    guest.watch(BASE);
    assert!(matches!(guest.stage2.map(BASE, frame(GIB), Level::L3, &RAM, &mut guest.pool), Ok(Mapped::Replaced(_))));
    let cleaned = [Event::Clean(frame(0), KIB_4), Event::Dsb(Domain::Ish)];
    let made = [sees(BASE, 3, frame(GIB), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.events(), [&[sees_nothing(BASE)], &by_leaf(BASE, Some(3))[..], &cleaned, &made].concat());
}

#[test]
fn what_hardware_recorded_in_the_old_leaf_is_handed_over() {
    let mut guest = guest(HINTS);
    let clean = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    map(&mut guest, BASE, frame(0), Level::L3, &clean);
    guest.machine.hardware_sets(guest.walk(BASE).unwrap().entry, WRITABLE);
    match guest.stage2.map(BASE, frame(KIB_4), Level::L3, &clean, &mut guest.pool) {
        Ok(Mapped::Replaced(old)) => assert!(old.is_hardware_dirty()),
        other => panic!("{other:?}"),
    }
    assert!(!guest.stage2.look_up(BASE).unwrap().descriptor.is_hardware_dirty());
}

/// The block is broken, flushed, and replaced by 512 pages. Then one of the pages is replaced.
#[test]
fn a_block_is_split_by_break_before_make() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let (page, neighbour) = (BASE + 5 * KIB_4, BASE + 6 * KIB_4);
    guest.watch(page);
    guest.watch(neighbour);

    let outcome = guest.stage2.map(page, frame(GIB), Level::L3, &RAM, &mut guest.pool);

    assert!(matches!(outcome, Ok(Mapped::Replaced(old)) if old.address() == frame(5 * KIB_4)), "{outcome:?}");
    let rw = Access::READ_WRITE;
    let expected = [
        vec![Event::Take(table(1)), sees_nothing(page), sees_nothing(neighbour)],
        by_leaf(BASE, Some(2)),
        vec![sees(page, 3, frame(5 * KIB_4), rw), sees(neighbour, 3, frame(6 * KIB_4), rw)],
        vec![Event::Dsb(Domain::IshSt), sees_nothing(page)],
        by_leaf(page, Some(3)),
        vec![sees(page, 3, frame(GIB), Access::READ_WRITE), Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());
}

#[test]
fn a_large_block_is_split_level_by_level() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    let page = BASE + 3 * MIB_2;
    let (near, far) = (page + KIB_4, BASE);
    guest.watch(near);
    guest.watch(far);

    let outcome = guest.stage2.map(page, frame(GIB), Level::L3, &RAM, &mut guest.pool);

    assert!(matches!(outcome, Ok(Mapped::Replaced(old)) if old.address() == frame(3 * MIB_2)), "{outcome:?}");
    let rw = Access::READ_WRITE;
    let expected = [
        vec![Event::Take(table(0)), sees_nothing(near), sees_nothing(far)],
        by_leaf(BASE, Some(1)),
        // Both pages are mapped again as blocks of 2 MiB, before the second table is asked for.
        vec![sees(near, 2, frame(3 * MIB_2 + KIB_4), rw), sees(far, 2, frame(0), rw)],
        vec![Event::Dsb(Domain::IshSt), Event::Take(table(1)), sees_nothing(near)],
        by_leaf(page, Some(2)),
        vec![sees(near, 3, frame(3 * MIB_2 + KIB_4), rw), Event::Dsb(Domain::IshSt)],
        by_leaf(page, Some(3)),
        vec![Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());
    assert_eq!(guest.scan().leaves.len(), 511 + 512);
}

#[test]
fn the_parts_have_all_that_the_block_had() {
    let mut guest = guest(HINTS);
    let attributes = Attributes { dirty_by_hardware: true, software: 0b1010, ..Attributes::ram(Access::READ) };
    map(&mut guest, BASE, frame(0), Level::L2, &attributes);
    guest.machine.hardware_sets(guest.walk(BASE).unwrap().entry, WRITABLE);
    assert!(guest.stage2.map(BASE, frame(GIB), Level::L3, &RAM, &mut guest.pool).is_ok());

    let leaves = guest.scan().leaves;
    assert_eq!(leaves.len(), 512);
    for leaf in &leaves[1..] {
        assert_eq!((leaf.level, leaf.pa()), (3, frame(leaf.ipa - BASE)));
        assert_eq!((leaf.access(), leaf.accessed()), (Access::READ_WRITE, true));
        assert_eq!((leaf.dirty_by_hardware(), leaf.software()), (true, 0b1010));
        assert_eq!(leaf.memory(true), Memory::Normal);
    }
}

/// The right frame is mapped, with other attributes.
#[test]
fn a_part_of_another_memory_type_splits_the_block() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let attributes = Attributes { memory: Memory::NonCacheable, ..RAM };
    let outcome = guest.stage2.map(BASE, frame(0), Level::L3, &attributes, &mut guest.pool);
    assert!(matches!(outcome, Ok(Mapped::Replaced(_))), "{outcome:?}");
    assert_eq!(guest.walk(BASE).unwrap().memory(true), Memory::NonCacheable);
    assert_eq!(guest.walk(BASE + KIB_4).unwrap().memory(true), Memory::Normal);
}

/// The table page is taken before the block is broken.
#[test]
fn a_split_without_a_page_breaks_nothing() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L1, &RAM);
    let page = BASE + KIB_4;
    guest.watch(page);
    guest.pool.limit = 0;
    let outcome = guest.stage2.map(page, frame(GIB), Level::L3, &RAM, &mut guest.pool);
    assert_eq!(outcome, Err(Error::NoTablePage { ipa: BASE, level: Level::L2 }));
    assert_eq!(guest.events(), []);

    guest.pool.limit = 1;
    let outcome = guest.stage2.map(page, frame(GIB), Level::L3, &RAM, &mut guest.pool);
    assert_eq!(outcome, Err(Error::NoTablePage { ipa: BASE, level: Level::L3 }));
    let expected = [
        vec![Event::Take(table(0)), sees_nothing(page)],
        by_leaf(BASE, Some(1)),
        vec![sees(page, 2, frame(KIB_4), Access::READ_WRITE), Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());

    guest.pool.limit = 1;
    assert!(guest.stage2.map(page, frame(GIB), Level::L3, &RAM, &mut guest.pool).is_ok());
    assert_eq!(guest.walk(page).unwrap().pa(), frame(GIB));
}
