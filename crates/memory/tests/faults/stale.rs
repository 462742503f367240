// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a stale fault ends: if everything is in place already, this CPU's TLB is invalidated, nothing else
//! changes, and the guest tries again.

use twofold_stage2::{Access, Pa};

use super::*;
use crate::machine::guest::{local_invalidation, needed};
use crate::machine::platform::Event;
use crate::machine::{HUGE_PAGE, PAGE, device_at};

const ACCESSED: u64 = 1 << 10;

/// Checks that the fault is stale, changes no table and no count, and leaves this record.
fn changes_nothing(guest: &mut RunningGuest, ipa: Ipa, kind: FaultKind, access: AccessKind, record: &[Event]) {
    let before = (guest.scan(), guest.memory.counts(), guest.memory.frames().free());
    guest.machine.events();
    assert_eq!(guest.fault(ipa, kind, access), Ok(STALE), "{kind:?}, {access:?} at {ipa}");
    assert_eq!(guest.machine.events(), record);
    assert_eq!((guest.scan(), guest.memory.counts(), guest.memory.frames().free()), before);
}

#[test]
fn the_same_fault_again_finds_all_in_place() {
    for (pages, leaf) in [(Pages::Small, PAGE), (Pages::Largest, HUGE_PAGE)] {
        for access in [Read, Write, Execute] {
            let mut guest = guest(PLAIN, pages, HUGE_PAGE);
            let at = BASE + 5 * PAGE;
            guest.reach(at, access);
            for kind in [Translation, Permission, FaultKind::AccessFlag] {
                changes_nothing(&mut guest, at, kind, access, &local_invalidation(at.align_down(leaf)));
            }
        }
    }
}

#[test]
fn another_vcpu_that_comes_late_finds_all_in_place() {
    // Two vCPUs fault for one page. The first maps it for a fetch, which also grants the second one's access.
    let mut guest = guest(PLAIN, Pages::Small, HUGE_PAGE);
    guest.reach(BASE, Execute);
    changes_nothing(&mut guest, BASE, Translation, Write, &local_invalidation(BASE));
    assert_eq!(guest.access(BASE), Some(Access::ALL));
}

#[test]
fn another_vcpu_that_wants_more_gets_it() {
    let mut guest = guest(PLAIN, Pages::Small, HUGE_PAGE);
    guest.reach(BASE, Write);
    assert_eq!(guest.fault(BASE, Translation, Execute), Ok(WIDENED));
    assert_eq!(guest.fault_of(BASE, Execute), None);
    assert_eq!(guest.access(BASE), Some(Access::ALL));
}

#[test]
fn a_device_fault_again_finds_all_in_place() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 1);
    guest.add(BASE, HUGE_PAGE, device_at(Pa::new(0x20_0000_0000)), true);
    guest.reach(BASE + PAGE, Read);
    for (kind, access) in [(Translation, Write), (Permission, Write), (Permission, Read)] {
        changes_nothing(&mut guest, BASE + 3 * PAGE, kind, access, &local_invalidation(BASE));
    }
    assert_eq!(guest.memory.counts().mapped, [0, 0, 1, 0]);
}

#[test]
fn a_permission_fault_for_what_is_not_mapped_is_stale() {
    for access in [Read, Write, Execute] {
        let mut guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
        // The leaf for which it faulted is gone, but may still be in this CPU's TLB.
        changes_nothing(&mut guest, BASE, Permission, access, &local_invalidation(BASE));
        changes_nothing(&mut guest, BASE, FaultKind::AccessFlag, access, &local_invalidation(BASE));
        // The guest then takes a translation fault, and makes progress.
        assert_eq!(guest.fault_of(BASE, access), Some(Translation));
        guest.reach(BASE, access);
    }
}

#[test]
fn a_permission_that_was_taken_is_given_back() {
    for access in [Read, Write, Execute] {
        let mut guest = guest(PLAIN, Pages::Small, HUGE_PAGE);
        guest.reach(BASE, Execute);
        // As after a protect: no access at all, and XN.
        let leaf = guest.walk(BASE).unwrap();
        guest.machine.bank(leaf.entry).set_word(leaf.entry, leaf.raw & !0xc0 | 1 << 54);
        guest.machine.events();
        assert_eq!(guest.fault_of(BASE, access), Some(Permission));
        assert_eq!(guest.fault(BASE, Permission, access), Ok(WIDENED));
        let record = guest.machine.events();
        assert!(record.ends_with(&local_invalidation(BASE)), "{record:?}");
        assert!(guest.access(BASE).unwrap().covers(needed(access)));
        assert_eq!(guest.access(BASE).unwrap().execute.any(), access == Execute, "only what was asked for");
        assert_eq!(guest.access(BASE).unwrap().write, access == Write, "only what was asked for");
    }
}

#[test]
fn an_access_flag_that_is_clear_is_set() {
    for access in [Read, Write, Execute] {
        let mut guest = guest(PLAIN, Pages::Small, HUGE_PAGE);
        guest.reach(BASE, Execute);
        let before = guest.walk(BASE).unwrap();
        guest.machine.bank(before.entry).set_word(before.entry, before.raw & !ACCESSED);
        guest.machine.events();
        assert_eq!(guest.fault_of(BASE, access), Some(FaultKind::AccessFlag));
        assert_eq!(guest.fault(BASE, FaultKind::AccessFlag, access), Ok(WIDENED));
        assert_eq!(guest.machine.events(), local_invalidation(BASE));
        assert_eq!(guest.walk(BASE), Some(before), "the flag, and nothing else");
    }
}

#[test]
fn invalidations_are_for_this_guest_where_another_is_loaded() {
    let mut guest = guest(FORCED, Pages::Small, HUGE_PAGE);
    guest.reach(BASE, Read);
    let (own, other) = (guest.memory.stage2().vttbr(), 0x0033_0000_4567_8000);
    let vtcr = guest.memory.stage2().vtcr();
    guest.machine.enter(other, vtcr);
    guest.machine.events();
    assert_eq!(guest.fault(BASE, Translation, Read), Ok(STALE));
    let mut expected = vec![Event::LoadVttbr(own), Event::Isb];
    expected.extend(local_invalidation(BASE));
    expected.extend([Event::LoadVttbr(other), Event::Isb]);
    assert_eq!(guest.machine.events(), expected);
}
