// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests what EFI's memory map makes of a machine's RAM: what the firmware keeps is neither handed out nor mapped.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use std::ops::Range;

use twofold_fuzz_hypervisor::handover::{Handover, MAX_USABLE, TooMany};

fn usable(ranges: &[Range<u64>]) -> Handover {
    let mut handover = Handover::new(0..0);
    ranges.iter().for_each(|range| handover.add(range.clone()).unwrap());
    handover
}

fn kept(ranges: &[Range<u64>], ram: Range<u64>) -> Vec<Range<u64>> {
    // There are no more ranges between usable ones, so an endless list fails.
    usable(ranges).kept(ram).take(MAX_USABLE + 1).collect()
}

#[test]
fn what_is_not_usable_is_kept() {
    assert_eq!(kept(&[], 10..20), [10..20]);
    assert_eq!(kept(&[0..100], 10..20), []);
    assert_eq!(kept(&[10..20], 10..20), []);
    assert_eq!(kept(&[12..14, 16..18], 10..20), [10..12, 14..16, 18..20]);
    // In no order, and beyond the RAM on both sides.
    assert_eq!(kept(&[18..30, 2..11, 13..14], 10..20), [11..13, 14..18]);
    assert_eq!(kept(&[20..30, 0..10], 10..20), [10..20]);
    assert_eq!(kept(&[10..u64::MAX], 10..u64::MAX), []);
    // Firmware may list a range without pages.
    assert_eq!(kept(&[10..10], 10..20), [10..20]);
}

#[test]
fn ranges_that_touch_are_one() {
    // The last one joins all of them.
    assert_eq!(usable(&[0..1, 2..3, 4..5, 1..4]), usable(&[0..5]));
    let mut full = Handover::new(0..0);
    (0..MAX_USABLE as u64).for_each(|number| full.add(10 * number..10 * number + 1).unwrap());
    assert_eq!(full.add(5..6), Err(TooMany));
    // It fits where it makes two into one.
    assert_eq!(full.add(1..10), Ok(()));
    assert_eq!(full.add(5000..5001), Ok(()));
}

#[test]
fn any_order_of_pages_gives_the_same() {
    const SEED: u64 = 0x7770_66f1_d0c5_eed1;
    let mut random = SEED;
    let mut next = |below: u64| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..2000 {
        let free: Vec<bool> = (0..24).map(|_| next(3) != 0).collect();
        let mut pages: Vec<u64> = (0..24).filter(|page| free[*page as usize]).collect();
        for place in (1..pages.len()).rev() {
            pages.swap(place, next(place as u64 + 1) as usize);
        }
        let handover = usable(&pages.iter().map(|page| *page..*page + 1).collect::<Vec<_>>());
        let (start, end) = (next(12), 12 + next(16));
        let kept: Vec<u64> = handover.kept(start..end).flatten().collect();
        let expected: Vec<u64> =
            (start..end).filter(|page| !free.get(*page as usize).is_some_and(|free| *free)).collect();
        assert_eq!(kept, expected, "seed {SEED:#x}, round {round}: {free:?}, {start}..{end}");
    }
}
