// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that devices are mapped by the largest leaf that slot and both addresses allow, as device memory that is
//! never executed; and that they need no frames, zeroing or cache maintenance, as RAM does.

use twofold_memory::Error;
use twofold_stage2::{Access, Memory, Pa};

use super::*;
use crate::machine::guest::{IPA_BITS, Outcome};
use crate::machine::platform::Event;
use crate::machine::{GIB, HUGE_PAGE, PAGE, device_at};

/// An address without RAM that is aligned for any leaf.
const DEVICE: Pa = Pa::new(0x20_0000_0000);

struct Case {
    /// The slot's offset from `BASE`.
    start: u64,
    size: u64,
    /// The registers' offset from `DEVICE`.
    pa: u64,
    /// The touched address's offset from `BASE`.
    at: u64,
    level: u8,
}

fn check(case: &Case, ipa_bits: u32, pages: Pages) {
    let Case { start, size, pa, at, level } = *case;
    let mut guest = RunningGuest::with_ipa_bits(PLAIN, pages, 1, ipa_bits);
    guest.add(BASE + start, size, device_at(DEVICE + pa), true);
    let free = guest.memory.frames().free();
    let tables = guest.memory.counts().tables_allocated;
    guest.machine.events();

    let answer = guest.fault(BASE + at, Translation, Write);

    let context = format!("slot +{start:#x} of {size:#x} at +{pa:#x}, touched at +{at:#x}");
    assert_eq!(answer, Ok(mapped(Level::new(level).unwrap(), false)), "{context}");
    let leaf = guest.walk(BASE + at).expect(&context);
    assert_eq!(leaf.level, level, "{context}");
    assert_eq!(leaf.output(BASE + at), DEVICE + pa + (at - start), "{context}");
    assert!(leaf.ipa >= BASE + start && leaf.end() <= BASE + start + size, "{context}: beyond the slot");
    assert_eq!((leaf.memory(false), leaf.access()), (Memory::Device, Access::READ_WRITE), "{context}");
    assert!(leaf.accessed(), "{context}");
    assert_eq!(guest.fault_of(BASE + at, Write), None);
    // Only tables took frames, and no memory was zeroed, cleaned or invalidated.
    let counts = guest.memory.counts();
    assert_eq!(free - guest.memory.frames().free(), counts.tables_allocated - tables);
    assert_eq!((counts.frames_zeroed, counts.first_touches), (0, [0; 4]));
    let record = guest.machine.events();
    assert!(record.iter().all(|event| matches!(event, Event::Dsb(_))), "{context}: {record:?}");
}

const CASES: &[Case] = &[
    // Pages: the slot is small, or ragged around the touched address, or both addresses are aligned differently.
    Case { start: 0, size: PAGE, pa: 0, at: 0, level: 3 },
    Case { start: 0, size: HUGE_PAGE - PAGE, pa: 0, at: PAGE, level: 3 },
    Case { start: PAGE, size: HUGE_PAGE, pa: PAGE, at: HUGE_PAGE - 1, level: 3 },
    Case { start: PAGE, size: HUGE_PAGE, pa: PAGE, at: HUGE_PAGE, level: 3 },
    Case { start: 0, size: 4 * HUGE_PAGE, pa: PAGE, at: HUGE_PAGE, level: 3 },
    Case { start: 0, size: 4 * GIB, pa: HUGE_PAGE - PAGE, at: 2 * GIB, level: 3 },
    Case { start: PAGE, size: 4 * HUGE_PAGE, pa: 0, at: 2 * HUGE_PAGE, level: 3 },
    // The start of the leaf would be below address 0.
    Case { start: PAGE, size: 4 * HUGE_PAGE, pa: PAGE, at: PAGE, level: 3 },
    // 2 MiB: the slot has no aligned GiB around the touched address, or both addresses are aligned alike only up to 2
    // MiB.
    Case { start: 0, size: HUGE_PAGE, pa: 0, at: HUGE_PAGE - 1, level: 2 },
    Case { start: PAGE, size: 2 * HUGE_PAGE, pa: PAGE, at: HUGE_PAGE + 5, level: 2 },
    Case { start: 0, size: GIB - PAGE, pa: 0, at: 0x1234, level: 2 },
    Case { start: HUGE_PAGE, size: GIB, pa: HUGE_PAGE, at: GIB - 1, level: 2 },
    Case { start: HUGE_PAGE, size: GIB, pa: HUGE_PAGE, at: GIB, level: 2 },
    Case { start: 0, size: 2 * GIB, pa: HUGE_PAGE, at: GIB, level: 2 },
];

/// With a root at level 1 or above.
const GIB_CASES: &[Case] = &[
    Case { start: 0, size: GIB, pa: 0, at: GIB - 1, level: 1 },
    Case { start: 0, size: 2 * GIB, pa: 3 * GIB, at: GIB, level: 1 },
    Case { start: HUGE_PAGE, size: 2 * GIB, pa: GIB + HUGE_PAGE, at: GIB + 77, level: 1 },
];

#[test]
fn devices_are_mapped_by_the_largest_leaf_that_fits() {
    for case in CASES.iter().chain(GIB_CASES) {
        // The policy is for RAM, and changes nothing here.
        check(case, IPA_BITS, Pages::Largest);
        check(case, IPA_BITS, Pages::Small);
        check(case, 48, Pages::Largest);
    }
}

#[test]
fn where_the_root_is_at_level_2_no_leaf_is_larger_than_its_entries() {
    for case in CASES {
        check(case, 34, Pages::Largest);
    }
    for case in GIB_CASES {
        check(&Case { level: 2, ..*case }, 34, Pages::Largest);
    }
}

#[test]
fn a_leaf_that_would_start_below_physical_address_0_is_not_tried() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 1);
    guest.add(BASE + (HUGE_PAGE - PAGE), PAGE, device_at(Pa::new(0)), true);
    assert_eq!(
        guest.touch(BASE + (HUGE_PAGE - 1), Read),
        Ok(Outcome::Reaches(Pa::new(0xfff), vec![mapped(Level::L3, false)]))
    );
}

#[test]
fn code_is_never_fetched_from_a_device() {
    for features in [PLAIN, COHERENT] {
        let mut guest = RunningGuest::new(features, Pages::Largest, 1);
        guest.add(BASE, GIB, device_at(DEVICE), true);
        assert_eq!(guest.touch(BASE, Execute), Ok(Outcome::Aborts));
        assert_eq!(guest.walk(BASE), None, "nothing was mapped for it");
        guest.reach(BASE, Write);
        let before = guest.walk(BASE);
        assert_eq!(guest.access(BASE), Some(Access::READ_WRITE));
        assert_eq!(guest.fault(BASE, Permission, Execute), Ok(Answer::ExternalAbort));
        assert_eq!(guest.fault(BASE, Translation, Execute), Ok(Answer::ExternalAbort));
        assert_eq!(guest.walk(BASE), before);
    }
}

#[test]
fn a_device_that_may_not_be_written_is_not() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 1);
    guest.add(BASE, HUGE_PAGE, device_at(DEVICE), false);
    assert_eq!(guest.touch(BASE, Write), Ok(Outcome::Aborts));
    assert_eq!(guest.walk(BASE), None);
    assert_eq!(guest.reach(BASE + 8, Read), DEVICE + 8);
    assert_eq!(guest.access(BASE), Some(Access::READ));
    assert_eq!(guest.touch(BASE, Write), Ok(Outcome::Aborts));
    assert_eq!(guest.access(BASE), Some(Access::READ));
}

#[test]
fn a_device_beyond_the_physical_address_space_is_an_error() {
    let mut guest = RunningGuest::new(PLAIN.with_pa_bits(40), Pages::Largest, 1);
    let pa = Pa::new(1 << 40);
    guest.add(BASE, PAGE, device_at(pa), true);
    let error = Error::Stage2(twofold_stage2::Error::OutsidePa { pa, bits: 40 });
    assert_eq!(guest.fault(BASE, Translation, Read), Err(error));
    assert_eq!(guest.walk(BASE), None);
}

#[test]
fn a_device_that_was_partly_unmapped_is_mapped_again_around_what_is_left() {
    for (size, unmapped, touched, level) in [
        (HUGE_PAGE, PAGE, 0, 3),
        (HUGE_PAGE, PAGE, PAGE - 1, 3),
        // A block of 1 GiB, of which 2 MiB and then a page go.
        (GIB, HUGE_PAGE, HUGE_PAGE / 2, 2),
        (GIB, PAGE, 5, 3),
    ] {
        let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 1);
        let slot = guest.add(BASE, size, device_at(DEVICE), true);
        guest.reach(BASE, Write);
        guest.memory.unmap(slot, BASE..BASE + unmapped).unwrap();
        assert_eq!(guest.walk(BASE + touched), None);

        let context = format!("{unmapped:#x} of {size:#x}, touched at +{touched:#x}");
        let answer = guest.fault(BASE + touched, Translation, Read);
        assert_eq!(answer, Ok(mapped(Level::new(level).unwrap(), false)), "{context}");
        assert_eq!(guest.reach(BASE + touched, Write), DEVICE + touched, "{context}");
        assert_eq!(guest.reach(BASE + unmapped, Write), DEVICE + unmapped, "{context}: what was left");
    }
}
