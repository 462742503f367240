// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that cache maintenance by address is not a write: it is skipped where there is no slot, maps no more than a
//! read does, and needs the permission to write only where hardware says so (`DC IVAC`).

use twofold_memory::Backing;
use twofold_stage2::{Access, Pa};

use super::*;
use crate::machine::guest::Outcome;
use crate::machine::{HUGE_PAGE, device_at};
use AccessKind::Maintenance;

#[test]
fn where_no_slot_is_it_is_skipped() {
    let mut guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
    for ipa in [Ipa::new(0), BASE + HUGE_PAGE, Ipa::new(u64::MAX)] {
        let before = (guest.scan(), guest.memory.counts());
        guest.machine.events();
        for kind in [Translation, Permission, FaultKind::AccessFlag] {
            assert_eq!(guest.fault(ipa, kind, Maintenance), Ok(Answer::Skip), "{kind:?} at {ipa}");
        }
        assert_eq!(guest.machine.events(), []);
        assert_eq!((guest.scan(), guest.memory.counts()), before);
    }
}

#[test]
fn what_may_not_be_written_is_mapped_for_it_as_for_a_read() {
    for (features, access) in [(PLAIN, Access::READ), (COHERENT, Access { write: false, ..Access::ALL })] {
        for (pages, level) in [(Pages::Small, Level::L3), (Pages::Largest, Level::L2)] {
            let mut guest = RunningGuest::new(features, pages, 3);
            guest.add(BASE, HUGE_PAGE, Backing::Ram, false);
            let Ok(Outcome::Reaches(_, answers)) = guest.touch(BASE, Maintenance) else { panic!("it is refused") };
            assert_eq!(answers, [mapped(level, true)]);
            assert_eq!(guest.access(BASE), Some(access));
            // Another vCPU has mapped the page first.
            assert_eq!(guest.fault(BASE, Translation, Maintenance), Ok(STALE));
            // `DC IVAC`.
            assert_eq!(guest.fault(BASE, Permission, Maintenance), Ok(Answer::ExternalAbort));
            assert_eq!(guest.access(BASE), Some(access));
        }
    }
}

#[test]
fn what_is_mapped_for_reads_gets_no_more_where_another_vcpu_was_faster() {
    let mut guest = guest(PLAIN, Pages::Small, HUGE_PAGE);
    guest.reach(BASE, Read);
    let stage2 = guest.memory.stage2();
    let _ = stage2.write_protect(BASE..BASE + HUGE_PAGE).unwrap().complete();
    assert_eq!(guest.fault(BASE, Translation, Maintenance), Ok(STALE));
    assert_eq!(guest.access(BASE), Some(Access::READ));
    // `DC IVAC` gets the permission that the slot allows.
    assert_eq!(guest.fault(BASE, Permission, Maintenance), Ok(WIDENED));
    assert_eq!(guest.access(BASE), Some(Access::READ_WRITE));
    assert_eq!(guest.fault(BASE, Permission, Maintenance), Ok(STALE));
}

#[test]
fn a_device_is_mapped_for_it() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 1);
    let device = Pa::new(0x20_0000_0000);
    guest.add(BASE, HUGE_PAGE, device_at(device), false);
    assert_eq!(guest.reach(BASE + 8, Maintenance), device + 8);
    assert_eq!(guest.access(BASE), Some(Access::READ));
}
