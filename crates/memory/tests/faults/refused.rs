// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves which accesses get an external abort: at addresses that no slot has, to the byte, and writes that the slot
//! forbids. And that such an access changes nothing.

use twofold_memory::{Backing, Counts, Slot, SlotError};
use twofold_stage2::{Access, Pa};

use super::*;
use crate::machine::guest::{IPA_BITS, Outcome};
use crate::machine::platform::mmu::Scan;
use crate::machine::platform::window::window;
use crate::machine::{HUGE_PAGE, PAGE, device_at};

/// Everything that a fault may change.
fn state(guest: &RunningGuest) -> (Scan, Counts, u64) {
    (guest.scan(), guest.memory.counts(), guest.memory.frames().free())
}

/// Checks that each fault at `ipa` aborts and changes nothing.
fn aborts(guest: &mut RunningGuest, ipa: Ipa, accesses: &[AccessKind]) {
    let before = state(guest);
    guest.machine.events();
    for access in accesses {
        for kind in [Translation, Permission, FaultKind::AccessFlag] {
            assert_eq!(guest.fault(ipa, kind, *access), Ok(Answer::ExternalAbort), "{kind:?}, {access:?} at {ipa}");
        }
    }
    assert_eq!(guest.machine.events(), []);
    assert_eq!(state(guest), before);
}

#[test]
fn where_no_slot_is_nothing_answers() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 8);
    let empty = [Ipa::new(0), BASE, Ipa::new((1 << IPA_BITS) - 1), Ipa::new(1 << IPA_BITS), Ipa::new(u64::MAX)];
    for ipa in empty {
        aborts(&mut guest, ipa, &[Read, Write, Execute]);
    }
    guest.add_ram(BASE, HUGE_PAGE);
    guest.add_ram(BASE + 2 * HUGE_PAGE, PAGE);
    // Before the first slot, in the hole, and after the last slot; also when the last search ended in a slot.
    for ipa in [Ipa::new(BASE.raw() - 1), BASE + HUGE_PAGE, BASE + (2 * HUGE_PAGE - 1), BASE + 2 * HUGE_PAGE + PAGE] {
        guest.reach(BASE, Read);
        aborts(&mut guest, ipa, &[Read, Write, Execute]);
        guest.reach(BASE + 2 * HUGE_PAGE, Read);
        aborts(&mut guest, ipa, &[Read, Write, Execute]);
    }
}

#[test]
fn the_first_and_the_last_byte_of_a_slot_belong_to_it() {
    for pages in [Pages::Small, Pages::Largest] {
        for size in [PAGE, HUGE_PAGE, HUGE_PAGE + PAGE] {
            let mut guest = guest(PLAIN, pages, size);
            let first = guest.reach(BASE, Write);
            let last = guest.reach(BASE + (size - 1), Write);
            assert_eq!((first.raw() % PAGE, last.raw() % PAGE), (0, PAGE - 1));
            aborts(&mut guest, BASE + size, &[Read, Write, Execute]);
            aborts(&mut guest, Ipa::new(BASE.raw() - 1), &[Read, Write, Execute]);
        }
    }
}

#[test]
fn the_first_and_the_last_page_of_the_address_space_can_be_mapped() {
    for ipa_bits in [32, 34, 40, 48] {
        let end = 1 << ipa_bits;
        let mut guest = RunningGuest::with_ipa_bits(PLAIN, Pages::Largest, 4, ipa_bits);
        guest.add_ram(Ipa::new(0), PAGE);
        guest.add_ram(Ipa::new(end - HUGE_PAGE), HUGE_PAGE);
        guest.reach(Ipa::new(0), Write);
        guest.reach(Ipa::new(end - 1), Write);
        assert_eq!((guest.level(Ipa::new(0)), guest.level(Ipa::new(end - 1))), (Some(3), Some(2)));
        aborts(&mut guest, Ipa::new(end), &[Read]);
        let (limit, after) = (Ipa::new(end), Ipa::new(end + PAGE));
        let outside = Slot { range: limit..after, backing: Backing::Ram, writable: true };
        let refused = guest.memory.add_slot(outside).unwrap_err();
        assert_eq!(refused.error, SlotError::OutsideIpa { end: after, limit });
    }
}

#[test]
fn a_device_fills_its_slot_from_its_first_page_on() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 1);
    let mut add = |backing, size| {
        let slot = Slot { range: BASE..BASE + size, backing, writable: true };
        guest.memory.add_slot(slot).map_err(|refused| refused.error)
    };
    let device = Pa::new(0x0900_0800);
    assert_eq!(add(device_at(device), PAGE), Err(SlotError::DeviceMisaligned { start: BASE, device, page: PAGE }));
    // The second page would be at physical address 0.
    let device = Pa::new(0xffff_ffff_ffff_f000);
    assert_eq!(add(device_at(device), 2 * PAGE), Err(SlotError::DeviceOutside { start: BASE, device }));
    let smaller = Backing::Device(window(Pa::new(0x0900_0000), 2 * PAGE));
    let wrong = SlotError::WindowSize { start: BASE, size: 3 * PAGE, window: 2 * PAGE };
    assert_eq!(add(smaller, 3 * PAGE), Err(wrong));
    assert!(add(device_at(Pa::new(0xffff_ffff_ffff_d000)), 2 * PAGE).is_ok());
}

/// No larger leaf maps memory beyond the end of a window, for which the embedder has not vouched.
#[test]
fn a_window_is_not_exceeded() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 4);
    let device = Pa::new(0x20_0000_0000);
    guest.add(BASE, HUGE_PAGE, Backing::Device(window(device, HUGE_PAGE)), true);
    assert_eq!(guest.reach(BASE + PAGE, Write), device + PAGE);
    assert_eq!(guest.level(BASE), Some(2));
    aborts(&mut guest, BASE + HUGE_PAGE, &[Read, Write]);
}

#[test]
fn neighbours_keep_their_own_rules() {
    for pages in [Pages::Small, Pages::Largest] {
        let mut guest = RunningGuest::new(PLAIN, pages, 8);
        let device = Pa::new(0x20_0000_0000);
        // Not in the order of their addresses.
        guest.add(BASE + 2 * HUGE_PAGE, HUGE_PAGE, device_at(device), true);
        guest.add(BASE, HUGE_PAGE, Backing::Ram, true);
        guest.add(BASE + HUGE_PAGE, HUGE_PAGE, Backing::Ram, false);
        let ram = guest.reach(BASE + (HUGE_PAGE - 1), Write);
        let read_only = guest.reach(BASE + HUGE_PAGE, Read);
        assert!(guest.machine.is_ram(ram) && guest.machine.is_ram(read_only));
        assert_ne!(ram.align_down(HUGE_PAGE), read_only.align_down(HUGE_PAGE));
        aborts(&mut guest, BASE + HUGE_PAGE, &[Write]);
        aborts(&mut guest, BASE + (2 * HUGE_PAGE - 1), &[Write]);
        assert_eq!(guest.reach(BASE + 2 * HUGE_PAGE, Write), device);
        aborts(&mut guest, BASE + 2 * HUGE_PAGE, &[Execute]);
        guest.reach(BASE + (2 * HUGE_PAGE - 1), Execute);
        aborts(&mut guest, BASE + 3 * HUGE_PAGE, &[Read, Write, Execute]);
    }
}

#[test]
fn a_slot_that_may_not_be_written_is_read() {
    for (features, access) in [(PLAIN, Access::READ), (COHERENT, Access { write: false, ..Access::ALL })] {
        for (pages, level) in [(Pages::Small, Level::L3), (Pages::Largest, Level::L2)] {
            let mut guest = RunningGuest::new(features, pages, 3);
            guest.add(BASE, HUGE_PAGE, Backing::Ram, false);
            // Before anything is mapped, and after.
            aborts(&mut guest, BASE, &[Write]);
            assert_eq!(guest.walk(BASE), None);
            assert!(matches!(
                guest.touch(BASE, Read),
                Ok(Outcome::Reaches(_, answers)) if answers == [mapped(level, true)]
            ));
            assert_eq!(guest.access(BASE), Some(access));
            aborts(&mut guest, BASE, &[Write]);
            assert_eq!(guest.touch(BASE, Write), Ok(Outcome::Aborts));
            guest.reach(BASE, Execute);
            aborts(&mut guest, BASE, &[Write]);
            assert!(!guest.access(BASE).unwrap().write);
        }
    }
}
