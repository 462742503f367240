// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run of frames holds: reading, writing, copying, and the search for zeroes, at any place.

use super::*;
use crate::platform::KIB_4;
use twofold_stage2::Run;

/// Whether each of these pages is all zeroes. If not, all its bytes are 0xee.
fn zero_pages_in(bytes: &[u8]) -> Vec<bool> {
    let is_zero = |page: &[u8]| {
        assert!(page.iter().all(|byte| *byte == page[0] && [0, 0xee].contains(byte)), "a part of a page");
        page[0] == 0
    };
    bytes.chunks(KIB_4 as usize).map(is_zero).collect()
}

/// A guest's memory is read as it is at this moment, at any alignment, and nothing beside it.
#[test]
fn memory_is_read_as_it_was_written() {
    let mut guest = guest(HINTS);
    let platform = guest.stage2.platform();
    let run = guest.pool.run(2);
    let written: Vec<u8> = (0..=255).cycle().take(2 * KIB_4 as usize).collect();
    run.write(platform, 0, &written);
    let all = || {
        let mut bytes = vec![0; written.len()];
        run.read(platform, 0, &mut bytes);
        bytes
    };
    assert!(all() == written && !run.is_empty());
    // From any alignment, with any rest, and nothing beside it.
    for (offset, length) in [(0, 3), (3, 1), (8, 8), (16, 13), (5, 64), (KIB_4 - 4, 8), (2 * KIB_4 - 1, 1)] {
        let bytes: Vec<u8> = (0..length as u8).map(|byte| byte ^ 0xa5).collect();
        let mut expected = all();
        expected[offset as usize..][..length].copy_from_slice(&bytes);
        run.write(platform, offset, &bytes);
        assert!(all() == expected, "{length} at {offset:#x}");
    }
    run.write(platform, 0, &written);
    for (offset, length) in [(0, 16), (0, 0), (1, 7), (8, 8), (8, 13), (3, 64), (KIB_4 - 4, 8), (2 * KIB_4 - 1, 1)] {
        let mut bytes = vec![0xee; length + 2];
        run.read(platform, offset, &mut bytes[1..=length]);
        let expected = &written[offset as usize..][..length];
        assert_eq!(
            (&bytes[1..=length], bytes[0], bytes[length + 1]),
            (expected, 0xee, 0xee),
            "{length} at {offset:#x}"
        );
    }
    for (offset, length) in [(2 * KIB_4, 1), (2 * KIB_4 - 7, 8), (u64::MAX, 2)] {
        let read = std::panic::AssertUnwindSafe(|| run.read(platform, offset, &mut vec![0; length]));
        assert!(std::panic::catch_unwind(read).is_err(), "{length} at {offset:#x}");
    }
}

/// The bytes of the caller may have any alignment: they decide only how wide the accesses are.
#[test]
fn the_caller_s_bytes_have_any_alignment() {
    #[derive(Clone, PartialEq, Debug)]
    #[repr(align(8))]
    struct Aligned([u8; 48]);
    let mut guest = guest(HINTS);
    let platform = guest.stage2.platform();
    let run = guest.pool.run(1);
    let from = Aligned(core::array::from_fn(|at| at as u8));
    for (lead, length) in (0..8).flat_map(|lead| [8, 16, 40].map(|length| (lead, length))) {
        let place = lead..lead + length;
        run.write(platform, 0, &[0xee; 64]);
        run.write(platform, 8, &from.0[place.clone()]);
        let mut to = Aligned([0xdd; 48]);
        run.read(platform, 8, &mut to.0[place.clone()]);
        let mut expected = Aligned([0xdd; 48]);
        expected.0[place.clone()].copy_from_slice(&from.0[place]);
        assert_eq!(to, expected, "{length} bytes, {lead} after a multiple of 8");
        let mut beside = [0; 64];
        run.read(platform, 0, &mut beside);
        let (before, after) = (&beside[..8], &beside[8 + length..]);
        assert!(before.iter().chain(after).all(|byte| *byte == 0xee), "{length} bytes, {lead} after a multiple of 8");
    }
}

/// A copy is equal to what was copied, and nothing beside it changes.
#[test]
fn memory_is_copied() {
    let mut guest = guest(HINTS);
    let platform = guest.stage2.platform();
    let (from, to) = (guest.pool.run(2), guest.pool.run(2));
    let written: Vec<u8> = (0..=250).cycle().take(2 * KIB_4 as usize).collect();
    from.write(platform, 0, &written);
    for (first, offset, size) in [(0, 0, 2 * KIB_4), (KIB_4, 0, KIB_4), (64, 4032, 128), (8128, 8128, 64), (0, 64, 0)] {
        to.write(platform, 0, &[0xee; 2 * KIB_4 as usize]);
        to.copy(platform, offset, (&from, first), size);
        let mut expected = vec![0xee; 2 * KIB_4 as usize];
        expected[offset as usize..][..size as usize].copy_from_slice(&written[first as usize..][..size as usize]);
        let mut bytes = vec![0; expected.len()];
        to.read(platform, 0, &mut bytes);
        assert!(bytes == expected, "{size} bytes from {first} to {offset}");
    }
    for (first, offset, size) in [(8, 0, 64), (0, 8, 64), (0, 0, 8), (KIB_4, 0, 2 * KIB_4), (0, 64, 2 * KIB_4)] {
        let copy = std::panic::AssertUnwindSafe(|| to.copy(platform, offset, (&from, first), size));
        assert!(std::panic::catch_unwind(copy).is_err(), "{size} bytes from {first} to {offset}");
    }
}

/// The pages that are asked for are zeroed, and no others. A page that the run does not have is refused.
#[test]
fn pages_of_a_run_are_zeroed() {
    for features in [HINTS, HINTS.with_zero_block(512)] {
        let mut guest = guest(features);
        let platform = guest.stage2.platform();
        let run = guest.pool.run(4);
        let zeroed = |zero: &dyn Fn(&Run)| {
            run.write(platform, 0, &[0xee; 4 * KIB_4 as usize]);
            zero(&run);
            let mut bytes = vec![0; 4 * KIB_4 as usize];
            run.read(platform, 0, &mut bytes);
            zero_pages_in(&bytes)
        };
        assert_eq!(zeroed(&|run| run.zero_page(platform, &features, KIB_4)), [false, true, false, false]);
        assert_eq!(zeroed(&|run| run.zero_page(platform, &features, 3 * KIB_4)), [false, false, false, true]);
        assert_eq!(zeroed(&|run| run.zero_pages(platform, &features, KIB_4, 2 * KIB_4)), [false, true, true, false]);
        assert_eq!(zeroed(&|run| run.zero_pages(platform, &features, 0, 4 * KIB_4)), [true; 4]);
        assert_eq!(zeroed(&|run| run.zero_pages(platform, &features, 4 * KIB_4, 0)), [false; 4]);
        assert_eq!(zeroed(&|run| run.zero(platform, &features)), [true; 4]);
        let refused = |zero: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(zero)).is_err();
        for offset in [64, KIB_4 - 1, 4 * KIB_4, u64::MAX] {
            assert!(refused(&|| run.zero_page(platform, &features, offset)), "the page at {offset:#x}");
        }
        let last = KIB_4.wrapping_neg();
        for (offset, size) in [(64, KIB_4), (0, 64), (0, 5 * KIB_4), (4 * KIB_4, KIB_4), (last, 2 * KIB_4)] {
            let zero = || run.zero_pages(platform, &features, offset, size);
            assert!(refused(&zero), "{size:#x} bytes at {offset:#x}");
        }
    }
}

/// One bit anywhere makes a run not zero.
#[test]
fn memory_is_searched_for_zeroes() {
    let mut guest = guest(HINTS);
    let platform = guest.stage2.platform();
    let run = guest.pool.run(2);
    run.zero(platform, &HINTS);
    assert!(run.is_zero(platform));
    for at in (0..2 * KIB_4).step_by(61).chain([2 * KIB_4 - 1]) {
        run.write(platform, at, &[1 << (at % 8)]);
        assert!(!run.is_zero(platform), "a bit at {at}");
        run.write(platform, at, &[0]);
    }
    assert!(run.is_zero(platform));
}
