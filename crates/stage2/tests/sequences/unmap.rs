// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unmapping: first the entries, then the cheapest flush that covers them, and frees at the very end.

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Broken, Memory, RemovalWatcher, Unwatched};

const WRITABLE: u64 = 1 << 7;
const NON_CACHEABLE: Attributes = Attributes { memory: Memory::NonCacheable, ..RAM };

/// Unmaps, completes and frees. Returns the events up to the end of the flush, and those after it.
fn unmap(guest: &mut Guest, range: IpaRange) -> (Vec<Event>, Vec<Event>) {
    guest.events();
    let pending = guest.stage2.unmap(range, &mut guest.pool, Unwatched).unwrap();
    guest.machine.events();
    let flushed = pending.complete();
    let flush = guest.machine.events();
    flushed.free(&mut guest.pool);
    (flush, guest.events())
}

/// The flush of an unmap that unlinks no table.
#[track_caller]
fn flush(guest: &mut Guest, range: IpaRange) -> Vec<Event> {
    let (flush, freed) = unmap(guest, range);
    assert_eq!(freed, []);
    flush
}

/// A guest whose first level 3 table stays linked whatever else is unmapped, by its last page.
fn guest_with_table(features: Features) -> Guest {
    let mut guest = guest(features);
    map_pages(&mut guest, BASE + 511 * KIB_4, frame(511 * KIB_4), 1);
    guest
}

fn gives(events: &[Event]) -> usize {
    assert!(events.iter().all(|event| matches!(event, Event::Give(_))), "{events:x?}");
    events.len()
}

/// The flush of several leaves of one level, one by one.
fn singles(count: u64, span: u64, level: u8) -> Vec<Event> {
    let leaf = |index| (Tlbi::Ipas2Le1Is, Reach::At(BASE + index * span, Some(level)));
    by_ipa(&(0..count).map(leaf).collect::<Vec<_>>())
}

#[test]
fn a_leaf_is_gone_before_its_flush() {
    for (level, size) in [(Level::L3, KIB_4), (Level::L2, MIB_2), (Level::L1, GIB)] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), level, &RAM);
        map(&mut guest, BASE + size, frame(size), level, &RAM);
        guest.watch(BASE);
        let mut removed = Vec::new();
        let pending =
            guest.stage2.unmap(range(BASE, size), &mut guest.pool, |leaf: Broken| removed.push(leaf)).unwrap();
        let unmapping = guest.machine.events();
        let flushed = pending.complete();
        let flush = guest.machine.events();
        let freed = flushed.free(&mut guest.pool);
        assert_eq!(freed.tables(), 0);
        let removed: Vec<_> = removed.iter().filter_map(|leaf| leaf.open(&freed)).collect();

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
    guest.machine.hardware_sets(guest.walk(BASE).unwrap().entry, WRITABLE);
    let mut dirty = None;
    let removed = |leaf: Broken| dirty = Some(leaf.is_hardware_dirty());
    let _ = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, removed).unwrap().complete().free(&mut guest.pool);
    assert_eq!(dirty, Some(true));
}

/// The posted combined dirty log (Kolothum 2023) reads dirty state before the break, and loses a write through a TLB or
/// through a walk that is still under way. Here hardware writes near the end of the flush.
#[test]
fn what_hardware_records_in_a_table_until_its_flush_is_complete_is_handed_over() {
    let mut guest = guest(RANGES);
    let clean = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    for page in 0..4 {
        map(&mut guest, BASE + page * KIB_4, frame(page * KIB_4), Level::L3, &clean);
    }
    let (machine, entry) = (guest.machine.clone(), guest.walk(BASE + 2 * KIB_4).unwrap().entry);
    guest.machine.set_hook(move |event, _| {
        if matches!(event, Event::Tlbi(Tlbi::VmallE1Is, _)) {
            machine.hardware_sets(entry, WRITABLE);
        }
    });
    let mut reported = Vec::new();
    let removed = |leaf: Broken| reported.push((leaf.ipa(), leaf.is_hardware_dirty()));
    let pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, removed).unwrap();
    pending.complete().free(&mut guest.pool);
    assert_eq!(reported, [0, 1, 2, 3].map(|page| (BASE + page * KIB_4, page == 2)));
}

#[test]
fn no_level_is_hinted_at_without_the_feature() {
    let mut guest = guest_with_table(HINTS.with_tlbi_level_hint(false));
    map_pages(&mut guest, BASE, frame(0), 1);
    assert_eq!(flush(&mut guest, range(BASE, KIB_4)), by_leaf(BASE, None));
}

#[test]
fn without_range_operations_each_page_goes_alone() {
    let mut guest = guest_with_table(HINTS);
    map_pages(&mut guest, BASE, frame(0), 65);
    assert_eq!(flush(&mut guest, range(BASE, 2 * KIB_4)), singles(2, KIB_4, 3));
    map_pages(&mut guest, BASE, frame(0), 2);
    assert_eq!(flush(&mut guest, range(BASE, 64 * KIB_4)), singles(64, KIB_4, 3));
    map_pages(&mut guest, BASE, frame(0), 64);
    assert_eq!(flush(&mut guest, range(BASE, 65 * KIB_4)), by_vmid());
}

/// One operand of the largest scale covers 8 GiB.
#[test]
fn with_range_operations_more_than_8_gib_go_by_the_vmid() {
    let by_range = by_ipa(&[(Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 8 * GIB, Some(1)))]);
    for (giga_bytes, expected) in [(8, by_range), (9, by_vmid())] {
        let mut guest = guest(RANGES);
        (0..giga_bytes).for_each(|at| map(&mut guest, BASE + at * GIB, frame(at * GIB), Level::L1, &RAM));
        assert_eq!(flush(&mut guest, range(BASE, giga_bytes * GIB)), expected, "{giga_bytes} GiB");
    }
}

#[test]
fn blocks_go_one_by_one_not_page_by_page() {
    let mut guest = guest(HINTS);
    for index in 0..4 {
        map(&mut guest, BASE + index * MIB_2, frame(index * MIB_2), Level::L2, &RAM);
    }
    assert_eq!(flush(&mut guest, range(BASE, 3 * MIB_2)), singles(3, MIB_2, 2));
}

/// 66 pages are 64 by scale 1 and 2 by scale 0.
#[test]
fn with_range_operations_a_few_take_all() {
    let mut guest = guest_with_table(RANGES);
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
    let mut guest = guest_with_table(RANGES);
    map_pages(&mut guest, BASE, frame(0), 5);
    let expected = [
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 4 * KIB_4, Some(3))),
        (Tlbi::Ipas2Le1Is, Reach::At(BASE + 4 * KIB_4, Some(3))),
    ];
    assert_eq!(flush(&mut guest, range(BASE, 5 * KIB_4)), by_ipa(&expected));
}

#[test]
fn one_leaf_is_a_single_operation_even_with_ranges() {
    let mut guest = guest_with_table(RANGES);
    map(&mut guest, BASE + MIB_2, frame(0), Level::L2, &RAM);
    assert_eq!(flush(&mut guest, range(BASE + MIB_2, MIB_2)), by_leaf(BASE + MIB_2, Some(2)));
}

/// The leaves have no common level for a hint.
#[test]
fn leaves_of_two_levels_go_without_a_hint() {
    let mut guest = guest(RANGES);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 3);
    let end = BASE + MIB_2 + 2 * KIB_4;
    let flush = flush(&mut guest, BASE..end);
    let reaches = [
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + MIB_2, None)),
        (Tlbi::Ripas2Le1Is, Reach::Range(BASE + MIB_2, end, None)),
    ];
    assert_eq!(flush, by_ipa(&reaches));
}

/// One operand of the largest scale covers 8 GiB.
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
    map_pages(&mut guest, end, frame(8 * GIB), 2);
    assert_eq!(flush(&mut guest, BASE..end + KIB_4), by_vmid());
}

/// Walk entries are invalidated too. The page is given back when the whole flush is complete.
#[test]
fn a_table_is_freed_after_its_flush() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 3);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]));
    assert_eq!(freed, [Event::Give(table(1))]);
    assert_eq!(guest.scan().links.len(), 2);
}

/// The leaf after it makes no difference to the table's walk entries.
#[test]
fn a_table_among_leaves_decides_for_all() {
    let mut guest = guest(RANGES);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    for index in 2..5 {
        map(&mut guest, BASE + index * MIB_2, frame(index * MIB_2), Level::L2, &RAM);
    }
    let (flush, freed) = unmap(&mut guest, range(BASE, 4 * MIB_2));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + 4 * MIB_2, None))]));
    assert_eq!(freed, [Event::Give(table(1))]);
}

#[test]
fn without_range_operations_a_table_takes_the_whole_guest() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 3);
    let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
    assert_eq!((flush, gives(&freed)), (by_vmid(), 2));
}

/// One invalidation, by address and for all levels, ends the leaf and the walk entries that led to it.
#[test]
fn a_table_goes_with_its_last_entry() {
    for (features, level, size, tables) in
        [(HINTS, Level::L3, KIB_4, 2), (RANGES, Level::L3, KIB_4, 2), (RANGES, Level::L2, MIB_2, 1)]
    {
        let mut guest = guest(features);
        map(&mut guest, BASE, frame(0), level, &RAM);
        let (flush, freed) = unmap(&mut guest, range(BASE, size));
        let reach = if size == KIB_4 {
            (Tlbi::Ipas2E1Is, Reach::At(BASE, None))
        } else {
            (Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + size, None))
        };
        assert_eq!((flush, gives(&freed)), (by_ipa(&[reach]), tables));
        assert_eq!(guest.scan(), platform::mmu::Scan::default());
    }
}

/// A table can stay empty: its page was taken, and the source had none for the next level. A walk cache can hold its
/// entry all the same.
#[test]
fn an_empty_table_is_flushed_before_it_is_freed() {
    let mut guest = guest(RANGES);
    guest.pool.limit = 1;
    assert!(guest.stage2.map(BASE, frame(0), Level::L3, &RAM, &mut guest.pool).is_err());
    let (flush, freed) = unmap(&mut guest, range(BASE, GIB));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + GIB, None))]));
    assert_eq!(freed, [Event::Give(table(0))]);
}

#[test]
fn a_table_that_is_partly_in_the_range_stays_while_something_is_in_it() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 5);
    let expected = by_ipa(&[(Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 4 * KIB_4, Some(3)))]);
    assert_eq!(flush(&mut guest, range(BASE, 4 * KIB_4)), expected);
    assert_eq!(guest.pool.out.len(), 2);
    let (flush, freed) = unmap(&mut guest, range(BASE + KIB_4, MIB_2 - KIB_4));
    assert!(flush.contains(&Event::Tlbi(Tlbi::Ipas2E1Is, Reach::At(BASE + 511 * KIB_4, None))), "{flush:x?}");
    assert_eq!(gives(&freed), 2);
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
    let back = stage2.destroy(&mut pool, |_| removed += 1);
    let (back, _) = back;
    assert_eq!((back.pa().raw(), back.size(), removed), (root, KIB_4, 5));
    let events = guest.machine.events();
    let (flush, freed) = events.split_at(4);
    assert_eq!(flush, by_vmid());
    assert_eq!((gives(freed), pool.out.len()), (7, 0));
}

#[test]
fn unmapping_a_part_of_a_block_leaves_the_rest() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    let (page, neighbour) = (BASE + 3 * KIB_4, BASE + 4 * KIB_4);
    guest.watch(page);
    guest.watch(neighbour);
    let pending = guest.stage2.unmap(range(page, KIB_4), &mut guest.pool, Unwatched).unwrap();
    let unmapping = guest.machine.events();
    let flushed = pending.complete();
    let flush = guest.machine.events();
    assert_eq!(flushed.free(&mut guest.pool).tables(), 0);

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

/// After the flush the guest cannot write any more. Only then are the lines cleaned that hide what it wrote past the
/// caches, or that it left dirty.
#[test]
fn without_forced_write_back_each_leaf_is_cleaned_after_its_flush() {
    let mut guest = guest_with_table(PLAIN.with_tlbi_level_hint(true));
    map_pages(&mut guest, BASE, frame(0), 3);
    guest.watch(BASE);
    let pending = guest.stage2.unmap(range(BASE, 2 * KIB_4), &mut guest.pool, Unwatched).unwrap();
    assert!(pending.is_empty());
    let _ = pending.complete();
    let cleaned = |page| [Event::Clean(frame(page * KIB_4), KIB_4), Event::Dsb(Domain::Ish)];
    assert_eq!(guest.events(), [&[sees_nothing(BASE)], &singles(2, KIB_4, 3)[..], &cleaned(0), &cleaned(1)].concat());
}

#[test]
fn the_leaves_of_a_table_are_cleaned_after_its_flush_and_before_it_is_freed() {
    let mut guest = guest(PLAIN.with_tlbi_range(true));
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    map_pages(&mut guest, BASE, frame(0), 2);
    let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
    assert_eq!(flush, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]));
    // Adjacent leaves are cleaned at once.
    assert_eq!(freed, [Event::Clean(frame(0), 2 * KIB_4), Event::Dsb(Domain::Ish), Event::Give(table(2))]);
}

/// The hypervisor's own mapping is cacheable. Lines that were filled through it since the memory was mapped hide what
/// the guest wrote past them, whatever FEAT_S2FWB forces elsewhere.
#[test]
fn memory_that_was_not_cacheable_is_cleaned_after_its_flush() {
    for features in [PLAIN, HINTS, RANGES] {
        let level = features.tlbi_level_hint.then_some(3);
        let mut guest = guest_with_table(features);
        map(&mut guest, BASE, frame(0), Level::L3, &NON_CACHEABLE);
        guest.watch(BASE);
        let _ = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap().complete();
        let cleaned = [Event::Clean(frame(0), KIB_4), Event::Dsb(Domain::Ish)];
        assert_eq!(guest.events(), [&[sees_nothing(BASE)], &by_leaf(BASE, level)[..], &cleaned].concat());
        // Its neighbours are still mapped as before.
        let neighbour = BASE + 511 * KIB_4;
        assert_eq!(guest.stage2.look_up(neighbour).unwrap().descriptor.address(), frame(511 * KIB_4));
    }
}

/// The leaf goes with its table.
#[test]
fn a_table_of_memory_that_was_not_cacheable_is_cleaned_after_its_flush() {
    for features in [HINTS, RANGES] {
        let mut guest = guest(features);
        map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
        map_pages(&mut guest, BASE, frame(0), 3);
        map(&mut guest, BASE + 7 * KIB_4, frame(7 * KIB_4), Level::L3, &NON_CACHEABLE);
        let (flush, freed) = unmap(&mut guest, range(BASE, MIB_2));
        assert!(!flush.iter().any(|event| matches!(event, Event::Clean(..))), "{flush:x?}");
        let cleaned = [Event::Clean(frame(7 * KIB_4), KIB_4), Event::Dsb(Domain::Ish), Event::Give(table(2))];
        assert_eq!(freed, cleaned, "what is forced to be cached has no stale lines");
        // The page is another table now, whose record must not remember the old memory type.
        map_pages(&mut guest, BASE, frame(0), 1);
        let (_, freed) = unmap(&mut guest, range(BASE, MIB_2));
        assert_eq!(freed, [Event::Give(table(2))]);
    }
}

/// A part of a block is cleaned too.
#[test]
fn a_part_of_a_block_that_was_not_cacheable_is_cleaned_when_it_goes() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L2, &NON_CACHEABLE);
    let (flush, freed) = unmap(&mut guest, range(BASE + KIB_4, KIB_4));
    assert_eq!((flush, freed), (vec![], vec![]), "it was flushed and cleaned at once");
    guest
        .stage2
        .map_range(range(BASE + MIB_2, MIB_2), frame(MIB_2), Level::L3, &NON_CACHEABLE, &mut guest.pool)
        .unwrap();
    let (_, freed) = unmap(&mut guest, range(BASE + MIB_2, MIB_2));
    assert_eq!(freed[0], Event::Clean(frame(MIB_2), MIB_2));
}

/// A device has no cache lines, and outside these tests not even a pointer.
#[test]
fn a_device_is_not_cleaned_when_it_goes() {
    for features in [PLAIN, HINTS] {
        let mut guest = guest_with_table(features);
        map(&mut guest, BASE, Pa::new(0x0800_0000), Level::L3, &Attributes::device());
        let _ = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap().complete();
        let level = features.tlbi_level_hint.then_some(3);
        assert_eq!(guest.events(), by_leaf(BASE, level));
        map(&mut guest, BASE + MIB_2, Pa::new(0x0800_0000), Level::L3, &Attributes::device());
        let (_, freed) = unmap(&mut guest, range(BASE + MIB_2, MIB_2));
        assert!(!freed.iter().any(|event| matches!(event, Event::Clean(..))), "{freed:x?}");
    }
}

/// Each leaf is reported with the address that it mapped, whether it is unmapped alone, with its table, or with tables
/// of tables.
#[test]
fn leaves_are_reported_with_their_addresses() {
    for features in [HINTS, PLAIN] {
        let numbers = [0, 3, 4, 511, 512, 3 * 512 + 7];
        for unmapped in [range(BASE + 3 * KIB_4, 2 * KIB_4), range(BASE, MIB_2), range(BASE, GIB)] {
            let mut guest = guest(features);
            for number in numbers {
                map(&mut guest, BASE + number * KIB_4, frame(number * KIB_4), Level::L3, &RAM);
            }
            let mut reported = Vec::new();
            let removed = |leaf: Broken| reported.push(leaf);
            let freed = guest
                .stage2
                .unmap(unmapped.clone(), &mut guest.pool, removed)
                .unwrap()
                .complete()
                .free(&mut guest.pool);
            let reported: Vec<_> = reported.iter().map(|leaf| (leaf.ipa(), leaf.open(&freed).unwrap())).collect();
            let reported: Vec<_> =
                reported.iter().map(|(ipa, leaf)| (*ipa, leaf.ipa, leaf.descriptor.address())).collect();
            let expected = numbers.map(|number| (BASE + number * KIB_4, frame(number * KIB_4)));
            let expected = expected.into_iter().filter(|(ipa, _)| unmapped.contains(ipa));
            assert_eq!(reported, expected.map(|(ipa, pa)| (ipa, ipa, pa)).collect::<Vec<_>>());
        }
    }
}

/// The fast path also refuses a page that is not aligned, or is after the end of the IPA space.
#[test]
fn a_page_that_is_none_is_refused() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 4);
    let end = Ipa::new(1 << IPA_BITS);
    for start in [BASE + 8, end, end + KIB_4, end + (1 << 45)] {
        assert!(guest.stage2.unmap(range(start, KIB_4), &mut guest.pool, Unwatched).is_err(), "{start}");
    }
    assert_eq!((guest.scan().leaves.len(), guest.events()), (4, vec![]));
}

/// If nothing is mapped, nothing is removed, with or without other pages in the table.
#[test]
fn what_is_not_mapped_is_not_removed() {
    fn unmapped(guest: &mut Guest, page: u64) -> (Vec<Ipa>, Vec<Ipa>) {
        let mut reported = Vec::new();
        let before: Vec<_> = guest.scan().leaves.iter().map(|leaf| leaf.ipa).collect();
        let range = range(BASE + page * KIB_4, KIB_4);
        let pending = guest.stage2.unmap(range, &mut guest.pool, |leaf: Broken| reported.push(leaf.ipa())).unwrap();
        pending.complete().free(&mut guest.pool);
        guest.events();
        let leaves = guest.scan().leaves;
        (reported, before.into_iter().filter(|ipa| !leaves.iter().any(|leaf| leaf.ipa == *ipa)).collect())
    }
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 3);
    let page = |number: u64| BASE + number * KIB_4;
    assert_eq!(unmapped(&mut guest, 7), (vec![], vec![]), "never mapped");
    assert_eq!(unmapped(&mut guest, 1), (vec![page(1)], vec![page(1)]));
    assert_eq!(unmapped(&mut guest, 1), (vec![], vec![]), "removed already");
    assert_eq!(unmapped(&mut guest, 512), (vec![], vec![]), "not even a table");
}

#[test]
fn a_page_of_one_block_among_others_goes_alone() {
    fn is_alone(removed: impl RemovalWatcher) {
        let mut guest = guest(HINTS);
        (0..3).for_each(|at| map(&mut guest, BASE + at * MIB_2, frame(at * MIB_2), Level::L2, &RAM));
        let page = BASE + MIB_2 + 7 * KIB_4;
        let pending = guest.stage2.unmap(range(page, KIB_4), &mut guest.pool, removed).unwrap();
        pending.complete().free(&mut guest.pool);
        let leaves = guest.scan().leaves;
        assert_eq!(leaves.len(), 2 + 511);
        assert!(leaves.iter().all(|leaf| leaf.ipa != page && leaf.pa() == frame(leaf.ipa - BASE)));
    }
    is_alone(Unwatched);
    is_alone(|_: Broken| ());
}

/// From the first address of the IPA space to the last.
#[test]
fn destroying_removes_all_there_is() {
    let mut guest = guest(HINTS);
    let last = Ipa::new((1 << IPA_BITS) - GIB);
    for ipa in [Ipa::new(0), last] {
        map(&mut guest, ipa, frame(0), Level::L1, &RAM);
    }
    let Guest { stage2, mut pool, .. } = guest;
    let mut reported = Vec::new();
    let (_root, _) = stage2.destroy(&mut pool, |leaf: Broken| reported.push(leaf.ipa()));
    assert_eq!(reported, [Ipa::new(0), last]);
}

/// The table's lock is held for no more leaves at a time.
#[test]
fn at_most_64_leaves_are_broken_before_they_are_reported() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 100);
    let mut mapped = Vec::new();
    let (stage2, pool) = (&guest.stage2, &mut guest.pool);
    let removed =
        |_: Broken| mapped.push((0..100).filter(|page| stage2.look_up(BASE + page * KIB_4).is_some()).count());
    stage2.unmap(range(BASE, 100 * KIB_4), pool, removed).unwrap().complete().free(pool);
    assert_eq!(mapped, [[36; 64].as_slice(), &[0; 36]].concat());
}
