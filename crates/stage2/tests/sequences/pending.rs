// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Between a change and its flush: no CPU maps over what a TLB may still hold, and no operation completes without the
//! flush of what another one has changed.

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Broken, Marked, RemovalWatcher, Unwatched};

/// Break-before-make has its invalidation between break and make, whichever CPU does either (Arm ARM DDI 0487K.a,
/// D8.16.1).
#[test]
fn a_page_that_is_mapped_before_the_flush_of_the_old_one_flushes_first() {
    mapped_before_the_flush(Unwatched);
    mapped_before_the_flush(|_: Broken| ());
}

fn mapped_before_the_flush(removed: impl RemovalWatcher) {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 2);
    let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, removed).unwrap();
    guest.watch(BASE);
    let outcome = guest.stage2.map(BASE, frame(GIB), Level::L3, &RAM, &mut guest.pool);
    assert_eq!(outcome, Ok(Mapped::New));
    let made = [sees(BASE, 3, frame(GIB), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.machine.events(), [&by_leaf(BASE, Some(3))[..], &made].concat());
    let _ = pending.complete();
}

/// Once a removal that is reported is flushed, mapping there again costs no flush: the mark in the entry alone is no reason.
/// Other removals are not counted, for their speed.
#[test]
fn what_is_mapped_after_the_flush_of_the_old_one_flushes_only_where_no_count_says_so() {
    mapped_after_the_flush(KIB_4, |_: Broken| (), &[]);
    mapped_after_the_flush(2 * KIB_4, |_: Broken| (), &[]);
    mapped_after_the_flush(MIB_2, |_: Broken| (), &[Event::Take(table(1)), Event::Dsb(Domain::IshSt)]);
    mapped_after_the_flush(KIB_4, Unwatched, &by_leaf(BASE, Some(3)));
    mapped_after_the_flush(2 * KIB_4, Unwatched, &by_leaf(BASE, Some(3)));
}

fn mapped_after_the_flush(size: u64, removed: impl RemovalWatcher, before: &[Event]) {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 3);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    let pending = guest.stage2.unmap(range(BASE, size), &mut guest.pool, removed).unwrap();
    pending.complete().free(&mut guest.pool);
    guest.events();
    guest.watch(BASE);
    let outcome = guest.stage2.map(BASE, frame(GIB), Level::L3, &RAM, &mut guest.pool);
    assert_eq!(outcome, Ok(Mapped::New));
    let made = [sees(BASE, 3, frame(GIB), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.machine.events(), [before, &made].concat(), "{size:#x}");
}

/// What was unmapped with a report is unmapped again: its entry, or that of its table, is still marked.
#[test]
fn unmapping_again_flushes_only_what_may_not_be_flushed_yet() {
    for (size, flush) in [
        (2 * KIB_4, by_ipa(&[0, KIB_4].map(|at| (Tlbi::Ipas2Le1Is, Reach::At(BASE + at, Some(3)))))),
        (MIB_2, by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))])),
    ] {
        let mut guest = guest(HINTS.with_tlbi_range(size > 2 * KIB_4));
        map_pages(&mut guest, BASE, frame(0), 3);
        map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
        let again = |pool: &mut _, flush: &[Event]| {
            for watched in [false, true] {
                let range = range(BASE, size);
                if watched {
                    let pending = guest.stage2.unmap(range, pool, |_: Broken| ()).unwrap();
                    assert_eq!(pending.is_empty(), flush.is_empty());
                    let _ = pending.complete();
                } else {
                    let _ = guest.stage2.unmap(range, pool, Unwatched).unwrap().complete();
                }
                assert_eq!(guest.machine.events(), flush, "{size:#x}");
            }
        };
        let pending = guest.stage2.unmap(range(BASE, size), &mut guest.pool, |_: Broken| ()).unwrap();
        guest.machine.events();
        again(&mut guest.pool, &flush);
        pending.complete().free(&mut guest.pool);
        guest.machine.events();
        again(&mut guest.pool, &[]);
    }
}

/// The count does not say whose flush is pending. Removals that are dropped, or without effect, end their counts too.
#[test]
fn what_was_removed_is_flushed_by_its_mapper_while_any_removal_is_pending() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 6);
    let page = |number: u64| range(BASE + number * KIB_4, KIB_4);
    let unmap = |pages: IpaRange, pool: &mut _| guest.stage2.unmap(pages, pool, |_: Broken| ()).unwrap();
    let (pool, machine) = (&mut guest.pool, &guest.machine);
    let _ = unmap(page(0), pool).complete();
    let other = unmap(page(1), pool);
    machine.events();
    let map = |number: u64, pool: &mut _| {
        let at = number * KIB_4;
        assert_eq!(guest.stage2.map(BASE + at, frame(at), Level::L3, &RAM, pool), Ok(Mapped::New));
        let events = machine.events();
        let flush = [&by_leaf(BASE + at, Some(3))[..], &[Event::Dsb(Domain::IshSt)]].concat();
        assert!(events == flush || events == [Event::Dsb(Domain::IshSt)], "{events:x?}");
        events == flush
    };
    assert!(map(0, pool));
    drop(other);
    machine.events();
    assert!(!map(1, pool));

    let nothing = unmap(range(BASE + GIB, 2 * KIB_4), pool);
    let _ = unmap(page(0), pool).complete();
    machine.events();
    assert!(map(0, pool));
    let _ = nothing.complete();
    let _ = unmap(page(0), pool).complete();
    machine.events();
    assert!(!map(0, pool));
}

/// The walk entry that led to the table must be invalidated too, and the pages that it led to.
#[test]
fn a_block_that_is_mapped_before_the_flush_of_a_table_flushes_first() {
    block_before_the_flush(Unwatched);
    block_before_the_flush(|_: Broken| ());
}

fn block_before_the_flush(removed: impl RemovalWatcher) {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 2);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    let pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, removed).unwrap();
    guest.watch(BASE);
    let outcome = guest.stage2.map(BASE, frame(0), Level::L2, &RAM, &mut guest.pool);
    assert_eq!(outcome, Ok(Mapped::New));
    let flush = by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]);
    let made = [sees(BASE, 2, frame(0), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.machine.events(), [&flush[..], &made].concat());
    pending.complete().free(&mut guest.pool);
}

#[test]
fn a_table_that_is_linked_before_the_flush_of_the_old_one_flushes_first() {
    linked_before_the_flush(Unwatched);
    linked_before_the_flush(|_: Broken| ());
}

fn linked_before_the_flush(removed: impl RemovalWatcher) {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 2);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 1);
    let pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, removed).unwrap();
    guest.watch(BASE + KIB_4);
    let outcome = guest.stage2.map(BASE + KIB_4, frame(GIB), Level::L3, &RAM, &mut guest.pool);
    assert_eq!(outcome, Ok(Mapped::New));
    let flush = by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(BASE, BASE + MIB_2, None))]);
    let made =
        [Event::Dsb(Domain::IshSt), sees(BASE + KIB_4, 3, frame(GIB), Access::READ_WRITE), Event::Dsb(Domain::IshSt)];
    assert_eq!(guest.machine.events(), [&[Event::Take(table(3))], &flush[..], &made].concat());
    pending.complete().free(&mut guest.pool);
}

/// A caller that unmaps what another one has unmapped may reuse the memory after its own flush.
#[test]
fn unmapping_what_is_unmapped_already_flushes_it_too() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 4);
    let first = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap();
    guest.events();
    let second = guest.stage2.unmap(range(BASE, 2 * KIB_4), &mut guest.pool, Unwatched).unwrap();
    let _ = second.complete();
    let both = by_ipa(&[(Tlbi::Ripas2Le1Is, Reach::Range(BASE, BASE + 2 * KIB_4, Some(3)))]);
    assert_eq!(guest.machine.events(), both);
    let _ = first.complete();
}

/// Walk entries of the old table may be left. A flush of leaves alone would let the second caller reuse what they lead
/// to.
#[test]
fn unmapping_a_table_that_is_unmapped_already_flushes_its_walk_entries_too() {
    unmapped_twice(Unwatched);
    unmapped_twice(|_: Broken| ());
}

fn unmapped_twice(removed: impl RemovalWatcher) {
    let mut guest = guest(RANGES);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    map_pages(&mut guest, BASE + MIB_2, frame(MIB_2), 2);
    map(&mut guest, BASE + 2 * MIB_2, frame(2 * MIB_2), Level::L2, &RAM);
    let first = guest.stage2.unmap(range(BASE + MIB_2, MIB_2), &mut guest.pool, Unwatched).unwrap();
    // Alone, and among blocks that are unmapped now.
    let alone = guest.stage2.unmap(range(BASE + MIB_2, MIB_2), &mut guest.pool, Unwatched).unwrap();
    guest.events();
    let _ = alone.complete();
    let table = |start, size| by_ipa(&[(Tlbi::Ripas2E1Is, Reach::Range(start, start + size, None))]);
    assert_eq!(guest.machine.events(), table(BASE + MIB_2, MIB_2));
    let among = guest.stage2.unmap(range(BASE, 2 * MIB_2), &mut guest.pool, removed).unwrap();
    let _ = among.complete();
    assert_eq!(guest.machine.events(), table(BASE, 2 * MIB_2));
    first.complete().free(&mut guest.pool);
}

/// The page is protected already, but a TLB may still let the guest write.
#[test]
fn protecting_what_another_change_has_protected_flushes_it_too() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 2);
    let first = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap();
    let second = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap();
    assert!(second.is_empty(), "it changed nothing itself");
    let _ = second.complete();
    assert_eq!(guest.machine.events(), by_leaf(BASE, None));
    let _ = first.complete();
    guest.machine.events();
    // With nothing pending there is nothing to do.
    let _ = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap().complete();
    assert_eq!(guest.machine.events(), []);
}

/// From hardware tracking to write protection, in one step: a write is either reported or refused.
#[test]
fn clearing_dbm_and_write_reports_what_was_written_and_takes_the_rest() {
    let mut guest = guest(HINTS);
    let clean = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    for page in 0..3 {
        map(&mut guest, BASE + page * KIB_4, frame(page * KIB_4), Level::L3, &clean);
    }
    map(&mut guest, BASE + 3 * KIB_4, frame(3 * KIB_4), Level::L3, &RAM);
    guest.machine.hardware_sets(guest.walk(BASE + KIB_4).unwrap().entry, 1 << 7);
    let mut reported = Vec::new();
    let _ = guest
        .stage2
        .clear_dbm_and_write(range(BASE, 4 * KIB_4), &mut |marked| reported.push(marked))
        .unwrap()
        .complete();
    assert_eq!(reported, [Marked { ipa: BASE, level: Level::L3, mask: 0b10 }]);
    for page in 0..3 {
        let leaf = guest.walk(BASE + page * KIB_4).unwrap();
        assert!(!leaf.access().write && !leaf.dirty_by_hardware(), "page {page}");
    }
    assert!(guest.walk(BASE + 3 * KIB_4).unwrap().access().write, "one that hardware does not record stays");
}

/// A leaf opens with the result of its own removal only: the same page may be mapped and unmapped again.
#[test]
fn a_leaf_opens_with_its_own_flush_alone() {
    let (mut one, mut other) = (guest(HINTS), guest(HINTS));
    let remove = |guest: &mut Guest, level| {
        map(guest, BASE, frame(0), level, &RAM);
        let mut removed = Vec::new();
        let size = if level == Level::L3 { KIB_4 } else { MIB_2 };
        let pending =
            guest.stage2.unmap(range(BASE, size), &mut guest.pool, |leaf: Broken| removed.push(leaf)).unwrap();
        let freed = pending.complete().free(&mut guest.pool);
        assert_eq!(removed.len(), 1);
        (removed[0], freed)
    };
    // Another page keeps the table linked, so the page is unmapped by the fast path.
    map(&mut one, BASE + KIB_4, frame(0), Level::L3, &RAM);
    let removals = [
        remove(&mut one, Level::L3),
        remove(&mut one, Level::L3),
        remove(&mut other, Level::L3),
        remove(&mut other, Level::L2),
    ];
    for (number, (leaf, _)) in removals.iter().enumerate() {
        assert_eq!((leaf.ipa(), leaf.is_hardware_dirty(), leaf.is_accessed()), (BASE, false, true));
        for (flush, (_, freed)) in removals.iter().enumerate() {
            let opened = leaf.open(freed).map(|leaf| leaf.descriptor.address());
            // Two machines may have their roots at the same address, so removals of different trees are not compared
            // here.
            if (number < 2) == (flush < 2) {
                assert_eq!(opened, (number == flush).then_some(frame(0)), "{number} with {flush}");
            }
        }
    }
}

/// Pages that another CPU has unmapped are flushed at their addresses. Entries beside them that were never mapped are
/// not flushed.
#[test]
fn what_is_not_flushed_yet_is_flushed_where_it_is() {
    // The second unmap begins at an entry that was never mapped, or with a page of its own.
    fn flushes(start: u64, flushed: std::ops::Range<u64>, removed: impl RemovalWatcher) {
        let mut guest = guest(HINTS);
        for number in [0, 1, 4, 5, 6, 9] {
            map(&mut guest, BASE + number * KIB_4, frame(number * KIB_4), Level::L3, &RAM);
        }
        let first = guest.stage2.unmap(range(BASE + 4 * KIB_4, 3 * KIB_4), &mut guest.pool, Unwatched).unwrap();
        guest.machine.events();
        let part = BASE + start * KIB_4..BASE + 8 * KIB_4;
        let second = guest.stage2.unmap(part, &mut guest.pool, removed).unwrap();
        let _ = second.complete();
        let pages = flushed.map(|number| (Tlbi::Ipas2Le1Is, Reach::At(BASE + number * KIB_4, Some(3))));
        assert_eq!(guest.machine.events(), by_ipa(&pages.collect::<Vec<_>>()));
        let _ = first.complete();
    }
    for (start, flushed) in [(2, 4..7), (1, 1..7)] {
        flushes(start, flushed.clone(), Unwatched);
        flushes(start, flushed, |_: Broken| ());
    }
}

/// Two changes that found the access gone already, joined in either order: the flush covers the ranges of both.
#[test]
fn joined_changes_vouch_for_the_ranges_of_both() {
    let part = |number: u64| range(BASE + number * KIB_4, KIB_4);
    for (one, other) in [(2, 5), (5, 2)] {
        let mut guest = guest(RANGES);
        map_pages(&mut guest, BASE, frame(0), 8);
        let elsewhere = guest.stage2.write_protect(range(BASE, 8 * KIB_4)).unwrap();
        let mut joined = guest.stage2.write_protect(part(one)).unwrap();
        joined.join(guest.stage2.write_protect(part(other)).unwrap());
        guest.machine.events();
        let _ = joined.complete();
        let reach = guest.machine.events();
        let covers = reach.iter().any(|event| match event {
            Event::Tlbi(_, Reach::Range(start, end, _)) => *start <= BASE + 2 * KIB_4 && *end >= BASE + 6 * KIB_4,
            Event::Tlbi(Tlbi::VmallS12E1Is, _) => true,
            _ => false,
        });
        assert!(covers, "{reach:x?}");
        let _ = elsewhere.complete();
    }
}
