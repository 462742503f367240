// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contiguous groups of 16 pages: one sequence for all entries of a group, however many of them change.

use std::ops::ControlFlow;

use twofold_stage2::{Broken, Contiguous, Error, Grouped, Kib4, Marked, Memory, Relaxed, Unwatched};

use super::*;
use crate::platform::window::window;
use crate::platform::{KIB_4, MIB_2, frame, table};

pub(super) type Grouping = Contiguous<Kib4>;

pub(super) const SIZE: u64 = 16 * KIB_4;
pub(super) const LAST: u64 = SIZE - KIB_4;
const ALL: Attributes = Attributes::ram(Access::ALL);
const READ: Attributes = Attributes::ram(Access::READ);
/// Level hints, and cache maintenance: of data, and of an instruction cache by physical address.
const PIPT: Features = PLAIN.with_instruction_cache_pipt(true).with_tlbi_level_hint(true);
const LIVE: Features = HINTS.with_bbm(2).with_no_conflict_abort(true);

pub(super) fn guest(features: Features) -> Guest<Grouping> {
    let guest = Guest { check: counts_agree, ..Guest::of(Contiguous(Kib4), features, IPA_BITS, 24) };
    guest.events();
    guest
}

/// A guest with a group at [`BASE`], whose first and last page are watched.
pub(super) fn grouped(features: Features, attributes: &Attributes) -> Guest<Grouping> {
    let mut guest = guest(features);
    assert_eq!(map_group(&mut guest, 0, attributes), Ok(Grouped::New));
    watch(&guest);
    guest
}

pub(super) fn watch(guest: &Guest<Grouping>) {
    guest.watch(BASE);
    guest.watch(BASE + LAST);
}

fn map_group(guest: &mut Guest<Grouping>, at: u64, attributes: &Attributes) -> Result<Grouped<Grouping>, Error> {
    let grant = guest.stage2.open(window(frame(at), SIZE), BASE + at);
    grant.map_group(Level::L3, attributes, &mut guest.pool, &mut |_| ())
}

pub(super) fn map_page(guest: &mut Guest<Grouping>, at: u64, attributes: &Attributes) {
    map_at(guest, at, Level::L3, attributes);
}

/// Maps a page or a block, and forgets the events.
pub(super) fn map_at(guest: &mut Guest<Grouping>, at: u64, level: Level, attributes: &Attributes) {
    map(guest, BASE + at, frame(at), level, attributes);
}

/// Both watched pages, with this access. The entries are written in ascending order.
pub(super) fn made(access: Access) -> [Event; 3] {
    [sees(BASE, 3, frame(0), access), sees(BASE + LAST, 3, frame(LAST), access), Event::Dsb(Domain::IshSt)]
}

pub(super) fn broken() -> [Event; 2] {
    [sees_nothing(BASE), sees_nothing(BASE + LAST)]
}

/// The flush of these pages, from the first group's start on.
pub(super) fn flush(pages: u64) -> Vec<Event> {
    let each = (0..pages).map(|page| (Tlbi::Ipas2Le1Is, Reach::At(BASE + page * KIB_4, Some(3))));
    by_ipa(&each.collect::<Vec<_>>())
}

const CLEAN: [Event; 2] = [Event::Clean(Pa::new(0x10_0000_0000), SIZE), Event::Dsb(Domain::Ish)];
const CODE: [Event; 3] =
    [Event::Dsb(Domain::Ish), Event::InvalidateCode(Pa::new(0x10_0000_0000), SIZE), Event::Dsb(Domain::Ish)];

#[test]
fn a_new_group_is_cleaned_before_it_is_made() {
    let cases: [(Features, Attributes, &[&[Event]]); 4] =
        [(HINTS, RAM, &[]), (PLAIN, RAM, &[&CLEAN]), (PIPT, RAM, &[&CLEAN]), (PIPT, ALL, &[&CLEAN, &CODE])];
    for (features, attributes, maintenance) in cases {
        let mut guest = guest(features);
        watch(&guest);
        assert_eq!(map_group(&mut guest, 0, &attributes), Ok(Grouped::New));
        let events = guest.events();
        let tables = [0, 1].map(|number| [Event::Take(table(number)), Event::Dsb(Domain::IshSt)]).concat();
        let sights = made(attributes.access);
        assert_eq!(events, [&tables[..], &maintenance.concat(), &sights].concat(), "{attributes:?}");
    }
}

/// What was mapped is cleaned already. Code that was mapped without execution needs the instruction side.
#[test]
fn leaves_are_joined_by_one_break() {
    let cases: [(Features, Attributes, &[Event]); 3] = [(HINTS, RAM, &[]), (PIPT, RAM, &[]), (PIPT, ALL, &CODE)];
    for (features, attributes, maintenance) in cases {
        let mut guest = guest(features);
        (0..16).for_each(|page| map_page(&mut guest, page * KIB_4, &READ));
        watch(&guest);
        assert_eq!(map_group(&mut guest, 0, &attributes), Ok(Grouped::Joined));
        let expected = [&broken()[..], &flush(16), maintenance, &made(attributes.access)].concat();
        assert_eq!(guest.events(), expected, "{attributes:?}");
    }
}

/// A group with a hole is cleaned as a whole. A hole that is stale needs the flush, as a leaf does.
#[test]
fn holes_are_cleaned_and_what_is_stale_is_flushed() {
    for (features, maintenance) in [(HINTS, &[][..]), (PIPT, &CLEAN)] {
        let mut guest = guest(features);
        map_page(&mut guest, KIB_4, &RAM);
        watch(&guest);
        assert_eq!(map_group(&mut guest, 0, &RAM), Ok(Grouped::Joined));
        assert_eq!(guest.events(), [&flush(16), maintenance, &made(RAM.access)].concat());
    }
    let mut guest = grouped(HINTS, &RAM);
    map_page(&mut guest, SIZE, &RAM);
    for is_flushed in [false, true] {
        let pending = guest.stage2.unmap(range(BASE, SIZE), &mut guest.pool, |_: Broken<Grouping>| ()).unwrap();
        let pending = (!is_flushed).then_some(pending);
        guest.machine.events();
        let grant = guest.stage2.open(window(frame(0), SIZE), BASE);
        assert_eq!(grant.map_group(Level::L3, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::New));
        let flush = if is_flushed { vec![] } else { flush(16) };
        assert_eq!(guest.machine.events(), [&flush[..], &made(RAM.access)].concat());
        drop(pending);
    }
    guest.events();
    assert!(matches!(map_group(&mut guest, 0, &RAM), Ok(Grouped::Already(_))));
    assert_eq!(guest.events(), []);
}

/// Blocks of level 2 may take the place of tables, whose walk entries go, too.
#[test]
fn what_is_stale_above_level_3_may_have_been_a_table() {
    let mut guest = guest(HINTS);
    map_page(&mut guest, 0, &RAM);
    map_at(&mut guest, 16 * MIB_2, Level::L2, &RAM);
    let pending = guest.stage2.unmap(range(BASE, MIB_2), &mut guest.pool, |_: Broken<Grouping>| ()).unwrap();
    guest.machine.events();
    let grant = guest.stage2.open(window(frame(0), 16 * MIB_2), BASE);
    assert_eq!(grant.map_group(Level::L2, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::New));
    let events = guest.machine.events();
    assert_eq!(events, [&by_vmid()[..], &[Event::Dsb(Domain::IshSt)]].concat());
    pending.complete().free(&mut guest.pool);
}

#[test]
fn a_group_is_widened_by_one_break_or_in_place() {
    let guest = grouped(HINTS, &READ);
    assert_eq!(guest.stage2.relax(BASE + KIB_4, Access::READ_WRITE), Ok(Relaxed::Widened));
    let here = on_this_cpu(BASE + KIB_4, 3);
    let expected = [&broken()[..], &flush(16), &made(Access::READ_WRITE), &here].concat();
    assert_eq!(guest.events(), expected);

    let guest = grouped(LIVE, &READ);
    assert_eq!(guest.stage2.relax(BASE + KIB_4, Access::READ_WRITE), Ok(Relaxed::Widened));
    let [first, last, _] = made(Access::READ_WRITE);
    assert_eq!(guest.events(), [&[first, last][..], &here].concat());
}

/// Instruction fetches must see what was written before, so a group that becomes executable is broken in any case.
#[test]
fn a_group_becomes_executable_behind_the_instruction_side() {
    for features in [PIPT, PIPT.with_bbm(2).with_no_conflict_abort(true)] {
        let guest = grouped(features, &READ);
        assert_eq!(guest.stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
        let here = on_this_cpu(BASE, 3);
        let expected = [&broken()[..], &flush(16), &CODE, &made(Access::ALL), &here].concat();
        assert_eq!(guest.events(), expected);
    }
}

#[test]
fn the_hints_of_a_table_go_with_one_flush_or_none() {
    for (features, flushes) in [(HINTS, true), (LIVE, false)] {
        let mut guest = grouped(features, &RAM);
        assert_eq!(map_group(&mut guest, SIZE, &RAM), Ok(Grouped::New));
        guest.events();
        assert_eq!(split(&mut guest, range(BASE, 2 * SIZE)), 2);
        let expected = match flushes {
            true => [&broken()[..], &flush(32), &made(RAM.access)].concat(),
            false => vec![Event::Dsb(Domain::IshSt)],
        };
        assert_eq!(guest.events(), expected);
        assert_eq!(hints(&guest, 32), []);
    }
}

/// A grant that was made before its memory was withdrawn makes no group.
#[test]
fn an_old_grant_makes_no_group() {
    for has_table in [true, false] {
        let mut guest = Guest::of(Contiguous(Kib4), HINTS, IPA_BITS, 64);
        let run = guest.pool.run(32);
        let at = run.pa().align_up(SIZE).unwrap() - run.pa();
        let (_, run) = run.split_at(at).unwrap();
        let (run, _) = run.split_at(SIZE).unwrap();
        let lent = guest.stage2.lend(run, BASE, range(BASE, SIZE));
        if has_table {
            map_page(&mut guest, SIZE, &RAM);
        }
        let Guest { stage2, pool, .. } = &mut guest;
        let grant = stage2.grant(&lent, BASE, SIZE).unwrap();
        let _ = stage2.withdraw(lent, pool, Unwatched).unwrap().reclaim(pool);
        let mapped = grant.map_group(Level::L3, &RAM, pool, &mut |_| ());
        assert_eq!(mapped, Err(Error::Withdrawn { ipa: BASE }));
        assert_eq!(stage2.look_up(BASE).map(|leaf| leaf.pa()), None);
    }
}

/// The pages with the hint, of those from [`BASE`] on. Checks the tables first.
pub(super) fn hints(guest: &Guest<Grouping>, pages: u64) -> Vec<u64> {
    (guest.check)(&guest.stage2);
    let hinted = |page: &u64| {
        let leaf = guest.stage2.look_up(BASE + page * KIB_4);
        leaf.is_some_and(|leaf| leaf.descriptor.is_contiguous())
    };
    (0..pages).filter(hinted).collect()
}

/// The number of groups whose hint a split of this range has cleared, and of blocks.
fn split(guest: &mut Guest<Grouping>, range: IpaRange) -> u64 {
    let split = guest.stage2.split(range, GIB, &mut guest.pool, |_, _| ControlFlow::Continue(()));
    split.unwrap().blocks
}

#[test]
fn a_split_finds_the_groups_that_its_range_touches() {
    for features in [HINTS, LIVE] {
        let mut guest = guest(features);
        // Three groups, 16 pages alone, a group; a group in the next table.
        for at in [0, 1, 2, 4, 32] {
            assert_eq!(map_group(&mut guest, at * SIZE, &RAM), Ok(Grouped::New));
        }
        (48..64).for_each(|page| map_page(&mut guest, page * KIB_4, &RAM));
        assert_eq!(split(&mut guest, range(BASE, SIZE)), 1);
        assert_eq!(hints(&guest, 80), (16..48).chain(64..80).collect::<Vec<_>>(), "none behind the range");
        assert_eq!(split(&mut guest, range(BASE, SIZE)), 0);
        assert_eq!(map_group(&mut guest, 0, &RAM), Ok(Grouped::Joined), "the same leaves without the hint");
        assert_eq!(split(&mut guest, range(BASE + 4 * KIB_4, KIB_4)), 1);
        assert_eq!(split(&mut guest, range(BASE + 2 * SIZE - KIB_4, 2 * KIB_4)), 2, "a page of each");
        assert_eq!(hints(&guest, 80), (64..80).collect::<Vec<_>>());
        assert_eq!(split(&mut guest, range(BASE + 3 * SIZE, SIZE + KIB_4)), 1, "behind pages alone");
        assert_eq!(split(&mut guest, range(BASE + 5 * SIZE, 28 * SIZE)), 1, "in the next table");
        assert_eq!(hints(&guest, 33 * 16), []);
    }
}

#[test]
fn a_split_finds_groups_behind_what_is_not_mapped() {
    let mut guest = guest(HINTS);
    assert_eq!(map_group(&mut guest, MIB_2, &RAM), Ok(Grouped::New));
    assert_eq!(split(&mut guest, range(BASE, 2 * MIB_2)), 1);
}

#[test]
fn a_group_of_blocks_is_found_beside_tables() {
    let mut guest = guest(HINTS);
    map_at(&mut guest, 0, Level::L3, &RAM);
    for block in 1..16 {
        map_at(&mut guest, block * MIB_2, Level::L2, &RAM);
    }
    let grant = guest.stage2.open(window(frame(16 * MIB_2), 16 * MIB_2), BASE + 16 * MIB_2);
    assert_eq!(grant.map_group(Level::L2, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::New));
    let grouped = |guest: &Guest<Grouping>| {
        let leaf = |block: u64| guest.stage2.look_up(BASE + block * MIB_2).unwrap();
        (16..32).filter(|block| leaf(*block).descriptor.is_contiguous()).count()
    };
    assert_eq!(grouped(&guest), 16);
    // A page of one of its blocks. The others keep their size, and lose the hint.
    let page = range(BASE + 20 * MIB_2 + KIB_4, KIB_4);
    guest.stage2.unmap(page, &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    assert_eq!(grouped(&guest), 0);
    let levels = [19, 20, 21].map(|block| guest.stage2.look_up(BASE + block * MIB_2).unwrap().level);
    assert_eq!(levels, [Level::L2, Level::L3, Level::L2]);
    assert_eq!(guest.stage2.look_up(page_of(20, 1)), None);
    assert_eq!(guest.stage2.look_up(page_of(20, 2)).unwrap().pa(), frame(20 * MIB_2 + 2 * KIB_4));
}

/// All of a group of blocks loses the hint before one of them is split: for a split, and for a group of pages.
#[test]
fn a_block_of_a_group_is_split_alone() {
    for with_group in [false, true] {
        let mut guest = guest(HINTS);
        let grant = guest.stage2.open(window(frame(0), 16 * MIB_2), BASE);
        assert_eq!(grant.map_group(Level::L2, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::New));
        let second = BASE + MIB_2;
        if with_group {
            let other = guest.stage2.open(window(frame(0), SIZE), second);
            let mapped = other.map_group(Level::L3, &RAM, &mut guest.pool, &mut |_| ());
            assert_eq!(mapped, Err(Error::NotOneGroup { ipa: second, level: Level::L3 }));
        } else {
            assert_eq!(split(&mut guest, range(second, MIB_2)), 1);
        }
        let leaves = (0..16).map(|block| guest.stage2.look_up(BASE + block * MIB_2).unwrap());
        let kept = leaves.map(|leaf| (leaf.level, leaf.descriptor.is_contiguous())).collect::<Vec<_>>();
        let expected = (0..16).map(|block| (if block == 1 { Level::L3 } else { Level::L2 }, false));
        assert_eq!(kept, expected.collect::<Vec<_>>());
    }
}

/// An end that no block of the root reaches across may be inside a group of them.
#[test]
fn a_block_of_the_root_leaves_its_group() {
    let mut guest = guest(HINTS);
    let first = Ipa::new(16 * GIB);
    let grant = guest.stage2.open(window(frame(0), 16 * GIB), first);
    assert_eq!(grant.map_group(Level::L1, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::New));
    guest.stage2.unmap(range(first + GIB, GIB), &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    let hints =
        (0..16).map(|block| guest.stage2.look_up(first + block * GIB).map(|leaf| leaf.descriptor.is_contiguous()));
    let expected = (0..16).map(|block| (block != 1).then_some(false));
    assert_eq!(hints.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// Leaves are reported in batches, with no lock held.
#[test]
fn no_group_is_partly_unmapped_when_its_leaves_are_reported() {
    let mut guest = guest(HINTS);
    (9..16).for_each(|page| map_page(&mut guest, page * KIB_4, &RAM));
    (1..=10).for_each(|group| assert_eq!(map_group(&mut guest, group * SIZE, &RAM), Ok(Grouped::New)));
    let mut reported = Vec::new();
    let (stage2, pool) = (&guest.stage2, &mut guest.pool);
    let removed = |broken: Broken<Grouping>| {
        reported.push((broken.ipa() - BASE) / KIB_4);
        for group in 1..=10 {
            let mapped = (0..16).filter(|page| stage2.look_up(BASE + group * SIZE + page * KIB_4).is_some()).count();
            assert!(mapped == 0 || mapped == 16, "{mapped} pages of group {group}");
        }
    };
    let pages = range(BASE + 9 * KIB_4, 167 * KIB_4);
    stage2.unmap(pages, pool, removed).unwrap().complete().free(pool);
    assert_eq!(reported, (9..176).collect::<Vec<_>>());
}

fn page_of(block: u64, page: u64) -> Ipa {
    BASE + block * MIB_2 + page * KIB_4
}

/// Blocks that are joined were no tables, so the flush has their level.
#[test]
fn blocks_are_joined_by_one_break() {
    let mut guest = guest(HINTS);
    (0..16).for_each(|block| map_at(&mut guest, block * MIB_2, Level::L2, &RAM));
    let grant = guest.stage2.open(window(frame(0), 16 * MIB_2), BASE);
    assert_eq!(grant.map_group(Level::L2, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::Joined));
    let each = (0..16).map(|block| (Tlbi::Ipas2Le1Is, Reach::At(BASE + block * MIB_2, Some(2))));
    let expected = [&by_ipa(&each.collect::<Vec<_>>())[..], &[Event::Dsb(Domain::IshSt)]].concat();
    assert_eq!(guest.events(), expected);
}

/// `map_range` makes a group where the first page was removed, and joins what is there.
#[test]
fn a_range_joins_the_pages_behind_a_hole() {
    let mut guest = guest(HINTS);
    (0..16).for_each(|page| map_page(&mut guest, page * KIB_4, &RAM));
    guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    guest.stage2.open(window(frame(0), SIZE), BASE).map_range(Level::L3, &RAM, &mut guest.pool).unwrap();
    assert_eq!(hints(&guest, 16).len(), 16);
}

/// The lines of a group that was not cached are cleaned when it goes. A cached one goes without, by a flush on completion.
#[test]
fn a_group_that_is_not_cached_is_cleaned_when_it_goes() {
    for memory in [Memory::NonCacheable, Memory::Normal] {
        let mut guest = guest(HINTS);
        map_page(&mut guest, SIZE, &RAM);
        assert_eq!(map_group(&mut guest, 0, &Attributes { memory, ..RAM }), Ok(Grouped::New));
        guest.events();
        let pending = guest.stage2.unmap(range(BASE, SIZE), &mut guest.pool, Unwatched).unwrap();
        let mut events = guest.machine.events();
        assert_eq!(events.is_empty(), memory == Memory::Normal);
        pending.complete().free(&mut guest.pool);
        events.extend(guest.events());
        let cleaned: u64 = events.iter().map(|event| if let Event::Clean(_, size) = event { *size } else { 0 }).sum();
        assert_eq!(cleaned, if memory == Memory::Normal { 0 } else { SIZE });
    }
}

/// What needs no break: access flags, and more access to a group that is executable already where FEAT_BBM allows it. A
/// device has no code.
#[test]
fn a_group_is_broken_and_made_executable_only_where_it_has_to_be() {
    let guest = grouped(HINTS, &READ);
    guest.stage2.age(range(BASE, SIZE), &mut |_: Marked| ()).unwrap();
    assert_eq!(guest.stage2.make_young(BASE + KIB_4), Ok(true));
    assert_eq!(guest.events(), []);
    let accessed = |guest: &Guest<Grouping>| {
        (0..16).all(|page| guest.stage2.look_up(BASE + page * KIB_4).unwrap().descriptor.is_accessed())
    };
    assert!(accessed(&guest) && hints(&guest, 16).len() == 16);
    guest.stage2.age(range(BASE, SIZE), &mut |_: Marked| ()).unwrap();
    assert_eq!(guest.stage2.relax_page(BASE, Access::READ), Ok(Relaxed::Widened));
    assert!(accessed(&guest) && hints(&guest, 16).len() == 16);

    let code = Attributes::ram(Access { write: false, ..Access::ALL });
    let guest = grouped(LIVE, &code);
    assert_eq!(guest.stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
    let [first, last, _] = made(Access::ALL);
    assert_eq!(guest.events(), [&[first, last][..], &on_this_cpu(BASE, 3)].concat());

    let guest = grouped(PIPT, &Attributes::device());
    assert_eq!(guest.stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
    let expected = [&broken()[..], &flush(16), &made(Access::ALL), &on_this_cpu(BASE, 3)].concat();
    assert_eq!(guest.events(), expected);
}

/// Hardware sets the access flag of one leaf, and the whole group counts as accessed.
#[test]
fn access_flags_stay_when_the_hint_goes() {
    const ACCESSED: u64 = 1 << 10;
    for features in [HINTS, LIVE] {
        let mut guest = grouped(features, &RAM);
        let aged = |guest: &Guest<Grouping>| {
            let mut pages = 0;
            guest.stage2.age(range(BASE, SIZE), &mut |marked: Marked| pages += marked.mask.count_ones()).unwrap();
            pages
        };
        assert_eq!([aged(&guest), aged(&guest)], [16, 0]);
        assert_eq!((split(&mut guest, range(BASE, SIZE)), aged(&guest)), (1, 0), "{features:?}");
        assert_eq!(map_group(&mut guest, 0, &Attributes { accessed: false, ..RAM }), Ok(Grouped::Joined));
        let entry = guest.walk(BASE + 3 * KIB_4).unwrap().entry;
        guest.machine.hardware_sets(entry, ACCESSED);
        assert_eq!((split(&mut guest, range(BASE, KIB_4)), aged(&guest)), (1, 16), "{features:?}");
    }
}

/// Hardware sets the access flag of one leaf, and the whole group is reported, but nothing beside it. Beside a page with
/// DBM, access flags are cleared one by one.
#[test]
fn a_group_is_as_young_as_any_of_its_pages() {
    const ACCESSED: u64 = 1 << 10;
    const OLD: Attributes = Attributes { accessed: false, ..RAM };
    fn sets_accessed(guest: &Guest<Grouping>, page: u64) {
        guest.machine.hardware_sets(guest.walk(BASE + page * KIB_4).unwrap().entry, ACCESSED);
    }
    fn aged(guest: &Guest<Grouping>, range: IpaRange) -> Vec<(u64, u64)> {
        let mut young = Vec::new();
        guest.stage2.age(range, &mut |found| young.push(((found.ipa - BASE) / KIB_4, found.mask))).unwrap();
        young
    }
    for has_dbm in [false, true] {
        let mut guest = guest(HINTS.with_hardware_dirty_state(true));
        for group in [0, 1, 4, 8] {
            assert_eq!(map_group(&mut guest, group * SIZE, &OLD), Ok(Grouped::New));
        }
        (32..48).for_each(|page| map_page(&mut guest, page * KIB_4, &OLD));
        if has_dbm {
            map_page(&mut guest, 200 * KIB_4, &Attributes { dirty_by_hardware: true, ..OLD });
        }
        // A page of three of the groups, and a page alone.
        [19, 40, 64, 143].into_iter().for_each(|page| sets_accessed(&guest, page));
        let table = range(BASE, MIB_2);
        assert_eq!(aged(&guest, table.clone()), [(0, 0xffff << 16 | 1 << 40), (64, 0xffff), (128, 0xffff)]);
        assert_eq!(aged(&guest, table), []);
        // From a page inside the second group on.
        sets_accessed(&guest, 18);
        assert_eq!(aged(&guest, range(BASE + 20 * KIB_4, KIB_4)), [(16, 0xffff)]);
    }
}

/// Hardware's records, by the addresses of their pages.
#[test]
fn the_records_of_joined_leaves_are_reported() {
    const WRITE: u64 = 1 << 7;
    let tracked = Attributes { dirty_by_hardware: true, ..READ };
    let mut guest = guest(HINTS.with_hardware_dirty_state(true));
    (0..16).for_each(|page| map_page(&mut guest, page * KIB_4, if page == 7 { &RAM } else { &tracked }));
    for page in [1, 6, 15] {
        let entry = guest.walk(BASE + page * KIB_4).unwrap().entry;
        guest.machine.hardware_sets(entry, WRITE);
    }
    // `map_range` reports nothing, so it joins no leaf with DBM.
    guest.stage2.open(window(frame(0), SIZE), BASE).map_range(Level::L3, &RAM, &mut guest.pool).unwrap();
    assert_eq!(hints(&guest, 16), []);
    let mut written = Vec::new();
    let grant = guest.stage2.open(window(frame(0), SIZE), BASE);
    let joined = grant.map_group(Level::L3, &RAM, &mut guest.pool, &mut |page| written.push((page - BASE) / KIB_4));
    assert_eq!((joined, written), (Ok(Grouped::Joined), vec![1, 6, 15]));
    assert_eq!(hints(&guest, 16).len(), 16);
}

/// A group that maps the same and allows as much is enough, and so is a block. Other memory is refused.
#[test]
fn what_is_mapped_already_stays() {
    let mut guest = grouped(HINTS, &RAM);
    for (attributes, is_enough) in [(READ, true), (RAM, true), (ALL, false), (READ, true)] {
        let mapped = map_group(&mut guest, 0, &attributes).unwrap();
        assert_eq!(matches!(mapped, Grouped::Already(leaf) if leaf.address() == frame(0)), is_enough);
    }
    map_at(&mut guest, MIB_2, Level::L2, &RAM);
    let mapped = map_group(&mut guest, MIB_2 + SIZE, &RAM).unwrap();
    assert!(matches!(mapped, Grouped::Already(leaf) if leaf.address() == frame(MIB_2)), "{mapped:?}");
    let level = |guest: &Guest<Grouping>| guest.stage2.look_up(BASE + MIB_2).unwrap().level;
    assert_eq!(level(&guest), Level::L2);
    // The block is split to see what differs: the memory type, and then the frames, which are those of the group before.
    map_at(&mut guest, 2 * MIB_2, Level::L2, &RAM);
    let not_cached = map_group(&mut guest, 2 * MIB_2, &Attributes { memory: Memory::NonCacheable, ..RAM });
    assert_eq!(not_cached, Err(Error::NotOneGroup { ipa: BASE + 2 * MIB_2, level: Level::L3 }));
    let grant = guest.stage2.open(window(frame(MIB_2), SIZE), BASE + MIB_2 + SIZE);
    let other = grant.map_group(Level::L3, &RAM, &mut guest.pool, &mut |_| ());
    assert_eq!(other, Err(Error::NotOneGroup { ipa: BASE + MIB_2 + SIZE, level: Level::L3 }));
    assert_eq!(level(&guest), Level::L3);
}

#[test]
fn what_is_no_group_is_refused() {
    let mut guest = guest(HINTS.with_hardware_dirty_state(true));
    let mut map = |at: u64, to: u64, level, attributes: &Attributes| {
        let grant = guest.stage2.open(window(frame(to), 64 * MIB_2), BASE + at);
        grant.map_group(level, attributes, &mut guest.pool, &mut |_| ())
    };
    let misaligned = |address: u64, size| Err(Error::Misaligned { address, size });
    assert_eq!(map(KIB_4, 0, Level::L3, &RAM), misaligned((BASE + KIB_4).raw(), SIZE));
    assert_eq!(map(0, 8 * KIB_4, Level::L3, &RAM), misaligned(frame(8 * KIB_4).raw(), SIZE));
    assert_eq!(map(8 * MIB_2, 0, Level::L2, &RAM), misaligned((BASE + 8 * MIB_2).raw(), 16 * MIB_2));
    let tracked = Attributes { dirty_by_hardware: true, ..RAM };
    assert_eq!(map(0, 0, Level::L3, &tracked), Err(Error::GroupWithDbm));
    assert_eq!(map(0, 0, Level::L3, &RAM), Ok(Grouped::New));
    assert_eq!(map(0, 0, Level::L2, &RAM), Err(Error::TableInTheWay { ipa: BASE, level: Level::L2 }));
    let third = guest.stage2.open(window(frame(0), KIB_4), BASE + 19 * MIB_2);
    assert_eq!(third.map(Level::L3, &RAM, &mut guest.pool), Ok(Mapped::New));
    let blocks = guest.stage2.open(window(frame(0), 16 * MIB_2), BASE + 16 * MIB_2);
    let in_the_way = Error::TableInTheWay { ipa: BASE + 19 * MIB_2, level: Level::L2 };
    assert_eq!(blocks.map_group(Level::L2, &RAM, &mut guest.pool, &mut |_| ()), Err(in_the_way));
    // One page of the group has another frame.
    let page = range(BASE + 5 * KIB_4, KIB_4);
    guest.stage2.unmap(page, &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    let odd = guest.stage2.open(window(frame(MIB_2), KIB_4), BASE + 5 * KIB_4);
    assert_eq!(odd.map(Level::L3, &RAM, &mut guest.pool), Ok(Mapped::New));
    let other = Error::NotOneGroup { ipa: BASE + 5 * KIB_4, level: Level::L3 };
    assert_eq!(map_group(&mut guest, 0, &RAM), Err(other));
    assert_eq!(hints(&guest, 16), []);
}

#[test]
fn tables_of_another_type_have_no_groups() {
    let mut plain = Guest::new(HINTS, IPA_BITS);
    let grant = plain.stage2.open(window(frame(0), SIZE), BASE);
    let mapped = grant.map_group(Level::L3, &RAM, &mut plain.pool, &mut |_| ());
    assert_eq!(mapped, Err(Error::NoGroupAtLevel { level: Level::L3 }));
}
