// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that refused calls cannot fill the control channel.

use twofold_fuzz_hypervisor::refusals::{LISTED, Refusals};
use twofold_fuzz_hypervisor::{Done, done};

fn lines(refusals: u64) -> Vec<Done> {
    let all = Refusals::default();
    (0..refusals).for_each(|number| all.add(format_args!("call {number}")));
    all.report();
    done()
}

fn listed(refusals: u64) -> Vec<Done> {
    (0..refusals).map(|number| Done::Log(format!("call {number}"))).collect()
}

#[test]
fn the_first_ones_are_listed() {
    assert_eq!(lines(0), []);
    assert_eq!(lines(LISTED), listed(LISTED));
}

#[test]
fn the_others_are_counted_in_one_line() {
    for more in [1, 1_000_000] {
        let expected = format!("{more} more calls of the guest were refused; their reasons are not listed");
        assert_eq!(lines(LISTED + more), [listed(LISTED), vec![Done::Log(expected)]].concat());
    }
}
