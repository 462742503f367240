// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Three that meet: one takes a table out and uses its page again, another changes what is in it then, and a third, on its
//! way since before, must take none of that for what it looks for.
//!
//! So each change of an entry is ordered after the count of tables that its page's last one had, by whomever it is made.

use super::guest::{ARMED, BLOCK, Guest, PAGE, RAM, READ, range};
use super::machine::Pages;
use super::{Operation, meet};
use crate::{Access, Attributes, Ipa, Level, Memory};

/// Two levels, and a table with the first page.
fn page() -> (Guest, [Pages; 3]) {
    let guest = Guest::new(2, 6);
    let (looks, mut coalesces, changes) =
        (guest.pages(0..0, false), guest.pages(0..3, false), guest.pages(3..6, false));
    guest.map(0, Level::L3, &mut coalesces);
    (guest, [looks, coalesces, changes])
}

/// Changes what is mapped at `BLOCK`.
fn is_not_seen_at_first_page(attributes: &'static [fn(&Guest, &mut Pages)], change: Operation) {
    for reuse in attributes {
        for look in LOOKS {
            meet(2, page, [look, *reuse, change], |guest, pools| drop(guest.check(pools)));
        }
    }
}

/// The first page is mapped all the time.
const LOOKS: [Operation; 2] = [
    |guest, _| assert!(guest.is_mapped(0), "the first page is mapped all the time"),
    |guest, _| assert_eq!(guest.stage2.make_young(Ipa::new(0)), Ok(false), "it is young all the time"),
];

fn reuse_as(guest: &Guest, attributes: &Attributes, pages: &mut Pages) {
    guest.coalesce(0, Level::L2, &RAM, pages);
    guest.map_as(BLOCK, Level::L3, attributes, pages);
}

const TO_RAM: &[Operation] = &[|guest, pages| reuse_as(guest, &RAM, pages)];
const TO_READ: &[Operation] = &[|guest, pages| reuse_as(guest, &Attributes { accessed: false, ..READ }, pages)];
const TO_ARMED: &[Operation] = &[|guest, pages| reuse_as(guest, &ARMED, pages)];
const TO_DIRTY: &[Operation] = &[|guest, pages| {
    reuse_as(guest, &Attributes { access: Access::READ_WRITE, ..ARMED }, pages);
}];
const TO_ALL: &[Operation] = &[TO_RAM[0], TO_READ[0], TO_ARMED[0]];

#[test]
fn what_is_mapped() {
    is_not_seen_at_first_page(TO_RAM, |guest, pages| guest.map(BLOCK + PAGE, Level::L3, pages));
}

#[test]
fn what_is_mapped_as_other_memory() {
    is_not_seen_at_first_page(TO_RAM, |guest, pages| {
        guest.map_as(BLOCK, Level::L3, &Attributes { memory: Memory::Device, ..READ }, pages);
    });
}

#[test]
fn what_is_mapped_as_a_range() {
    is_not_seen_at_first_page(TO_RAM, |guest, pages| guest.map_range(BLOCK, BLOCK, Level::L3, pages));
}

#[test]
fn what_is_relaxed() {
    is_not_seen_at_first_page(TO_ALL, |guest, _| {
        guest.relax(BLOCK, Access::ALL);
    });
}

#[test]
fn what_is_unmapped() {
    is_not_seen_at_first_page(TO_RAM, |guest, pages| guest.unmap(BLOCK, BLOCK, pages));
    is_not_seen_at_first_page(TO_RAM, |guest, pages| guest.unmap_quietly(BLOCK, PAGE, pages));
}

#[test]
fn what_is_write_protected() {
    is_not_seen_at_first_page(TO_RAM, |guest, _| guest.write_protect(BLOCK, BLOCK));
    is_not_seen_at_first_page(TO_ARMED, |guest, _| guest.write_protect(BLOCK, BLOCK));
}

#[test]
fn what_is_protected() {
    let protect: Operation = |guest, pages| {
        let _ = guest.stage2.protect(range(BLOCK, PAGE), Access::NONE, pages).expect("protected").complete();
    };
    is_not_seen_at_first_page(TO_RAM, protect);
    is_not_seen_at_first_page(TO_ARMED, protect);
}

#[test]
fn what_has_aged() {
    let age: Operation = |guest, _| guest.stage2.age(range(BLOCK, BLOCK), &mut |_| ()).expect("aged");
    is_not_seen_at_first_page(TO_RAM, age);
    is_not_seen_at_first_page(TO_ARMED, age);
}

#[test]
fn what_was_cleaned() {
    is_not_seen_at_first_page(TO_DIRTY, |guest, _| {
        let _ = guest.stage2.clean(range(BLOCK, BLOCK), &mut |_| ()).expect("cleaned").complete();
    });
}

#[test]
fn what_is_not_recorded_any_more() {
    is_not_seen_at_first_page(TO_DIRTY, |guest, _| {
        let _ = guest.stage2.disarm(range(BLOCK, BLOCK), &mut |_| ()).expect("disarmed").complete();
    });
}
