// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that only a fetch grants execution, each time after the instruction cache was invalidated for the memory that
//! becomes executable; and that a CPU that needs no invalidation takes no such fault.

use twofold_memory::Backing;
use twofold_stage2::platform::Domain;
use twofold_stage2::{Access, Pa};

use super::*;
use crate::machine::guest::{Outcome, local_invalidation};
use crate::machine::platform::{Event, Sight};
use crate::machine::{HUGE_PAGE, PAGE};

const READ_EXECUTE: Access = Access { write: false, ..Access::ALL };
/// Invalidation by address is exact.
const PIPT: Features = FORCED.with_instruction_cache_pipt(true);

/// The record of one fault at a page whose tables exist, and the page's PA.
fn record(features: Features, before: &[AccessKind], kind: FaultKind, access: AccessKind) -> (Vec<Event>, Pa) {
    let mut guest = guest(features, Pages::Small, HUGE_PAGE);
    guest.reach(BASE, Read);
    let at = BASE + PAGE;
    for access in before {
        guest.reach(at, *access);
    }
    guest.machine.watch(at, None);
    guest.machine.events();
    assert!(matches!(guest.fault(at, kind, access), Ok(Answer::Retry(_))));
    let record = guest.machine.events();
    (record, guest.walk(at).unwrap().pa())
}

fn sees(pa: Pa, access: Access) -> Event {
    Event::Sees(BASE + PAGE, Some(Sight { level: 3, pa, access }))
}

#[test]
fn data_is_mapped_without_execution() {
    for access in [Read, Write] {
        let (record, pa) = record(FORCED, &[], Translation, access);
        assert_eq!(record, [sees(pa, Access::READ_WRITE), Event::Dsb(Domain::IshSt)]);
    }
}

#[test]
fn a_fetch_maps_for_execution_after_the_instruction_cache_was_invalidated() {
    let (by_line, pa) = record(PIPT, &[], Translation, Execute);
    let invalidate = Event::InvalidateCode(pa, PAGE);
    let seen = Event::Dsb(Domain::Ish);
    assert_eq!(by_line, [seen, invalidate, Event::Dsb(Domain::Ish), sees(pa, Access::ALL), Event::Dsb(Domain::IshSt)]);
    let (all, pa) = record(FORCED, &[], Translation, Execute);
    let invalidate = Event::InvalidateAllCode;
    let seen = Event::Dsb(Domain::Ish);
    assert_eq!(all, [seen, invalidate, Event::Dsb(Domain::Ish), sees(pa, Access::ALL), Event::Dsb(Domain::IshSt)]);
}

#[test]
fn without_forced_write_back_code_is_cleaned_before_the_instruction_cache_is_invalidated() {
    let (record, pa) = record(PLAIN.with_instruction_cache_pipt(true), &[], Translation, Execute);
    let expected = [
        Event::Clean(pa, PAGE),
        Event::Dsb(Domain::Ish),
        Event::Dsb(Domain::Ish),
        Event::InvalidateCode(pa, PAGE),
        Event::Dsb(Domain::Ish),
        sees(pa, Access::ALL),
        Event::Dsb(Domain::IshSt),
    ];
    assert_eq!(record, expected);
}

#[test]
fn a_fetch_from_mapped_data_widens_after_the_instruction_cache_was_invalidated() {
    for features in [PIPT, FORCED] {
        let (record, pa) = record(features, &[Write], Permission, Execute);
        let exact = features.instruction_cache_pipt;
        let invalidate = if exact { Event::InvalidateCode(pa, PAGE) } else { Event::InvalidateAllCode };
        let mut expected = vec![Event::Dsb(Domain::Ish), invalidate, Event::Dsb(Domain::Ish), sees(pa, Access::ALL)];
        expected.extend(local_invalidation(BASE + PAGE));
        assert_eq!(record, expected);
    }
}

#[test]
fn a_stale_translation_fault_on_a_fetch_widens_too() {
    let (record, pa) = record(PIPT, &[Read], Translation, Execute);
    let mut expected =
        vec![Event::Dsb(Domain::Ish), Event::InvalidateCode(pa, PAGE), Event::Dsb(Domain::Ish), sees(pa, Access::ALL)];
    expected.extend(local_invalidation(BASE + PAGE));
    assert_eq!(record, expected);
}

#[test]
fn what_may_be_executed_is_not_maintained_again() {
    let (record, _) = record(PIPT, &[Execute], Permission, Execute);
    assert_eq!(record, local_invalidation(BASE + PAGE));
}

#[test]
fn a_fetch_makes_the_whole_block_executable() {
    for features in [FORCED, PIPT, PIPT.with_instruction_line(64)] {
        let mut guest = guest(features, Pages::Largest, HUGE_PAGE);
        guest.reach(BASE, Write);
        guest.machine.watch(BASE, None);
        guest.machine.events();
        let at = BASE + 9 * PAGE;
        assert_eq!(guest.fault_of(at, Execute), Some(Permission));
        assert_eq!(guest.fault(at, Permission, Execute), Ok(WIDENED));
        let pa = guest.walk(BASE).unwrap().pa();
        let record = guest.machine.events();
        // For too many lines, the whole instruction cache is invalidated.
        let exact = features.instruction_cache_pipt && features.instruction_line > 64;
        let invalidate = if exact { Event::InvalidateCode(pa, HUGE_PAGE) } else { Event::InvalidateAllCode };
        let sees = Event::Sees(BASE, Some(Sight { level: 2, pa, access: Access::ALL }));
        // The entry is busy meanwhile, so that no other CPU maps there.
        let (gone, dsb) = (Event::Sees(BASE, None), Event::Dsb(Domain::Ish));
        assert_eq!(record[..6], [gone, dsb.clone(), invalidate, dsb, sees, Event::Dsb(Domain::IshSt)]);
        assert_eq!(record[6..], local_invalidation(BASE));
        assert_eq!(guest.fault_of(BASE + (HUGE_PAGE - 4), Execute), None);
    }
}

#[test]
fn a_coherent_instruction_cache_needs_neither_fault_nor_invalidation() {
    for (pages, level) in [(Pages::Small, Level::L3), (Pages::Largest, Level::L2)] {
        for access in [Read, Write, Execute] {
            let mut guest = guest(COHERENT.with_forced_write_back(true), pages, HUGE_PAGE);
            assert!(matches!(
                guest.touch(BASE, access),
                Ok(Outcome::Reaches(_, answers)) if answers == [mapped(level, true)]
            ));
            assert_eq!(guest.fault_of(BASE, Execute), None);
            assert_eq!(guest.access(BASE), Some(Access::ALL));
            let record = guest.machine.events();
            assert!(record.iter().all(|event| *event == Event::Dsb(Domain::IshSt)), "{record:?}");
        }
    }
}

#[test]
fn code_in_a_slot_that_may_not_be_written_stays_so() {
    for (features, first) in [(PLAIN, Access::READ), (COHERENT, READ_EXECUTE)] {
        let mut guest = RunningGuest::new(features, Pages::Largest, 3);
        guest.add(BASE, HUGE_PAGE, Backing::Ram, false);
        guest.reach(BASE, Read);
        assert_eq!(guest.access(BASE), Some(first));
        guest.reach(BASE, Execute);
        assert_eq!(guest.access(BASE), Some(READ_EXECUTE));
        let mut guest = RunningGuest::new(features, Pages::Small, 3);
        guest.add(BASE, HUGE_PAGE, Backing::Ram, false);
        guest.reach(BASE, Execute);
        assert_eq!(guest.access(BASE), Some(READ_EXECUTE));
    }
}
