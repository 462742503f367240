// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hardware records a write while software changes the entry. The record is not lost: the entry has it, or the
//! operation reports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::guest::{BLOCK, FWB, Guest, PAGE, READ, TRACKED, home, range};
use super::machine::{Machine, Pages, Watch};
use super::model;
use crate::withdraw::Sample;
use crate::{Access, Attributes, Broken, Features, Ipa, Leaf, Level, Mapped, Marked, Memory, Pa};

const CLEAN: Attributes = Attributes { accessed: false, ..TRACKED };

/// What software does. Returns whether it reported a write to the first page.
pub(super) type Operation = fn(&Guest, &mut Pages) -> bool;

fn is_not_lost(levels: u32, leaves: &'static [(u64, Level)], operation: Operation) {
    is_not_lost_on(FWB, levels, leaves, operation);
}

pub(super) fn is_not_lost_on(features: Features, levels: u32, leaves: &'static [(u64, Level)], operation: Operation) {
    let features = Features { hardware_dirty_state: true, ..features };
    model(3, move || {
        let guest = Guest::on(Machine::new(7, Watch::Hardware), features, levels);
        let mut pages = guest.pages(0..6);
        leaves.iter().for_each(|(at, level)| guest.map_as(*at, *level, &CLEAN, &mut pages));
        let (table, machine) = (table_of_first_page(&guest), guest.machine().clone());
        let written = Arc::new(AtomicBool::new(false));
        let hardware = loom::thread::spawn({
            let written = written.clone();
            move || written.store(machine.hardware_writes(table, 0), Ordering::Relaxed)
        });
        let reported = operation(&guest, &mut pages);
        hardware.join().expect("no panic");
        let dirty = guest.check(&[pages]).get(&0).is_some_and(|entry| entry.is_hardware_dirty());
        assert!(!written.load(Ordering::Relaxed) || reported || dirty, "a recorded write was lost");
    });
}

fn table_of_first_page(guest: &Guest) -> Pa {
    let mut table = guest.machine().donated().start();
    let mut level = guest.stage2.geometry().root_level();
    loop {
        let entry = guest.machine().read(table, 0);
        match level.below() {
            Some(below) if entry.is_table(level) => (table, level) = (entry.address(), below),
            _ => return table,
        }
    }
}

const PAGES: &[(u64, Level)] = &[(0, Level::L3), (PAGE, Level::L3)];

/// Whether the report includes the first page.
fn reports(collect: impl FnOnce(&mut dyn FnMut(Marked))) -> bool {
    let mut reported = false;
    collect(&mut |marked| reported |= marked.mask & 1 != 0);
    reported
}

#[test]
fn while_writes_are_collected() {
    is_not_lost(2, PAGES, |guest, _| {
        reports(|reported| drop(guest.stage2.clean(range(0, BLOCK), reported).expect("cleaned").complete()))
    });
    is_not_lost(2, PAGES, |guest, _| {
        reports(|reported| {
            drop(guest.stage2.clear_dbm_and_write(range(0, BLOCK), reported).expect("cleared").complete())
        })
    });
}

/// After the flush, a page that is still writable counts as written.
#[test]
fn while_records_end() {
    is_not_lost(2, PAGES, |guest, _| {
        drop(guest.stage2.clear_dbm(range(0, BLOCK)).expect("cleared").complete());
        reports(|reported| guest.stage2.written(range(0, BLOCK), reported).expect("looked"))
    });
}

#[test]
fn while_dbm_is_set_again() {
    is_not_lost(2, PAGES, |guest, _| {
        guest.stage2.set_dbm(range(0, BLOCK)).expect("tracked");
        false
    });
}

#[test]
fn while_accesses_are_collected() {
    is_not_lost(2, PAGES, |guest, _| {
        assert!(guest.make_young(0));
        guest.stage2.age(range(0, BLOCK), &mut |_| ()).expect("aged");
        false
    });
}

#[test]
fn while_access_changes() {
    is_not_lost(2, PAGES, |guest, _| {
        assert!(guest.relax(0, Access { execute: crate::Execute::ALWAYS, ..Access::READ }));
        false
    });
    // A block is broken during its cache maintenance.
    is_not_lost(2, &[(0, Level::L2)], |guest, _| {
        assert!(guest.relax(0, Access { execute: crate::Execute::ALWAYS, ..Access::READ }));
        false
    });
    is_not_lost(2, PAGES, |guest, _| {
        let more = Access { execute: crate::Execute::ALWAYS, ..Access::READ };
        assert!(guest.stage2.relax_page(Ipa::new(0), more).is_ok());
        false
    });
    is_not_lost(2, PAGES, |guest, pages| {
        let keep = Access { read: false, ..Access::READ_WRITE };
        let _ = guest.stage2.protect(range(0, PAGE), keep, pages).expect("protected").complete();
        false
    });
}

fn unmap(guest: &Guest, size: u64, pages: &mut Pages) -> bool {
    let mut reported = false;
    let each = |leaf: Broken| reported |= leaf.ipa() == Ipa::new(0) && leaf.is_hardware_dirty();
    guest.stage2.unmap(range(0, size), pages, each).expect("unmapped").complete().free(pages);
    reported
}

#[test]
fn while_it_is_unmapped() {
    is_not_lost(2, PAGES, |guest, pages| unmap(guest, PAGE, pages));
    is_not_lost(2, &[(0, Level::L3)], |guest, pages| unmap(guest, PAGE, pages));
    is_not_lost(2, PAGES, |guest, pages| unmap(guest, BLOCK, pages));
    is_not_lost(2, &[(0, Level::L2)], |guest, pages| unmap(guest, BLOCK, pages));
    is_not_lost(3, PAGES, |guest, pages| unmap(guest, 2 * BLOCK, pages));
}

#[test]
fn while_it_is_replaced() {
    is_not_lost(2, PAGES, |guest, pages| {
        let device = Attributes { memory: Memory::Device, ..READ };
        match guest.stage2.map_to(Ipa::new(0), home(Ipa::new(0)), Sample::NONE, Level::L3, &device, pages) {
            Ok(Mapped::Replaced(old)) => old.is_hardware_dirty(),
            mapped => panic!("{mapped:?}"),
        }
    });
}

pub(super) fn coalesce(guest: &Guest, level: Level, pages: &mut Pages) -> bool {
    let mut reported = false;
    let mut each = |leaf: Leaf| reported |= leaf.ipa == Ipa::new(0);
    let (ipa, pa) = (Ipa::new(0), home(Ipa::new(0)));
    let _ = guest
        .stage2
        .coalesce_to::<false, false>((ipa, pa), Sample::NONE, level, &CLEAN, pages, &mut each)
        .expect("coalesced");
    reported
}

#[test]
fn while_it_is_coalesced() {
    is_not_lost(2, PAGES, |guest, pages| coalesce(guest, Level::L2, pages));
    is_not_lost(3, PAGES, |guest, pages| coalesce(guest, Level::L1, pages));
}

#[test]
fn while_it_is_split() {
    is_not_lost(2, &[(0, Level::L2)], |guest, pages| {
        guest.split(0, BLOCK, pages);
        false
    });
    is_not_lost(3, &[(0, Level::L1)], |guest, pages| {
        guest.split(0, 2 * BLOCK, pages);
        false
    });
}
