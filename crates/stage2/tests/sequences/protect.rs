// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write protection for dirty logging: of ranges and of masks, several at once. Also: what ageing and setting the
//! access flag do not need.

use super::*;
use crate::platform::{KIB_4, MIB_2, frame};
use twofold_stage2::{Error, Marked, Pending};

const WRITABLE: u64 = 1 << 7;
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };

fn writable(guest: &Guest, pages: u64) -> Vec<u64> {
    (0..pages).filter(|page| guest.walk(BASE + page * KIB_4).unwrap().access().write).collect()
}

fn mask(bits: &[u64]) -> u64 {
    bits.iter().fold(0, |mask, bit| mask | 1 << bit)
}

#[test]
fn a_mask_protects_its_pages_and_none_between() {
    for attributes in [RAM, Attributes { access: Access::READ_WRITE, ..CLEAN }] {
        let mut guest = guest(RANGES);
        for page in 0..70 {
            map(&mut guest, BASE + page * KIB_4, frame(page * KIB_4), Level::L3, &attributes);
        }
        let protected = [0, 1, 5, 40, 62, 63];
        let pending = guest.stage2.write_protect_mask(BASE, mask(&protected)).unwrap();
        guest.machine.events();
        let _ = pending.complete();
        let left: Vec<u64> = (0..70).filter(|page| !protected.contains(page)).collect();
        assert_eq!(writable(&guest, 70), left);
        assert!((0..70).all(|page| {
            let tracked = guest.walk(BASE + page * KIB_4).unwrap().dirty_by_hardware();
            tracked == (attributes.dirty_by_hardware && left.contains(&page))
        }));
        // One flush of the whole span is cheaper than one for each run.
        assert_eq!(guest.events(), by_ipa(&[(Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 64 * KIB_4, Some(3)))]));
    }
}

#[test]
fn a_mask_may_begin_anywhere_and_cross_tables() {
    let mut guest = guest(HINTS);
    let first = BASE + 500 * KIB_4;
    map_pages(&mut guest, first, frame(0), 64);
    let bits = [11, 12, 13];
    let _ = guest.stage2.write_protect_mask(first, mask(&bits)).unwrap().complete();
    for page in 0..64 {
        assert_eq!(guest.walk(first + page * KIB_4).unwrap().access().write, !bits.contains(&page), "{page}");
    }
}

#[test]
fn an_empty_mask_changes_nothing() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 2);
    // A block is protected as a whole if the mask selects any of its pages, and otherwise not at all.
    map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L2, &RAM);
    for first in [BASE, BASE + MIB_2] {
        let pending = guest.stage2.write_protect_mask(first, 0).unwrap();
        assert!(pending.is_empty());
        drop(pending);
        assert_eq!((guest.events(), writable(&guest, 2)), (vec![], vec![0, 1]));
        assert!(guest.walk(BASE + MIB_2).unwrap().access().write);
    }
}

#[test]
fn a_page_of_a_mask_that_is_in_a_block_protects_all_of_it() {
    for (first, bits) in [(0, [1]), (0, [63]), (5, [0]), (448, [2]), (511, [0])] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), Level::L2, &RAM);
        let _ = guest.stage2.write_protect_mask(BASE + first * KIB_4, mask(&bits)).unwrap().complete();
        assert!(!guest.walk(BASE).unwrap().access().write, "{first} and {bits:?}");
        assert_eq!(guest.events(), by_leaf(BASE, Some(2)));
    }
}

/// The whole call is refused: nothing is protected, so nothing is flushed.
#[test]
fn a_mask_that_reaches_beyond_the_space_is_refused() {
    let mut guest = guest(HINTS);
    let last = Ipa::new((1 << IPA_BITS) - 4 * KIB_4);
    map_pages(&mut guest, last, frame(0), 4);
    let outcome = guest.stage2.write_protect_mask(last, mask(&[0, 4])).map(drop);
    assert!(matches!(outcome, Err(Error::OutsideIpa { .. })), "{outcome:?}");
    assert_eq!(guest.events(), []);
    assert!(guest.walk(last).unwrap().access().write);
    // The last selected page decides.
    let _ = guest.stage2.write_protect_mask(last, mask(&[3])).unwrap().complete();
    let _ = guest.stage2.write_protect_mask(last + 2 * KIB_4, 1).unwrap().complete();
    let left = (0..4).filter(|page| guest.walk(last + page * KIB_4).unwrap().access().write);
    assert_eq!(left.collect::<Vec<_>>(), [0, 1]);
    let _ = guest.stage2.write_protect_mask(last + 3 * KIB_4, 1).unwrap().complete();
}

/// Tables and blocks side by side, on both sides of the end of a level 2 table.
#[test]
fn a_pass_goes_from_leaf_to_table_and_from_table_to_table() {
    let mut guest = guest(RANGES);
    let blocks = [508, 509, 511, 512, 514];
    let pages = [507, 510, 513];
    let ipa = |number: u64| BASE + number * MIB_2;
    blocks.iter().for_each(|number| map(&mut guest, ipa(*number), frame(number * MIB_2), Level::L2, &RAM));
    for number in pages {
        for page in [0, 511] {
            map(&mut guest, ipa(number) + page * KIB_4, frame(number * MIB_2 + page * KIB_4), Level::L3, &RAM);
        }
    }
    let _ = guest.stage2.write_protect(ipa(507)..ipa(515)).unwrap().complete();
    let leaves = guest.scan().leaves;
    assert_eq!(leaves.len(), blocks.len() + 2 * pages.len());
    for leaf in leaves {
        assert!(!leaf.access().write, "{leaf:x?}");
    }
}

/// Writable leaves are counted correctly, whichever entries of a row they are.
#[test]
fn rows_that_are_writable_in_part_are_counted() {
    for written in [1, 0x80, 0xfe, 0x7f, 0xef, 0xff] {
        let mut guest = guest(HINTS);
        for page in 0..8 {
            let access = if written >> page & 1 == 1 { Access::READ_WRITE } else { Access::READ };
            map(&mut guest, BASE + page * KIB_4, frame(page * KIB_4), Level::L3, &Attributes::ram(access));
        }
        let _ = guest.stage2.write_protect(range(BASE, 8 * KIB_4)).unwrap().complete();
        // `events` checks the tables against their counts.
        guest.events();
        assert_eq!(writable(&guest, 8), []);
    }
}

#[test]
fn protecting_writes_spares_what_cannot_be_written() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &Attributes::ram(Access::READ));
    map(&mut guest, BASE + KIB_4, frame(KIB_4), Level::L3, &RAM);
    map(&mut guest, BASE + 2 * KIB_4, frame(2 * KIB_4), Level::L3, &Attributes::ram(Access::READ));
    let _ = guest.stage2.write_protect(range(BASE, MIB_2)).unwrap().complete();
    assert_eq!(guest.events(), by_leaf(BASE + KIB_4, Some(3)));
    let pending = guest.stage2.write_protect(range(BASE, MIB_2)).unwrap();
    assert!(pending.is_empty());
}

/// The block is not split: a caller that wants pages splits first.
#[test]
fn a_block_is_write_protected_as_a_whole() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let _ = guest.stage2.write_protect(range(BASE + KIB_4, KIB_4)).unwrap().complete();
    assert_eq!(guest.events(), by_leaf(BASE, Some(2)));
    assert!(!guest.walk(BASE).unwrap().access().write);
}

#[test]
fn protect_keeps_what_both_allow_and_grants_nothing() {
    let keep_execute = Access { write: true, ..Access::ALL };
    for (keep, expected) in [
        (Access::READ, Access::READ),
        (keep_execute, Access::READ_WRITE),
        (Access { read: false, ..Access::READ_WRITE }, Access { read: false, ..Access::READ_WRITE }),
        (Access::NONE, Access::NONE),
    ] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), Level::L3, &RAM);
        let _ = guest.stage2.protect(range(BASE, KIB_4), keep, &mut guest.pool).unwrap().complete();
        assert_eq!(guest.walk(BASE).unwrap().access(), expected);
    }
}

#[test]
fn changes_that_are_joined_are_flushed_once() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 8);
    map(&mut guest, BASE + 8 * KIB_4, frame(8 * KIB_4), Level::L3, &CLEAN);
    guest.machine.hardware_sets(guest.walk(BASE + 8 * KIB_4).unwrap().entry, WRITABLE);
    // A table that goes with its last page, in the middle of the others.
    let mut pending: Pending<'_, _, _> = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap();
    let mut reported = Vec::new();
    pending.join(guest.stage2.clean(range(BASE, MIB_2), &mut |marked| reported.push(marked)).unwrap());
    pending.join(guest.stage2.write_protect_mask(BASE, 1 << 2).unwrap());
    pending.join(guest.stage2.write_protect(range(BASE + MIB_2, MIB_2)).unwrap());
    guest.machine.events();
    let _ = pending.complete();
    assert_eq!(reported, [Marked { ipa: BASE, level: Level::L3, mask: 1 << 8 }]);
    let parts = [
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 8 * KIB_4, Some(3))),
        (Tlbi::Ipas2Le1Is, Reach::At(BASE + 8 * KIB_4, Some(3))),
    ];
    assert_eq!(guest.events(), by_ipa(&parts));
}

#[test]
fn tables_of_changes_that_are_joined_are_all_freed_after_the_one_flush() {
    let mut guest = guest(RANGES);
    (0..4).for_each(|at| map_pages(&mut guest, BASE + at * MIB_2, frame(at * MIB_2), 1));
    let unmap = |guest: &mut Guest, at: u64, blocks: u64| {
        // The borrow of the tables outlives that of the pool.
        let range = range(BASE + at * MIB_2, blocks * MIB_2);
        let pool = &mut guest.pool;
        guest.stage2.unmap(range, pool, twofold_stage2::Unwatched).map(|pending| pending.complete().free(pool).tables())
    };
    assert_eq!(unmap(&mut guest, 3, 1), Ok(1));
    guest.events();
    let mut pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, twofold_stage2::Unwatched).unwrap();
    pending
        .join(guest.stage2.unmap(range(BASE + MIB_2, 2 * MIB_2), &mut guest.pool, twofold_stage2::Unwatched).unwrap());
    let flushed = pending.complete();
    assert_eq!(guest.machine.events(), by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + 3 * MIB_2, None))]));
    // The table above was unlinked with the last of them.
    assert_eq!(flushed.free(&mut guest.pool).tables(), 4);
    assert!(guest.pool.out.is_empty());
}

#[test]
fn ageing_and_making_young_invalidate_nothing() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 130);
    let mut reported = Vec::new();
    guest.stage2.age(range(BASE + KIB_4, 129 * KIB_4), &mut |marked| reported.push(marked)).unwrap();
    let expected = [(1, u64::MAX), (65, u64::MAX), (129, 1)];
    assert_eq!(reported, expected.map(|(page, mask)| Marked { ipa: BASE + page * KIB_4, level: Level::L3, mask }));
    assert_eq!(guest.stage2.make_young(BASE + 7 * KIB_4), Ok(true));
    assert_eq!(guest.stage2.make_young(BASE + 7 * KIB_4), Ok(false));
    assert_eq!(guest.stage2.make_young(BASE + GIB), Err(Error::NotMapped { ipa: BASE + GIB }));
    reported.clear();
    guest.stage2.age(range(BASE, GIB), &mut |marked| reported.push(marked)).unwrap();
    assert_eq!(reported, [Marked { ipa: BASE, level: Level::L3, mask: 1 | 1 << 7 }]);
    assert_eq!(guest.events(), []);
}

/// The callback is called without a lock, so it may call any operation on the same tables.
#[test]
fn a_callback_may_change_the_tables() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 3);
    let stage2 = &guest.stage2;
    let mut young = 0;
    stage2
        .age(range(BASE, GIB), &mut |marked| {
            for ipa in marked.leaves(KIB_4) {
                young += 1;
                let _ = stage2.write_protect(range(ipa, KIB_4)).unwrap().complete();
            }
        })
        .unwrap();
    assert_eq!((young, writable(&guest, 3)), (3, vec![]));
}
