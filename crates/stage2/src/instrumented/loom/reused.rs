// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table is unlinked and its page reused; then another CPU changes an entry of the new table. A third CPU, whose walk
//! began before all that, must not take that entry for the one it looks for.
//!
//! So each change of an entry must be ordered after the count (U3) of the old table's unlink, whichever CPU makes it.

use std::sync::Arc;

use super::guest::{BLOCK, FWB, Guest, LARGE, PAGE, RAM, READ, TRACKED, range};
use super::machine::{Machine, Watch};
use super::resized::LIVE;
use super::{Operation, model};
use crate::{Access, Attributes, Features, Ipa, Level, Memory};

/// The first page is always mapped, so a walk for it finds it. Meanwhile a block replaces the table of `level` that
/// leads to it, the table's page is reused for a page in the upper half, and another CPU does `change` there.
fn is_not_seen_below(level: Level, attributes: Attributes, change: Operation) {
    is_not_seen_on(FWB, level, attributes, change);
}

fn is_not_seen_on(features: Features, level: Level, attributes: Attributes, change: Operation) {
    model(2, move || {
        let guest = Guest::on(Machine::new(9, Watch::Nothing), features, 4 - u32::from(level.raw()));
        let (mut pages, mut others) = (guest.pages(0..5), guest.pages(5..8));
        guest.map(0, Level::L3, &mut pages);
        let guest = Arc::new(guest);
        let there = guest.clone();
        let reuse = loom::thread::spawn(move || {
            there.coalesce(0, level, &RAM, &mut pages);
            let half = there.stage2.geometry().end().raw() / 2;
            there.map_as(half, Level::L3, &attributes, &mut pages);
            let then = loom::thread::spawn(move || {
                change(&there, &mut others);
                others
            });
            [then.join().expect("no panic"), pages]
        });
        assert!(guest.is_mapped(0), "the first page is mapped all the time");
        guest.check(&reuse.join().expect("no panic"));
    });
}

fn is_not_seen_at_first_page(attributes: Attributes, change: Operation) {
    is_not_seen_below(Level::L2, attributes, change);
}

const OLD: Attributes = Attributes { accessed: false, ..READ };
const DIRTY: Attributes = Attributes { access: Access::READ_WRITE, ..TRACKED };

#[test]
fn what_is_mapped() {
    is_not_seen_at_first_page(RAM, |guest, pages| guest.map(BLOCK + PAGE, Level::L3, pages));
    is_not_seen_at_first_page(RAM, |guest, pages| guest.map_range(BLOCK, BLOCK, Level::L3, pages));
}

#[test]
fn what_is_mapped_as_other_memory() {
    let device: Operation = |guest, pages| {
        guest.map_as(BLOCK, Level::L3, &Attributes { memory: Memory::Device, ..READ }, pages);
    };
    is_not_seen_at_first_page(RAM, device);
    is_not_seen_at_first_page(TRACKED, device);
}

#[test]
fn what_is_relaxed() {
    let relax: Operation = |guest, _| assert!(guest.relax(BLOCK, Access::ALL));
    is_not_seen_at_first_page(RAM, relax);
    is_not_seen_at_first_page(TRACKED, relax);
    is_not_seen_at_first_page(OLD, |guest, _| assert_eq!(guest.stage2.make_young(Ipa::new(BLOCK)), Ok(true)));
}

#[test]
fn what_is_unmapped() {
    is_not_seen_at_first_page(RAM, |guest, pages| guest.unmap(BLOCK, PAGE, pages));
    is_not_seen_at_first_page(RAM, |guest, pages| guest.unmap_quietly(BLOCK, PAGE, pages));
}

#[test]
fn what_is_unmapped_with_its_table() {
    is_not_seen_at_first_page(RAM, |guest, pages| guest.unmap(BLOCK, BLOCK, pages));
}

#[test]
fn what_is_unmapped_while_its_table_stays_quietly() {
    is_not_seen_at_first_page(RAM, |guest, pages| {
        guest.map(BLOCK + PAGE, Level::L3, pages);
        guest.unmap_quietly(BLOCK, PAGE, pages);
    });
}

#[test]
fn what_is_unmapped_while_its_table_stays() {
    is_not_seen_at_first_page(RAM, |guest, pages| {
        guest.map(BLOCK + PAGE, Level::L3, pages);
        guest.unmap(BLOCK, PAGE, pages);
    });
}

#[test]
fn what_is_unmapped_as_a_table() {
    is_not_seen_below(Level::L1, RAM, |guest, pages| guest.unmap(LARGE, BLOCK, pages));
    is_not_seen_below(Level::L1, RAM, |guest, pages| guest.unmap(LARGE, PAGE, pages));
}

#[test]
fn what_is_busy() {
    is_not_seen_below(Level::L1, RAM, |guest, pages| guest.coalesce(LARGE, Level::L2, &RAM, pages));
    is_not_seen_below(Level::L1, TRACKED, |guest, pages| guest.coalesce(LARGE, Level::L2, &TRACKED, pages));
}

/// A block replaces a full table without a break.
#[test]
fn what_is_resized() {
    is_not_seen_on(LIVE, Level::L1, RAM, |guest, pages| {
        guest.map(LARGE + PAGE, Level::L3, pages);
        guest.coalesce(LARGE, Level::L2, &RAM, pages);
    });
}

#[test]
fn what_is_write_protected() {
    is_not_seen_at_first_page(RAM, |guest, _| guest.write_protect(BLOCK, BLOCK));
    is_not_seen_at_first_page(DIRTY, |guest, _| guest.write_protect(BLOCK, BLOCK));
}

#[test]
fn what_is_protected() {
    let protect: Operation = |guest, pages| {
        let _ = guest.stage2.protect(range(BLOCK, PAGE), Access::NONE, pages).expect("protected").complete();
    };
    is_not_seen_at_first_page(RAM, protect);
    is_not_seen_at_first_page(DIRTY, protect);
}

#[test]
fn what_has_aged() {
    let age: Operation = |guest, _| guest.stage2.age(range(BLOCK, BLOCK), &mut |_| ()).expect("aged");
    is_not_seen_at_first_page(RAM, age);
    is_not_seen_at_first_page(TRACKED, age);
}

#[test]
fn what_is_clean_again() {
    is_not_seen_at_first_page(DIRTY, |guest, _| {
        let _ = guest.stage2.clean(range(BLOCK, BLOCK), &mut |_| ()).expect("cleaned").complete();
    });
    is_not_seen_at_first_page(DIRTY, |guest, _| {
        let _ = guest.stage2.clear_dbm_and_write(range(BLOCK, BLOCK), &mut |_| ()).expect("cleared").complete();
    });
}

/// The counts of a reused page say nothing about the old table. A pass that believed them would miss the first page,
/// which is always dirty.
#[test]
fn what_is_counted() {
    model(2, move || {
        let guest = Guest::new(2, 5);
        let mut pages = guest.pages(0..5);
        guest.map_as(0, Level::L3, &DIRTY, &mut pages);
        let guest = Arc::new(guest);
        let there = guest.clone();
        let reuse = loom::thread::spawn(move || {
            there.coalesce(0, Level::L2, &DIRTY, &mut pages);
            there.map(BLOCK, Level::L3, &mut pages);
            pages
        });
        let mut reported = false;
        let pending = guest.stage2.clean(range(0, BLOCK), &mut |_| reported = true).expect("cleaned");
        let _ = pending.complete();
        assert!(reported, "the first page is dirty all the time");
        guest.check(&[reuse.join().expect("no panic")]);
    });
}
