// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two permission downgrades of the same leaf, or a removal and a mapping. When either of the downgrades is complete, or the
//! new leaf is mapped, an invalidation has begun after the entry was changed, whichever CPU changed it.

use std::sync::Arc;

use super::guest::{BLOCK, FWB, Guest, PAGE, RAM, home, range};
use super::machine::{Machine, Pages, Watch};
use super::{Operation, meet, model};
use crate::primitive::Ordering;
use crate::withdraw::Sample;
use crate::{Access, Attributes, Broken, Ipa, Level, Mapped, Unwatched};

type Change = fn(&Guest, &mut Pages);

fn both_are_flushed(attributes: Attributes, changes: [Change; 2]) {
    model(2, move || {
        let guest = Guest::on(Machine::new(4, Watch::Flushes), FWB, 2);
        let (mut here, mut there) = (guest.pages(0..2), guest.pages(2..3));
        guest.map_as(0, Level::L3, &attributes, &mut here);
        let guest = Arc::new(guest);
        let at_other = guest.clone();
        let other = loom::thread::spawn(move || {
            changes[1](&at_other, &mut there);
            is_flushed(&at_other);
            there
        });
        changes[0](&guest, &mut here);
        is_flushed(&guest);
        let there = other.join().expect("no panic");
        let flushes = flushes(&guest);
        changes[0](&guest, &mut here);
        assert_eq!(self::flushes(&guest), flushes, "a downgrade is counted as pending for ever");
        guest.check(&[here, there]);
    });
}

fn flushes(guest: &Guest) -> u64 {
    guest.machine().0.flushes.as_ref().expect("counted").load(Ordering::Relaxed)
}

fn is_flushed(guest: &Guest) {
    assert!(flushes(guest) > 0, "the guest still has an access that was removed");
}

const WRITE_PROTECT: Change = |guest, _| guest.write_protect(0, BLOCK);
const CLEAR_DBM_AND_WRITE: Change = |guest, _| {
    let _ = guest.stage2.clear_dbm_and_write(range(0, BLOCK), &mut |_| ()).expect("cleared").complete();
};
const CLEAN: Change = |guest, _| {
    let _ = guest.stage2.clean(range(0, BLOCK), &mut |_| ()).expect("cleaned").complete();
};
const PROTECT: Change = |guest, pages| {
    let _ = guest.stage2.protect(range(0, PAGE), Access::READ, pages).expect("protected").complete();
};
const MASK: Change = |guest, _| {
    let _ = guest.stage2.write_protect_mask(Ipa::new(0), 1).expect("protected").complete();
};

#[test]
fn both_take_writing() {
    let ram = Attributes::ram(Access::READ_WRITE);
    both_are_flushed(ram, [WRITE_PROTECT, WRITE_PROTECT]);
    both_are_flushed(ram, [WRITE_PROTECT, PROTECT]);
    both_are_flushed(ram, [PROTECT, PROTECT]);
    both_are_flushed(ram, [MASK, MASK]);
}

#[test]
fn both_end_or_take_records() {
    let dirty = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ_WRITE) };
    both_are_flushed(dirty, [CLEAN, CLEAN]);
    both_are_flushed(dirty, [CLEAR_DBM_AND_WRITE, CLEAR_DBM_AND_WRITE]);
    both_are_flushed(dirty, [CLEAR_DBM_AND_WRITE, WRITE_PROTECT]);
    both_are_flushed(dirty, [CLEAN, CLEAR_DBM_AND_WRITE]);
}

/// A CPU maps where another one may have removed something. If so, an invalidation has begun between the removal and the
/// mapping, whichever CPU did it.
fn is_flushed_before_it_is_mapped(remove: Change) {
    model(3, move || {
        let guest = Guest::on(Machine::new(6, Watch::Flushes), FWB, 2);
        let (mut here, mut there) = (guest.pages(0..3), guest.pages(3..5));
        (0..3).for_each(|page| guest.map(page * PAGE, Level::L3, &mut here));
        let guest = Arc::new(guest);
        let at_other = guest.clone();
        let other = loom::thread::spawn(move || {
            remove(&at_other, &mut there);
            there
        });
        let ipa = Ipa::new(0);
        let mapped = guest.stage2.map_to(ipa, home(ipa), Sample::NONE, Level::L3, &RAM, &mut here).expect("mapped");
        if mapped == Mapped::New {
            is_flushed(&guest);
        }
        let there = other.join().expect("no panic");
        guest.check(&[here, there]);
    });
}

#[test]
fn what_was_removed_is_flushed_before_it_is_mapped() {
    is_flushed_before_it_is_mapped(|guest, pages| {
        let removed = guest.stage2.unmap(range(0, PAGE), pages, |_: Broken| ()).expect("unmapped");
        removed.complete().free(pages);
    });
    is_flushed_before_it_is_mapped(|guest, pages| guest.unmap_quietly(0, PAGE, pages));
    is_flushed_before_it_is_mapped(|guest, pages| guest.unmap_quietly(0, BLOCK, pages));
}

/// Two flushes are dropped, and a third operation gives the kept pages back. In the end each page is in exactly one
/// place.
#[test]
fn pages_of_dropped_flushes_are_kept_and_given_back_once() {
    let guest = || {
        let guest = Guest::new(2, 6);
        let mut pools = [guest.pages(0..2), guest.pages(2..4), guest.pages(4..6)];
        guest.map(0, Level::L3, &mut pools[0]);
        guest.map(BLOCK, Level::L3, &mut pools[1]);
        (guest, pools)
    };
    const DROP_FIRST: Operation = |guest, pages| {
        drop(guest.stage2.unmap(range(0, BLOCK), pages, Unwatched).expect("unmapped"));
    };
    const DROP_SECOND: Operation = |guest, pages| {
        drop(guest.stage2.unmap(range(BLOCK, BLOCK), pages, Unwatched).expect("unmapped"));
    };
    const GIVE: Operation = |guest, pages| {
        guest.stage2.give_deferred(pages);
    };
    meet(2, guest, [DROP_FIRST, DROP_SECOND, GIVE], |guest, pools| {
        let mut last = guest.pages(0..0);
        guest.stage2.give_deferred(&mut last);
        let pages = |pool: &Pages| pool.free.len();
        assert_eq!(pools.iter().map(pages).sum::<usize>() + pages(&last), 6, "a page is lost, or somewhere twice");
    });
}

/// Two CPUs unmap a page each. What one of them freed does not open the other's leaf.
#[test]
fn removals_that_meet_have_names_of_their_own() {
    let guest = || {
        let guest = Guest::new(2, 3);
        let mut pools = [guest.pages(0..2), guest.pages(2..3)];
        guest.map(0, Level::L3, &mut pools[0]);
        guest.map(PAGE, Level::L3, &mut pools[0]);
        (guest, pools)
    };
    model(2, move || {
        let (guest, [mut here, mut there]) = guest();
        let guest = Arc::new(guest);
        let unmap = |guest: &Guest, at: u64, pages: &mut Pages| {
            let mut removed = None;
            let pending = guest.stage2.unmap(range(at, PAGE), pages, |leaf: Broken| removed = Some(leaf));
            let freed = pending.expect("unmapped").complete().free(pages);
            (removed.expect("it was mapped"), freed)
        };
        let at_other = guest.clone();
        let other = loom::thread::spawn(move || unmap(&at_other, PAGE, &mut there));
        let (leaf, freed) = unmap(&guest, 0, &mut here);
        let (other_leaf, other_freed) = other.join().expect("no panic");
        assert!(leaf.open(&freed).is_some() && other_leaf.open(&other_freed).is_some());
        assert!(leaf.open(&other_freed).is_none() && other_leaf.open(&freed).is_none());
    });
}
