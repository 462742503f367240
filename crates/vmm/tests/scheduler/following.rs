// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the calls that stand for two: to block and to choose, to block and to have nothing to do, and to wake and to
//! choose. The machine of [`crate::machine`] compares them with the calls that they stand for, whenever an entity blocks or
//! wakes; these tests see to it that all cases occur.

use crate::machine::{Machine, Program, weight};

const SECOND: u64 = 1_000_000;

/// Sleepers of two groups, and a spinner if `spins`.
fn machine(cpus: usize, seed: u64, spins: bool) -> Machine {
    let mut machine = Machine::new(cpus, seed);
    let groups = [machine.scheduler.add_group(weight(64)), machine.scheduler.add_group(weight(100))];
    for number in 0..2 * cpus {
        machine.add(groups[number / 2 % 2], Program::Sleep([50, 500], [20, 1500]));
    }
    if spins {
        machine.add(groups[0], Program::Spin);
    }
    machine.run(5 * SECOND);
    machine
}

#[test]
fn one_call_does_what_block_and_pick_do() {
    for cpus in 1..=3 {
        for seed in 1..=4 {
            for spins in [false, true] {
                let count = machine(cpus, seed, spins).followed;
                assert!(count > 50, "{cpus} CPUs, seed {seed}, spinner {spins}: it happened {count} times");
            }
        }
    }
}

#[test]
fn one_call_rests_and_one_resumes() {
    for cpus in 1..=3 {
        for seed in 1..=4 {
            let Machine { rested, resumed, .. } = machine(cpus, seed, false);
            assert!(rested > 50 && resumed > 50, "{cpus} CPUs, seed {seed}: {rested} and {resumed} times");
        }
    }
}
