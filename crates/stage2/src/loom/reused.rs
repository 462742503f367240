// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table is taken out and its page used for another; then somebody else changes what is in that, while a third, on its
//! way since before, must take nothing of it for what it looks for.
//!
//! So each change of an entry is ordered after the count of tables that its page's last one had, by whomever it is made.

use std::sync::Arc;

use super::guest::{ARMED, BLOCK, Guest, PAGE, RAM, READ, range};
use super::{Operation, meet, model};
use crate::{Access, Attributes, Ipa, Level, Memory};

/// The first page is mapped and young all the time: who looks for it finds it so, while the table that maps it is coalesced
/// and used for a page at `BLOCK`, and then another CPU does `change` there.
fn is_not_seen_at_first_page(attributes: Attributes, change: Operation) {
    model(2, move || {
        let guest = Guest::new(2, 6);
        let (mut pages, mut others) = (guest.pages(0..3), guest.pages(3..6));
        guest.map(0, Level::L3, &mut pages);
        let guest = Arc::new(guest);
        let there = guest.clone();
        let reuse = loom::thread::spawn(move || {
            there.coalesce(0, Level::L2, &RAM, &mut pages);
            there.map_as(BLOCK, Level::L3, &attributes, &mut pages);
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

const OLD: Attributes = Attributes { accessed: false, ..READ };
const DIRTY: Attributes = Attributes { access: Access::READ_WRITE, ..ARMED };

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
    is_not_seen_at_first_page(ARMED, device);
}

#[test]
fn what_is_relaxed() {
    let relax: Operation = |guest, _| assert!(guest.relax(BLOCK, Access::ALL));
    is_not_seen_at_first_page(RAM, relax);
    is_not_seen_at_first_page(ARMED, relax);
    is_not_seen_at_first_page(OLD, |guest, _| assert_eq!(guest.stage2.make_young(Ipa::new(BLOCK)), Ok(true)));
}

#[test]
fn what_is_unmapped() {
    is_not_seen_at_first_page(RAM, |guest, pages| guest.unmap(BLOCK, BLOCK, pages));
    is_not_seen_at_first_page(RAM, |guest, pages| guest.unmap(BLOCK, PAGE, pages));
    is_not_seen_at_first_page(RAM, |guest, pages| guest.unmap_quietly(BLOCK, PAGE, pages));
    is_not_seen_at_first_page(RAM, |guest, pages| {
        guest.map(BLOCK + PAGE, Level::L3, pages);
        guest.unmap_quietly(BLOCK, PAGE, pages);
    });
    is_not_seen_at_first_page(RAM, |guest, pages| {
        guest.map(BLOCK + PAGE, Level::L3, pages);
        guest.unmap(BLOCK, PAGE, pages);
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
    is_not_seen_at_first_page(ARMED, age);
}

#[test]
fn what_is_clean_again() {
    is_not_seen_at_first_page(DIRTY, |guest, _| {
        let _ = guest.stage2.clean(range(BLOCK, BLOCK), &mut |_| ()).expect("cleaned").complete();
    });
    is_not_seen_at_first_page(DIRTY, |guest, _| {
        let _ = guest.stage2.disarm(range(BLOCK, BLOCK), &mut |_| ()).expect("disarmed").complete();
    });
}

/// Each table that is taken out counts, also where two are at once.
#[test]
fn what_is_mapped_while_another_table_goes() {
    let tables = || {
        let guest = Guest::new(2, 4);
        let (none, mut first, mut second) = (guest.pages(0..0), guest.pages(0..2), guest.pages(2..4));
        guest.map(0, Level::L3, &mut first);
        guest.map(BLOCK, Level::L3, &mut second);
        (guest, [none, first, second])
    };
    let operations: [Operation; 3] = [
        |guest, _| assert!(guest.is_mapped(0), "the first page is mapped all the time"),
        |guest, pages| {
            guest.coalesce(0, Level::L2, &RAM, pages);
            guest.map(BLOCK, Level::L3, pages);
        },
        |guest, pages| guest.unmap_quietly(BLOCK, BLOCK, pages),
    ];
    meet(2, tables, operations, |guest, pools| drop(guest.check(pools)));
}
