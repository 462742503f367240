// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contiguous groups of 16 pages: one sequence for all entries of a group, however many of them change.

use std::ops::ControlFlow;

use twofold_stage2::{Contiguous, Error, Grouped, Kib4, Relaxed, Unwatched};

use super::*;
use crate::platform::window::window;
use crate::platform::{KIB_4, frame, table};

type Grouping = Contiguous<Kib4>;

const SIZE: u64 = 16 * KIB_4;
const LAST: u64 = SIZE - KIB_4;
const ALL: Attributes = Attributes::ram(Access::ALL);
const READ: Attributes = Attributes::ram(Access::READ);
/// Level 2, and an instruction cache by physical address, which needs maintenance.
const PIPT: Features = PLAIN.with_instruction_cache_pipt(true).with_tlbi_level_hint(true);
const LIVE: Features = HINTS.with_bbm(2).with_no_conflict_abort(true);

fn guest(features: Features) -> Guest<Grouping> {
    let guest = Guest::of(Contiguous(Kib4), features, IPA_BITS, 24);
    guest.events();
    guest
}

/// A guest with a group at [`BASE`], whose first and last page are watched.
fn grouped(features: Features, attributes: &Attributes) -> Guest<Grouping> {
    let mut guest = guest(features);
    assert_eq!(map_group(&mut guest, 0, attributes), Ok(Grouped::New));
    watch(&guest);
    guest
}

fn watch(guest: &Guest<Grouping>) {
    guest.watch(BASE);
    guest.watch(BASE + LAST);
}

fn map_group(guest: &mut Guest<Grouping>, at: u64, attributes: &Attributes) -> Result<Grouped<Grouping>, Error> {
    let grant = guest.stage2.open(window(frame(at), SIZE), BASE + at);
    grant.map_group(Level::L3, attributes, &mut guest.pool, &mut |_| ())
}

fn map_page(guest: &mut Guest<Grouping>, at: u64, attributes: &Attributes) {
    let grant = guest.stage2.open(window(frame(at), KIB_4), BASE + at);
    assert_eq!(grant.map(Level::L3, attributes, &mut guest.pool), Ok(Mapped::New));
}

/// Both watched pages, with this access. The entries are written in ascending order.
fn made(access: Access) -> [Event; 3] {
    [sees(BASE, 3, frame(0), access), sees(BASE + LAST, 3, frame(LAST), access), Event::Dsb(Domain::IshSt)]
}

fn broken() -> [Event; 2] {
    [sees_nothing(BASE), sees_nothing(BASE + LAST)]
}

/// The flush of these pages, from the first group's start on.
fn flush(pages: u64) -> Vec<Event> {
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
    guest.stage2.unmap(range(BASE, SIZE), &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    guest.events();
    assert_eq!(map_group(&mut guest, 0, &RAM), Ok(Grouped::New));
    assert_eq!(guest.events(), [&flush(16)[..], &made(RAM.access)].concat());
    assert!(matches!(map_group(&mut guest, 0, &RAM), Ok(Grouped::Already(_))));
    assert_eq!(guest.events(), []);
}

/// Blocks of level 2 may take the place of tables, whose walk entries go, too.
#[test]
fn what_is_stale_above_level_3_may_have_been_a_table() {
    let mut guest = guest(HINTS);
    let span = Kib4.span(Level::L2);
    let far = window(frame(0), 32 * span);
    let _ = guest.stage2.open(far, BASE).map(Level::L3, &RAM, &mut guest.pool).unwrap();
    let behind = guest.stage2.open(window(frame(0), span), BASE + 16 * span);
    let _ = behind.map(Level::L2, &RAM, &mut guest.pool).unwrap();
    guest.stage2.unmap(range(BASE, span), &mut guest.pool, Unwatched).unwrap().complete().free(&mut guest.pool);
    guest.events();
    let grant = guest.stage2.open(window(frame(0), 16 * span), BASE);
    assert_eq!(grant.map_group(Level::L2, &RAM, &mut guest.pool, &mut |_| ()), Ok(Grouped::New));
    let events = guest.events();
    assert_eq!(events, [&by_vmid()[..], &[Event::Dsb(Domain::IshSt)]].concat());
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
        let split = guest.stage2.split(range(BASE, 2 * SIZE), GIB, &mut guest.pool, |_, _| ControlFlow::Continue(()));
        assert_eq!(split.unwrap().blocks, 2);
        let expected = match flushes {
            true => [&broken()[..], &flush(32), &made(RAM.access)].concat(),
            false => vec![Event::Dsb(Domain::IshSt)],
        };
        assert_eq!(guest.events(), expected);
        assert!((0..32).all(|page| {
            guest
                .stage2
                .look_up(BASE + page * KIB_4)
                .is_some_and(|leaf| !leaf.descriptor.is_contiguous() && leaf.descriptor.is_writable())
        }));
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
