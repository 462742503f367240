// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the call that blocks an entity and chooses the next one at once. The machine of [`crate::machine`] compares it
//! with the two calls that it stands for, whenever an entity blocks; these tests see to it that both cases occur.

use crate::machine::{Machine, Program, weight};

const SECOND: u64 = 1_000_000;

/// Sleepers of two groups, and a spinner if `spins`. Returns how often an entity blocked and another one followed by one
/// call.
fn followed(cpus: usize, seed: u64, spins: bool) -> u64 {
    let mut machine = Machine::new(cpus, seed);
    let groups = [machine.scheduler.add_group(weight(64)), machine.scheduler.add_group(weight(100))];
    for number in 0..2 * cpus {
        machine.add(groups[number / 2 % 2], Program::Sleep([50, 500], [20, 1500]));
    }
    if spins {
        machine.add(groups[0], Program::Spin);
    }
    machine.run(5 * SECOND);
    machine.followed
}

#[test]
fn one_call_does_what_block_and_pick_do() {
    for cpus in 1..=3 {
        for seed in 1..=4 {
            for spins in [false, true] {
                let count = followed(cpus, seed, spins);
                assert!(count > 50, "{cpus} CPUs, seed {seed}, spinner {spins}: it happened {count} times");
            }
        }
    }
}
