// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unmapping: entries first, then a flush of what they covered, by the cheapest operation; frees at the very end.

use super::*;
use crate::platform::{KIB_4, MIB_2, frame, table};

/// Unmaps, completes, frees; returns what was recorded up to the end of the flush and after it.
fn unmap(guest: &mut Guest, range: IpaRange) -> (Vec<Event>, Vec<Event>) {
    guest.events();
    let (pending, detached) = guest.stage2.unmap(range, &mut guest.pool, &mut |_| ()).unwrap();
    guest.machine.events();
    let flushed = pending.complete();
    let flush = guest.machine.events();
    detached.free(flushed, &mut guest.pool);
    (flush, guest.events())
}

/// The flush after unmapping it, where no table goes.
#[track_caller]
fn flush(guest: &mut Guest, range: IpaRange) -> Vec<Event> {
    let (flush, freed) = unmap(guest, range);
    assert_eq!(freed, []);
    flush
}

#[test]
fn a_leaf_is_gone_before_its_flush() {
    for (level, size) in [(Level::L3, KIB_4), (Level::L2, MIB_2), (Level::L1, GIB)] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), level, &RAM);
        guest.watch(BASE);
        let mut removed = Vec::new();
        let (pending, detached) =
            guest.stage2.unmap(range(BASE, size), &mut guest.pool, &mut |leaf| removed.push(leaf)).unwrap();
        let unmapping = guest.machine.events();
        let flushed = pending.complete();
        let flush = guest.machine.events();
        assert_eq!(detached.free(flushed, &mut guest.pool), 0);

        assert_eq!(unmapping, vec![sees_nothing(BASE)]);
        assert_eq!(flush, by_leaf(BASE, Some(level.raw())));
        assert_eq!(removed.len(), 1);
        assert_eq!((removed[0].ipa, removed[0].level), (BASE, level));
        assert_eq!(removed[0].descriptor.address(), frame(0));
    }
}

#[test]
fn what_hardware_recorded_is_handed_over() {
    let mut guest = guest(HINTS);
    let clean = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    map(&mut guest, BASE, frame(0), Level::L3, &clean);
    guest.machine.hardware_sets(guest.walk(BASE).unwrap().entry, 1 << 7);
    let mut dirty = None;
    let removed = &mut |leaf: twofold_stage2::Leaf| dirty = Some(leaf.descriptor.is_hardware_dirty());
    let (pending, _) = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, removed).unwrap();
    let _ = pending.complete();
    assert_eq!(dirty, Some(true));
}

#[test]
fn no_level_is_hinted_at_without_the_feature() {
    let mut guest = guest(Features { tlbi_level_hint: false, ..HINTS });
    map_pages(&mut guest, BASE, frame(0), 1);
    assert_eq!(flush(&mut guest, range(BASE, KIB_4)), by_leaf(BASE, None));
}

#[test]
fn without_range_operations_each_page_goes_alone() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 65);
    let singles = |pages: u64| {
        let leaf = |page| (Tlbi::Ipas2Le1Is, Reach::At(BASE + page * KIB_4, Some(3)));
        by_ipa(&(0..pages).map(leaf).collect::<Vec<_>>())
    };
    assert_eq!(flush(&mut guest, range(BASE, 2 * KIB_4)), singles(2));
    map_pages(&mut guest, BASE, frame(0), 2);
    assert_eq!(flush(&mut guest, range(BASE, 64 * KIB_4)), singles(64));
    map_pages(&mut guest, BASE, frame(0), 64);
    assert_eq!(flush(&mut guest, range(BASE, 65 * KIB_4)), by_vmid());
}

#[test]
fn blocks_go_one_by_one_not_page_by_page() {
    let mut guest = guest(HINTS);
    for index in 0..3 {
        map(&mut guest, BASE + index * MIB_2, frame(index * MIB_2), Level::L2, &RAM);
    }
    let leaf = |index| (Tlbi::Ipas2Le1Is, Reach::At(BASE + index * MIB_2, Some(2)));
    assert_eq!(flush(&mut guest, range(BASE, 3 * MIB_2)), by_ipa(&[leaf(0), leaf(1), leaf(2)]));
}

/// 66 pages are 64 by scale 1 and 2 by scale 0.
#[test]
fn with_range_operations_a_few_take_all() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 66);
    let (middle, end) = (BASE + 64 * KIB_4, BASE + 66 * KIB_4);
    let parts = [
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE, middle, Some(3))),
        (Tlbi::Ripas2Le1Is, Reach::Range(middle, end, Some(3))),
    ];
    assert_eq!(flush(&mut guest, BASE..end), by_ipa(&parts));
}

#[test]
fn an_odd_page_goes_alone() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 5);
    let expected = [
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 4 * KIB_4, Some(3))),
        (Tlbi::Ipas2Le1Is, Reach::At(BASE + 4 * KIB_4, Some(3))),
    ];
    assert_eq!(flush(&mut guest, range(BASE, 5 * KIB_4)), by_ipa(&expected));
}

#[test]
fn one_leaf_is_a_single_operation_even_with_ranges() {
    let mut guest = guest(RANGES);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    assert_eq!(flush(&mut guest, range(BASE, MIB_2)), by_leaf(BASE, Some(2)));
}

/// No level is common to both.
#[test]
fn leaves_of_two_levels_go_without_a_hint() {
    let mut guest = guest(RANGES);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 2);
    let end = BASE + MIB_2 + 2 * KIB_4;
    let flush = flush(&mut guest, BASE..end);
    let reaches = [
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + MIB_2, None)),
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE + MIB_2, end, None)),
    ];
    assert_eq!(flush, by_ipa(&reaches));
}

/// 8 GiB is what one operand of the largest scale covers.
#[test]
fn beyond_the_largest_range_the_whole_guest_goes() {
    let mut guest = guest(RANGES);
    let end = BASE + 8 * GIB;
    let map_8_gib = |guest: &mut Guest| {
        (0..8).for_each(|index| map(guest, BASE + index * GIB, frame(index * GIB), Level::L1, &RAM));
    };
    map_8_gib(&mut guest);
    let reach = Reach::Range(BASE, end, Some(1));
    assert_eq!(flush(&mut guest, BASE..end), by_ipa(&[(Tlbi::Ripas2Le1Is, reach)]));
    map_8_gib(&mut guest);
    map_pages(&mut guest, end, frame(8 * GIB), 1);
    assert_eq!(flush(&mut guest, BASE..end + KIB_4), by_vmid());
}

/// Walk entries go too, and the page is given back when all of it is complete.
#[test]
fn a_table_is_freed_after_its_flush() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 3);
    let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]));
    assert_eq!(freed, [Event::Give(table(1))]);
    assert_eq!(guest.scan().links.len(), 1);
}

/// The leaf behind it changes nothing for the table's walk entries.
#[test]
fn a_table_among_leaves_decides_for_all() {
    let mut guest = guest(RANGES);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    map(&mut guest, BASE + 2 * MIB_2, frame(2 * MIB_2), Level::L2, &RAM);
    map(&mut guest, BASE + 3 * MIB_2, frame(3 * MIB_2), Level::L2, &RAM);
    let (flush, freed) = unmap(&mut guest, range(BASE, 4 * MIB_2));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + 4 * MIB_2, None))]));
    assert_eq!(freed, [Event::Give(table(1))]);
}

#[test]
fn without_range_operations_a_table_takes_the_whole_guest() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 3);
    let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
    assert_eq!((flush, freed), (by_vmid(), vec![Event::Give(table(1))]));
}

/// A table without a leaf in it can be in a walk cache all the same.
#[test]
fn an_empty_table_is_flushed_before_it_is_freed() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 1);
    flush(&mut guest, range(BASE, KIB_4));
    let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]));
    assert_eq!(freed, [Event::Give(table(1))]);
}

#[test]
fn a_table_that_is_partly_in_the_range_stays() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 4);
    let expected = by_ipa(&[(Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 4 * KIB_4, Some(3)))]);
    assert_eq!(flush(&mut guest, range(BASE, MIB_2 - KIB_4)), expected);
    assert_eq!(guest.pool.out.len(), 2);
}

#[test]
fn destroying_gives_every_page_back_and_flushes_once() {
    let mut guest = Guest::new(RANGES, 48);
    map_pages(&mut guest, BASE, frame(0), 2);
    map_pages(&mut guest, BASE + MIB_2, frame(0), 2);
    map_pages(&mut guest, Ipa::new(1 << 47), frame(0), 1);
    let root = guest.machine.loaded() & 0xffff_ffff_f000;
    let mut removed = 0;
    let (stage2, mut pool) = (guest.stage2, guest.pool);
    let back = stage2.destroy(&mut pool, &mut |_| removed += 1).unwrap();
    assert_eq!((back.pa().raw(), back.size(), removed), (root, KIB_4, 5));
    let events = guest.machine.events();
    let (flush, freed) = events.split_at(4);
    assert_eq!(flush, by_vmid());
    assert!(freed.iter().all(|event| matches!(event, Event::Give(_))));
    assert_eq!((freed.len(), pool.out.len()), (7, 0));
}

#[test]
fn unmapping_a_part_of_a_block_leaves_the_rest() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let (page, neighbour) = (BASE + 3 * KIB_4, BASE + 4 * KIB_4);
    guest.watch(page);
    guest.watch(neighbour);
    let (pending, detached) = guest.stage2.unmap(range(page, KIB_4), &mut guest.pool, &mut |_| ()).unwrap();
    let unmapping = guest.machine.events();
    let flushed = pending.complete();
    let flush = guest.machine.events();
    assert_eq!(detached.free(flushed, &mut guest.pool), 0);

    let rw = Access::READ_WRITE;
    let expected = [
        vec![Event::Take(table(1)), sees_nothing(page), sees_nothing(neighbour)],
        by_leaf(BASE, Some(2)),
        vec![sees(page, 3, frame(3 * KIB_4), rw), sees(neighbour, 3, frame(4 * KIB_4), rw)],
        vec![Event::Dsb(Domain::IshSt), sees_nothing(page)],
    ];
    assert_eq!(unmapping, expected.concat());
    assert_eq!(flush, by_leaf(page, Some(3)));
    assert_eq!(guest.scan().leaves.len(), 511);
}
