// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a loader's bytes end up where the guest reads them, across pages, huge pages and slots, at any
//! alignment; and that an address that is not RAM is refused and reported.

use twofold_memory::{Backing, Error};
use twofold_stage2::Pa;

use super::*;
use crate::machine::{HUGE_PAGE, PAGE, device_at};

/// Bytes that differ from their neighbours and from the bytes a page or a word further on.
fn pattern(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at ^ at >> 8 ^ at >> 16) as u8 | 1).collect()
}

/// Reads bytes as the guest, through its caches and past them.
fn read(guest: &mut RunningGuest, from: Ipa, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = from;
    while at < from + size {
        let now = (PAGE - at.raw() % PAGE).min(from + size - at);
        let pa = guest.reach(at, Read);
        let bank = guest.machine.bank(pa);
        let past_caches = bank.load_past_caches(pa, now);
        bytes.extend(bank.load(pa, now));
        assert!(guest.machine.features.forced_write_back || bytes.ends_with(&past_caches), "not clean at {at}");
        at = at + now;
    }
    bytes
}

/// Writes `size` bytes, and checks them and the rest of their pages.
fn check(guest: &mut RunningGuest, at: Ipa, size: u64) {
    let bytes = pattern(size);
    guest.memory.write(at, &bytes).unwrap();
    assert!(read(guest, at, size) == bytes, "{size:#x} bytes at {at}");
    let (start, end) = (at.align_down(PAGE), (at + (size + PAGE - 1)).align_down(PAGE));
    assert!(read(guest, start, at - start).iter().all(|byte| *byte == 0), "before {at}");
    assert!(read(guest, at + size, end - (at + size)).iter().all(|byte| *byte == 0), "after {size:#x} bytes at {at}");
}

#[test]
fn bytes_cross_pages_and_huge_pages() {
    let places = [
        (0, 1),
        (1, 7),
        (3, 64),
        (8, 24),
        (0x235, 9),
        (PAGE - 1, 2),
        (PAGE - 3, PAGE + 6),
        (0, PAGE),
        (5, 3 * PAGE),
        (HUGE_PAGE - 1, 2),
        (HUGE_PAGE - 8, 16),
        (HUGE_PAGE - PAGE - 5, HUGE_PAGE + 2 * PAGE),
        (3 * HUGE_PAGE - 1, 1),
    ];
    for pages in [Pages::Small, Pages::Largest] {
        for features in [PLAIN, FORCED] {
            for (offset, size) in places {
                check(&mut guest(features, pages, 3 * HUGE_PAGE), BASE + offset, size);
            }
        }
    }
}

#[test]
fn bytes_cross_slots() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Largest, 8);
    guest.add_ram(BASE, HUGE_PAGE + 5 * PAGE);
    // A loader may write where the guest may not.
    guest.add(BASE + HUGE_PAGE + 5 * PAGE, HUGE_PAGE, Backing::Ram, false);
    check(&mut guest, BASE + HUGE_PAGE + (5 * PAGE - 13), 29);
}

#[test]
fn later_bytes_win_and_leave_the_others() {
    let mut guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
    guest.memory.write(BASE + 16, &[1; 32]).unwrap();
    guest.memory.write(BASE + 30, &[2; 5]).unwrap();
    let mut expected = [1; 32];
    expected[14..19].fill(2);
    assert_eq!(read(&mut guest, BASE + 16, 32), expected);
    assert_eq!(guest.memory.counts().frames_zeroed, 512);
}

#[test]
fn nothing_is_nothing_anywhere() {
    let guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
    let free = guest.memory.frames().free();
    for ipa in [BASE, BASE + HUGE_PAGE, Ipa::new(0), Ipa::new(u64::MAX)] {
        assert_eq!(guest.memory.write(ipa, &[]), Ok(()));
    }
    assert_eq!(guest.memory.frames().free(), free);
}

#[test]
fn what_is_no_ram_is_refused_with_its_address() {
    let mut guest = RunningGuest::new(FORCED, Pages::Small, 8);
    guest.add_ram(BASE, HUGE_PAGE);
    guest.add(BASE + HUGE_PAGE, PAGE, device_at(Pa::new(0x20_0000_0000)), true);
    let refused = |at: Ipa, size, ipa| {
        let free = guest.memory.frames().free();
        assert_eq!(guest.memory.write(at, &pattern(size)), Err(Error::NoRam { ipa }));
        free - guest.memory.frames().free()
    };
    // The error has the first byte that is not RAM.
    let below = Ipa::new(BASE.raw() - 3);
    assert_eq!(refused(below, 6, below), 0);
    assert_eq!(refused(BASE + HUGE_PAGE + 0x123, 1, BASE + HUGE_PAGE + 0x123), 0);
    assert_eq!(refused(BASE + HUGE_PAGE + 9 * PAGE + 7, 1, BASE + HUGE_PAGE + 9 * PAGE + 7), 0);
    assert_eq!(refused(Ipa::new(u64::MAX), 1, Ipa::new(u64::MAX)), 0);
    assert_eq!(refused(BASE + (HUGE_PAGE - 5), 10, BASE + HUGE_PAGE), 512);
    // The bytes in RAM were written.
    assert_eq!(read(&mut guest, BASE + (HUGE_PAGE - 5), 5), pattern(5));
}

#[test]
fn writing_maps_nothing() {
    let mut guest = guest(PLAIN, Pages::Largest, HUGE_PAGE);
    guest.memory.write(BASE, &pattern(HUGE_PAGE)).unwrap();
    assert_eq!((guest.scan().leaves, guest.memory.counts().mapped), (vec![], [0; 4]));
    assert_eq!(guest.memory.counts().frames_zeroed, 512);
    assert!(read(&mut guest, BASE, HUGE_PAGE) == pattern(HUGE_PAGE));
    assert_eq!(guest.memory.counts().frames_zeroed, 512);
}
