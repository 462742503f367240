// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a page with a state of its own is mapped: for what the guest needs, and for no more than a log or the slot allows.
//! One fault is enough for each access.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use twofold_memory::dirty::Tracker;
use twofold_memory::{Answer, Backing, GuestFault, Slot};
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::machine::platform::mmu::Leaf;
use crate::rig::{Plan, Rig, abandon, ipa, quiet};

/// No huge page is whole.
fn rig() -> Rig {
    Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() })
}

/// One fault at a page that is not mapped.
fn mapped(rig: &Rig, page: u64, access: AccessKind) -> Leaf {
    let fault = GuestFault { ipa: ipa(page), kind: FaultKind::Translation, access };
    assert!(matches!(rig.memory.fault(&fault), Ok(Answer::Retry(_))));
    rig.walk(page).unwrap()
}

#[test]
fn a_page_is_writable_at_once() {
    let rig = rig();
    for (page, access) in [(1, AccessKind::Read), (2, AccessKind::Write), (3, AccessKind::Execute)] {
        assert!(mapped(&rig, page, access).access().write, "{access:?}");
    }
    rig.end();
}

/// Code needs cache maintenance, so a page is executable from its first fetch on.
#[test]
fn a_page_is_executable_if_it_is_fetched() {
    let rig = rig();
    for access in [AccessKind::Read, AccessKind::Write, AccessKind::Execute] {
        let leaf = mapped(&rig, access as u64, access);
        assert_eq!(leaf.access().execute.el1, access == AccessKind::Execute, "{access:?}");
    }
    rig.end();
}

#[test]
fn a_page_of_a_slot_that_is_read_only_stays_so() {
    let mut rig = rig();
    let memory = std::rc::Rc::get_mut(&mut rig.memory).unwrap();
    memory.add_slot(Slot { range: ipa(2000)..ipa(2010), backing: Backing::Ram, writable: false }).unwrap();
    for (page, access) in [(2000, AccessKind::Read), (2001, AccessKind::Execute)] {
        assert!(!mapped(&rig, page, access).access().write, "{access:?}");
    }
    rig.end();
}

/// Only what was written is in the log, and all of it.
#[test]
fn a_log_sees_the_writes_to_pages_that_are_mapped_while_it_runs() {
    for tracker in Tracker::ALL {
        let rig = rig();
        rig.start_log(tracker);
        assert!(!mapped(&rig, 1, AccessKind::Read).access().write, "{tracker:?}");
        assert!(!mapped(&rig, 2, AccessKind::Read).access().write, "{tracker:?}");
        let leaf = mapped(&rig, 3, AccessKind::Write);
        assert!(leaf.access().write || leaf.dirty_by_hardware(), "{tracker:?}: its write faults again");
        rig.write(1);
        rig.write(3);
        assert_eq!(rig.take_dirty(tracker), [1, 3], "{tracker:?}");
        rig.write(2);
        rig.write(3);
        assert_eq!(rig.take_dirty(tracker), [2, 3], "{tracker:?}");
        rig.stop_log();
        rig.end();
    }
}

/// Maps a page for a log that stops before the atomic `number` of the fault. Returns whether the fault came that far.
fn log_stops(tracker: Tracker, access: AccessKind, number: usize) -> bool {
    let rig = Rc::new(rig());
    // The huge page has its table.
    rig.write(2);
    rig.start_log(tracker);
    let (begun, possible) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (other, other_begun, other_possible) = (Rc::clone(&rig), Rc::clone(&begun), Rc::clone(&possible));
    rig.machine.before_atomic(number, move || {
        other_begun.set(true);
        other_possible.set(catch_unwind(AssertUnwindSafe(|| other.stop_log())).is_ok());
    });
    let leaf = mapped(&rig, 1, access);
    rig.machine.set_atomic_hook(|| ());
    let is_tracked = possible.get() && leaf.dirty_by_hardware();
    assert!(!is_tracked, "{tracker:?}, {access:?}, before atomic {number}: {leaf:x?}");
    // A stop that was not possible has left locks taken.
    abandon(rig);
    begun.get()
}

/// Hardware records no write to the page afterwards, so that each is seen by a fault.
#[test]
fn no_page_is_hardware_tracked_for_a_log_that_has_stopped() {
    quiet();
    for tracker in Tracker::ALL {
        for access in [AccessKind::Read, AccessKind::Write] {
            let _ = (1..).find(|number| !log_stops(tracker, access, *number)).unwrap();
        }
    }
}
