// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that refused calls cannot fill the control channel.

use std::fmt;

use twofold_vmm::refusals::{LISTED, Refusals};

fn lines(refusals: u64) -> Vec<String> {
    let all = Refusals::default();
    let mut lines = Vec::new();
    let mut log = |line: fmt::Arguments| lines.push(line.to_string());
    (0..refusals).for_each(|number| all.add(format_args!("call {number}"), &mut log));
    all.report(&mut log);
    lines
}

fn listed(refusals: u64) -> Vec<String> {
    (0..refusals).map(|number| format!("call {number}")).collect()
}

#[test]
fn the_first_ones_are_listed() {
    assert!(lines(0).is_empty());
    assert_eq!(lines(LISTED), listed(LISTED));
}

#[test]
fn the_others_are_counted_in_one_line() {
    for more in [1, 1_000_000] {
        let expected = format!("{more} more calls of the guest were refused; their reasons are not listed");
        assert_eq!(lines(LISTED + more), [listed(LISTED), vec![expected]].concat());
    }
}
