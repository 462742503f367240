// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hardware tracking of writes (DBM), page by page: what setting, making clean and clearing DBM change, keep, flush,
//! and report of what hardware recorded.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::platform::{KIB_4, MIB_2, frame};
use twofold_stage2::{Error, Marked, Relaxed, Unwatched};

const WRITABLE: u64 = 1 << 7;
/// A CPU with hardware dirty state.
const RECORDS: Features = HINTS.with_hardware_access_flag(true).with_hardware_dirty_state(true);
const READ: Attributes = Attributes::ram(Access::READ);
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..READ };
const DIRTY: Attributes = Attributes { dirty_by_hardware: true, ..RAM };

fn page(number: u64) -> Ipa {
    BASE + number * KIB_4
}

fn pages(start: u64, end: u64) -> IpaRange {
    page(start)..page(end)
}

/// Pages from [`BASE`] on, one letter each: `r`ead-only, `w`ritable without DBM, `c`lean with DBM, `d`irty with DBM,
/// `-` not mapped.
fn guest_with(features: Features, pages: &str) -> Guest {
    let mut guest = guest(features);
    for (number, letter) in pages.chars().enumerate() {
        let attributes = match letter {
            'r' => READ,
            'w' => RAM,
            'c' => CLEAN,
            'd' => DIRTY,
            _ => continue,
        };
        let offset = number as u64 * KIB_4;
        map(&mut guest, BASE + offset, frame(offset), Level::L3, &attributes);
    }
    guest
}

/// The letters of what is mapped now. The counts of the tables must agree.
fn letters(guest: &Guest, count: u64) -> String {
    #[cfg(feature = "checked")]
    guest.stage2.audit().unwrap();
    let letter = |number| match guest.walk(page(number)).map(|leaf| (leaf.dirty_by_hardware(), leaf.access().write)) {
        None => '-',
        Some((false, false)) => 'r',
        Some((false, true)) => 'w',
        Some((true, false)) => 'c',
        Some((true, true)) => 'd',
    };
    (0..count).map(letter).collect()
}

/// Every letter.
const EACH: &str = "rwcd-w";

/// The flush of the single pages from `start` up to, but not including, `end`.
fn by_pages(start: u64, end: u64) -> Vec<Event> {
    let each: Vec<_> = (start..end).map(|number| (Tlbi::Ipas2Le1Is, Reach::At(page(number), Some(3)))).collect();
    by_ipa(&each)
}

/// The number of atomic read-modify-writes of an operation: locks of tables, and words that it counts in.
fn atomics(guest: &Guest, operation: impl FnOnce(&Guest)) -> u64 {
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    guest.machine.set_atomic_hook(move || counted.set(counted.get() + 1));
    operation(guest);
    guest.machine.set_atomic_hook(|| ());
    count.get()
}

#[test]
fn setting_dbm_takes_nothing_and_flushes_nothing() {
    let guest = guest_with(RECORDS, EACH);
    assert_eq!(guest.stage2.set_dbm(pages(0, 6)), Ok(()));
    assert_eq!((letters(&guest, 6).as_str(), guest.events()), ("cdcd-d", vec![]));
    // Frames, memory types and access flags do not change.
    for number in [0, 1] {
        let leaf = guest.walk(page(number)).unwrap();
        assert_eq!((leaf.pa(), leaf.accessed(), leaf.access().read), (frame(number * KIB_4), true, true));
    }
}

#[test]
fn only_what_is_in_the_range_is_tracked() {
    let guest = guest_with(RECORDS, "wrwrw");
    assert_eq!(guest.stage2.set_dbm(pages(1, 3)), Ok(()));
    assert_eq!(letters(&guest, 5), "wcdrw");
}

#[test]
fn making_clean_sets_dbm_and_flushes_what_could_be_written() {
    let guest = guest_with(RECORDS, EACH);
    let pending = guest.stage2.set_dbm_clean(pages(0, 6)).unwrap();
    assert_eq!((letters(&guest, 6).as_str(), guest.machine.events()), ("cccc-c", vec![]));
    let _ = pending.complete();
    // From the first page that could be written to the last.
    assert_eq!(guest.events(), by_pages(1, 6));
    let pending = guest.stage2.set_dbm_clean(pages(0, 6)).unwrap();
    assert!(pending.is_empty(), "all of it is clean");
    drop(pending);
}

/// An old TLB entry allows less, so it causes at most one fault.
#[test]
fn what_could_not_be_written_is_tracked_without_a_flush() {
    let guest = guest_with(RECORDS, "rcr");
    let pending = guest.stage2.set_dbm_clean(pages(0, 3)).unwrap();
    assert!(pending.is_empty());
    let _ = pending.complete();
    assert_eq!((letters(&guest, 3).as_str(), guest.events()), ("ccc", vec![]));
}

#[test]
fn a_mask_makes_its_pages_clean_and_none_between() {
    let guest = guest_with(RECORDS.with_tlbi_range(true), &"wd".repeat(33));
    let mask = 1 << 1 | 1 << 2 | 1 << 40 | 1 << 63;
    let _ = guest.stage2.set_dbm_clean_mask(page(1), mask).unwrap().complete();
    let expected: String =
        (0..66).map(|number| if [2, 3, 41, 64].contains(&number) { 'c' } else { ['w', 'd'][number % 2] }).collect();
    assert_eq!(letters(&guest, 66), expected);
    assert!(matches!(guest.events()[1], Event::Tlbi(Tlbi::Ripas2Le1Is, _)));
    let pending = guest.stage2.set_dbm_clean_mask(page(1), 0).unwrap();
    assert!(pending.is_empty());
    drop(pending);
    assert_eq!((letters(&guest, 66), guest.events()), (expected, vec![]));
}

#[test]
fn ending_records_keeps_them_and_flushes_all_that_was_tracked() {
    let guest = guest_with(RECORDS, EACH);
    let pending = guest.stage2.clear_dbm(pages(0, 6)).unwrap();
    assert_eq!((letters(&guest, 6).as_str(), guest.machine.events()), ("rwrw-w", vec![]));
    let _ = pending.complete();
    assert_eq!(guest.events(), by_pages(2, 4));
    let pending = guest.stage2.clear_dbm(pages(0, 6)).unwrap();
    assert!(pending.is_empty());
    drop(pending);
}

/// Records of a block would not show which of its pages were written.
#[test]
fn blocks_are_not_tracked() {
    for (attributes, block) in [(RAM, 'w'), (READ, 'r'), (DIRTY, 'd'), (CLEAN, 'c')] {
        let mut guest = guest(RECORDS);
        map(&mut guest, BASE, frame(0), Level::L2, &attributes);
        map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L3, &RAM);
        guest.stage2.set_dbm(range(BASE, 2 * MIB_2)).unwrap();
        assert_eq!((letters(&guest, 1), letters(&guest, 513).pop()), (block.to_string(), Some('d')));
        // A part of a block selects the whole block.
        let _ = guest.stage2.set_dbm_clean(range(page(1), KIB_4)).unwrap().complete();
        let flush = if block == 'r' { vec![] } else { by_leaf(BASE, Some(2)) };
        assert_eq!((letters(&guest, 1).as_str(), guest.events()), ("r", flush));
        assert_eq!(guest.walk(BASE).unwrap().level, 2);
    }
}

/// A block that was mapped with DBM is cleared as a whole.
#[test]
fn records_of_a_block_are_reported_and_ended_whole() {
    let mut guest = guest(RECORDS);
    map(&mut guest, BASE, frame(0), Level::L2, &DIRTY);
    let block = Marked { ipa: BASE, level: Level::L2, mask: 1 };
    assert_eq!((dirty(&guest, pages(7, 8)), written(&guest, pages(7, 8))), (vec![block], vec![block]));
    let _ = guest.stage2.clear_dbm(pages(7, 8)).unwrap().complete();
    assert_eq!((letters(&guest, 1).as_str(), guest.events()), ("w", by_leaf(BASE, Some(2))));
    assert_eq!((dirty(&guest, pages(7, 8)), written(&guest, pages(7, 8))), (vec![], vec![block]));
}

fn dirty(guest: &Guest, range: IpaRange) -> Vec<Marked> {
    let mut reported = Vec::new();
    guest.stage2.dirty(range, &mut |marked| reported.push(marked)).unwrap();
    reported
}

fn written(guest: &Guest, range: IpaRange) -> Vec<Marked> {
    let mut reported = Vec::new();
    guest.stage2.written(range, &mut |marked| reported.push(marked)).unwrap();
    reported
}

#[test]
fn looking_tells_what_was_recorded_and_changes_nothing() {
    let guest = guest_with(RECORDS, EACH);
    let pages_of = |mask| vec![Marked { ipa: BASE, level: Level::L3, mask }];
    assert_eq!(dirty(&guest, pages(0, 6)), pages_of(0b001000));
    assert_eq!(written(&guest, pages(0, 6)), pages_of(0b101010));
    // Hardware records one more write.
    guest.machine.hardware_sets(guest.walk(page(2)).unwrap().entry, WRITABLE);
    assert_eq!(dirty(&guest, pages(0, 6)), pages_of(0b001100));
    assert_eq!(written(&guest, pages(0, 6)), pages_of(0b101110));
    assert_eq!((letters(&guest, 6).as_str(), guest.events()), ("rwdd-w", vec![]));
}

/// Reports are in words of 64 pages, counted from the start of the range, and again from the start of each table. Pages
/// outside the range are not reported.
#[test]
fn a_report_begins_where_the_range_does() {
    let guest = guest_with(RECORDS, &"d".repeat(600));
    let marked = |number, mask| Marked { ipa: page(number), level: Level::L3, mask };
    let expected = [marked(435, u64::MAX), marked(499, 0x1fff), marked(512, 0x7)];
    assert_eq!(dirty(&guest, pages(435, 515)), expected);
    assert_eq!(written(&guest, pages(435, 515)), expected);
}

/// A table without work is not even locked.
#[test]
fn tables_with_nothing_to_do_are_passed_over() {
    let nothing = |_: Marked| panic!("there is nothing");
    let all = || range(BASE, GIB);
    // A leaf that hardware may make writable counts as writable.
    for (letter, tracked, writable, untracked) in [("r", 0, 0, 1), ("w", 0, 1, 1), ("c", 1, 1, 0), ("d", 1, 1, 0)] {
        let guest = guest_with(RECORDS, &letter.repeat(3));
        let empty = guest_with(RECORDS, "");
        let locks = |operation: &dyn Fn(&Guest)| atomics(&guest, operation) - atomics(&empty, operation);
        assert_eq!(locks(&|guest| guest.stage2.dirty(all(), &mut |_| ()).unwrap()), tracked, "dirty, {letter}");
        assert_eq!(locks(&|guest| guest.stage2.written(all(), &mut |_| ()).unwrap()), writable, "written, {letter}");
        if tracked == 0 {
            guest.stage2.dirty(all(), &mut nothing.clone()).unwrap();
            let cleared = locks(&|guest| drop(guest.stage2.clear_dbm(all()).unwrap().complete()));
            assert_eq!(cleared, 0, "clear_dbm, {letter}");
        }
        assert_eq!(locks(&|guest| guest.stage2.set_dbm(all()).unwrap()), untracked, "set_dbm, {letter}");
        assert_eq!(locks(&|guest| guest.stage2.set_dbm(all()).unwrap()), 0, "DBM is set already, {letter}");
    }
}

/// The same for operations that change leaves. `-` is a table whose only page was unmapped.
#[test]
fn tables_with_nothing_to_change_are_passed_over() {
    type Operation = fn(&Guest, IpaRange);
    let operations: [(&str, &str, Operation); 5] = [
        ("age", "rwcd", |guest, all| guest.stage2.age(all, &mut |_| ()).unwrap()),
        ("clean", "cd", |guest, all| drop(guest.stage2.clean(all, &mut |_| ()).unwrap().complete())),
        ("clear_dbm_and_write", "cd", |guest, all| {
            drop(guest.stage2.clear_dbm_and_write(all, &mut |_| ()).unwrap().complete())
        }),
        ("set_dbm_clean", "rwcd", |guest, all| drop(guest.stage2.set_dbm_clean(all).unwrap().complete())),
        ("write_protect", "wcd", |guest, all| drop(guest.stage2.write_protect(all).unwrap().complete())),
    ];
    for (name, wants, operation) in operations {
        for letter in ["r", "w", "c", "d", "-"] {
            let all = || range(BASE, GIB);
            let mut guest = guest_with(RECORDS, if letter == "-" { "r" } else { letter });
            if letter == "-" {
                let removed = guest.stage2.unmap(pages(0, 1), &mut guest.pool, Unwatched).unwrap();
                removed.complete().free(&mut guest.pool);
            }
            let locks = atomics(&guest, |guest| operation(guest, all()));
            let of_itself = atomics(&guest_with(RECORDS, ""), |guest| operation(guest, all()));
            assert_eq!(locks > of_itself, wants.contains(letter), "{name}, {letter}");
        }
    }
}

/// Hardware records a write between the read of an entry and its change.
#[test]
fn a_write_at_the_moment_of_a_change_is_kept() {
    type Operation = fn(&Guest);
    let clear_dbm: Operation = |guest| drop(guest.stage2.clear_dbm(pages(0, 1)).unwrap().complete());
    let set_dbm: Operation = |guest| guest.stage2.set_dbm(pages(0, 2)).unwrap();
    let relax: Operation = |guest| {
        let more = Access { execute: twofold_stage2::Execute::ALWAYS, ..Access::READ };
        assert_eq!(guest.stage2.relax_page(BASE, more), Ok(Relaxed::Widened));
    };
    for (operation, expected) in [(clear_dbm, "wr"), (set_dbm, "dc"), (relax, "dr")] {
        let guest = guest_with(RECORDS, "cr");
        let (machine, entry) = (guest.machine.clone(), guest.walk(BASE).unwrap().entry);
        guest.machine.set_atomic_hook(move || machine.hardware_sets(entry, WRITABLE));
        operation(&guest);
        guest.machine.set_atomic_hook(|| ());
        assert_eq!(letters(&guest, 2), expected);
        assert_eq!(written(&guest, pages(0, 1)).len(), 1);
    }
}

#[test]
fn a_page_is_widened_on_this_cpu() {
    let guest = guest_with(RECORDS, "rc-");
    for (number, letters_then) in [(0, "wc-"), (1, "wd-")] {
        guest.watch(page(number));
        assert_eq!(guest.stage2.relax_page(page(number) + 8, Access::READ_WRITE), Ok(Relaxed::Widened));
        let widened = vec![sees(page(number), 3, frame(number * KIB_4), Access::READ_WRITE)];
        assert_eq!(guest.events(), [widened, on_this_cpu(page(number), 3)].concat());
        assert_eq!(letters(&guest, 3), letters_then);
        // This CPU's TLB may be stale.
        assert_eq!(guest.stage2.relax_page(page(number), Access::READ_WRITE), Ok(Relaxed::Already));
        assert_eq!(guest.events(), on_this_cpu(page(number), 3));
    }
    assert_eq!(guest.stage2.relax_page(page(2), Access::READ), Err(Error::NotMapped { ipa: page(2) }));
    assert_eq!(guest.events(), on_this_cpu(page(2), None));
}

#[test]
fn a_block_in_the_way_stays_as_it_is() {
    for (level, attributes) in [(Level::L2, READ), (Level::L1, READ), (Level::L2, CLEAN), (Level::L2, RAM)] {
        let mut guest = guest(RECORDS);
        map(&mut guest, BASE, frame(0), level, &attributes);
        let before = guest.walk(BASE).unwrap().raw;
        let refused = guest.stage2.relax_page(page(5), Access::READ_WRITE);
        assert_eq!(refused, Err(Error::BlockInTheWay { ipa: BASE, level }));
        assert_eq!((guest.walk(BASE).unwrap().raw, guest.events()), (before, vec![]));
    }
}

#[test]
fn ranges_that_are_none_are_refused() {
    let guest = guest_with(RECORDS, EACH);
    let end = Ipa::new(1 << IPA_BITS);
    let stage2 = &guest.stage2;
    for bad in [BASE + 1..page(6), BASE..page(1) + 8, end..end + KIB_4, BASE..end + KIB_4] {
        let expected = stage2.age(bad.clone(), &mut |_| ());
        assert!(expected.is_err());
        assert_eq!(stage2.set_dbm(bad.clone()), expected);
        assert_eq!(stage2.set_dbm_clean(bad.clone()).map(drop), expected);
        assert_eq!(stage2.clear_dbm(bad.clone()).map(drop), expected);
        assert_eq!(stage2.dirty(bad.clone(), &mut |_| ()), expected);
        assert_eq!(stage2.written(bad, &mut |_| ()), expected);
    }
    for (first, mask) in [(BASE + 1, 1), (Ipa::new((1 << IPA_BITS) - KIB_4), 0b11), (Ipa::new(u64::MAX - 0xfff), 2)] {
        let expected = stage2.write_protect_mask(first, mask).map(drop);
        assert!(expected.is_err());
        assert_eq!(stage2.set_dbm_clean_mask(first, mask).map(drop), expected);
    }
    assert_eq!((letters(&guest, 6).as_str(), guest.events()), (EACH, vec![]));
}

/// A CPU without hardware dirty state sets DBM nowhere. Records that another CPU made can still be reported and ended.
#[test]
fn a_cpu_without_records_sets_dbm_on_nothing() {
    let guest = guest_with(HINTS, EACH);
    let all = pages(0, 6);
    assert_eq!(guest.stage2.set_dbm(all.clone()), Err(Error::NoDirtyState));
    assert_eq!(guest.stage2.set_dbm_clean(all.clone()).map(drop), Err(Error::NoDirtyState));
    assert_eq!(guest.stage2.set_dbm_clean_mask(BASE, 1).map(drop), Err(Error::NoDirtyState));
    assert_eq!((letters(&guest, 6).as_str(), guest.events()), (EACH, vec![]));
    assert_eq!((dirty(&guest, all.clone()).len(), written(&guest, all.clone()).len()), (1, 1));
    let _ = guest.stage2.clear_dbm(all).unwrap().complete();
    assert_eq!(letters(&guest, 6), "rwrw-w");
}

/// Several changes at once, as a dirty log joins them: one flush.
#[test]
fn sections_that_are_ended_together_are_flushed_once() {
    let guest = guest_with(RECORDS.with_tlbi_range(true), &"d".repeat(16));
    let mut pending = guest.stage2.clear_dbm(pages(0, 4)).unwrap();
    pending.join(guest.stage2.clear_dbm(pages(4, 8)).unwrap());
    pending.join(guest.stage2.clear_dbm(pages(12, 16)).unwrap());
    guest.machine.events();
    let _ = pending.complete();
    assert_eq!(guest.events(), by_ipa(&[(Tlbi::Ripas2Le1Is, Reach::Range(page(0), page(16), Some(3)))]));
    assert_eq!(letters(&guest, 16), "wwwwwwwwddddwwww");
}

/// The pages that `mask` selects, from the first one on.
fn marked(mask: u64) -> Vec<Marked> {
    vec![Marked { ipa: BASE, level: Level::L3, mask }]
}

/// If hardware may record a write at the same moment, access flags are cleared one leaf at a time.
#[test]
fn accesses_beside_records_are_reported_once() {
    let guest = guest_with(RECORDS, &"c".repeat(20));
    let young = || {
        let mut found = Vec::new();
        guest.stage2.age(pages(0, 20), &mut |pages| found.push(pages)).unwrap();
        found
    };
    assert_eq!(young(), marked((1 << 20) - 1));
    assert_eq!(young(), []);
    assert_eq!(guest.stage2.make_young(page(13)), Ok(true));
    assert_eq!(young(), marked(1 << 13));
    assert_eq!(letters(&guest, 20), "c".repeat(20));
}

/// Leaves are read in rows of eight.
#[test]
fn records_beyond_the_first_eight_leaves_are_collected() {
    let dirty = |number: u64| if [3, 11, 30].contains(&number) { 'd' } else { 'c' };
    let guest = guest_with(RECORDS, &(0..40).map(dirty).collect::<String>());
    let mut found = Vec::new();
    let _ = guest.stage2.clean(pages(0, 40), &mut |pages| found.push(pages)).unwrap().complete();
    assert_eq!(found, marked(1 << 3 | 1 << 11 | 1 << 30));
    assert_eq!(letters(&guest, 40), "c".repeat(40));
}

/// S2AP\[1\] and DBM are cleared, and no other bit changes.
#[test]
fn ending_records_changes_nothing_else() {
    const DBM: u64 = 1 << 51;
    let guest = guest_with(RECORDS, "d");
    let before = guest.walk(BASE).unwrap().raw;
    let _ = guest.stage2.clear_dbm_and_write(pages(0, 1), &mut |_| ()).unwrap().complete();
    assert_eq!(guest.walk(BASE).unwrap().raw, before & !(WRITABLE | DBM));
}

/// Leaves are changed in rows of eight, and the rest after them. Each is flushed at its address, and counted.
#[test]
fn rows_of_leaves_are_changed_and_flushed_where_they_are() {
    type Operation = fn(&Guest);
    let protect: Operation = |guest| drop(guest.stage2.write_protect(pages(0, 20)).unwrap().complete());
    let set_dbm_clean: Operation = |guest| drop(guest.stage2.set_dbm_clean(pages(0, 20)).unwrap().complete());
    for (operation, then) in [(protect, "r"), (set_dbm_clean, "c")] {
        for number in [0, 5, 8, 13, 15, 16, 19] {
            let letter = |at: u64| if at == number { 'w' } else { 'r' };
            let guest = guest_with(RECORDS, &(0..20).map(letter).collect::<String>());
            operation(&guest);
            assert_eq!(guest.events(), by_leaf(page(number), Some(3)));
            assert_eq!(letters(&guest, 20), then.repeat(20));
            operation(&guest);
            assert_eq!(guest.events(), [], "nothing is left to do");
        }
        let guest = guest_with(RECORDS, &"w".repeat(20));
        let before = guest.walk(page(11)).unwrap().raw;
        operation(&guest);
        assert_eq!(letters(&guest, 20), then.repeat(20));
        let changed = before ^ guest.walk(page(11)).unwrap().raw;
        assert_eq!(changed, if then == "c" { WRITABLE | 1 << 51 } else { WRITABLE });
    }
}

/// An entry that is not mapped, between pages whose DBM is changed one at a time, does not change: it can be mapped
/// afterwards.
#[test]
fn setting_dbm_leaves_what_is_not_mapped_alone() {
    type Operation = fn(&Guest);
    let set_dbm: Operation = |guest| guest.stage2.set_dbm(pages(0, 4)).unwrap();
    let set_dbm_clean: Operation = |guest| drop(guest.stage2.set_dbm_clean(pages(0, 4)).unwrap().complete());
    let write_protect: Operation = |guest| drop(guest.stage2.write_protect(pages(0, 4)).unwrap().complete());
    for (operation, then) in [(set_dbm, "d-cd"), (set_dbm_clean, "c-cc"), (write_protect, "r-rr")] {
        let mut guest = guest_with(RECORDS, "w-rd");
        let entry = Pa::new(guest.walk(page(0)).unwrap().entry.raw() + 8);
        operation(&guest);
        assert_eq!((letters(&guest, 4).as_str(), guest.machine.read(entry)), (then, 0));
        map(&mut guest, page(1), frame(GIB), Level::L3, &RAM);
    }
}

/// In a table with DBM, a leaf that cannot be written is not changed, and one that can be is flushed.
#[test]
fn write_protection_beside_records_flushes_what_it_changed() {
    for (before, start, end) in [("rrwcrr", 2, 4), ("rdrrrr", 1, 2), ("-rr-wd", 4, 6), ("crrrrr", 0, 1)] {
        let guest = guest_with(RECORDS, before);
        let _ = guest.stage2.write_protect(pages(0, 6)).unwrap().complete();
        assert_eq!(guest.events(), by_pages(start, end), "{before}");
        assert_eq!(letters(&guest, 6), before.replace(['w', 'c', 'd'], "r"));
    }
}
