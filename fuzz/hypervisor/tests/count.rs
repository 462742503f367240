// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a counter that a guest may have changed: an impossible count is refused.

use twofold_fuzz_hypervisor::count::counted;

const NARROW: u64 = u32::MAX as u64;
const WIDE: u64 = u64::MAX;

#[test]
fn what_was_executed_is_counted() {
    for mask in [NARROW, WIDE] {
        assert_eq!(counted(0, 1, mask), Ok(1));
        assert_eq!(counted(7, 500, mask), Ok(493));
        // The counter wraps around.
        assert_eq!(counted(mask - 1, 48, mask), Ok(50));
        assert_eq!(counted(5, 5 + mask / 2, mask), Ok(mask / 2));
    }
}

#[test]
fn a_counter_that_stands_still_is_refused() {
    for mask in [NARROW, WIDE] {
        assert!(counted(500, 500, mask).is_err());
    }
    let words = counted(500, 500, WIDE).unwrap_err().to_string();
    assert!(words.contains("from 500 to 500"), "{words}");
}

#[test]
fn a_counter_that_goes_back_is_refused() {
    for mask in [NARROW, WIDE] {
        assert!(counted(500, 499, mask).is_err());
        assert!(counted(500, 0, mask).is_err());
        assert!(counted(0, mask / 2 + 1, mask).is_err(), "half a period is ambiguous");
    }
}
