// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that entities get their shares.

use crate::machine::{Machine, Program, SLICE, weight};

const MINUTE: u64 = 60_000_000;

/// The share of each in what all ran, in thousandths.
fn shares(machine: &Machine) -> Vec<f64> {
    let all: u64 = machine.entities.iter().map(|entity| entity.ran).sum();
    machine.entities.iter().map(|entity| 1000.0 * entity.ran as f64 / all as f64).collect()
}

fn assert_near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= expected / 100.0, "{what}: {found} instead of {expected}");
}

#[test]
fn three_spinners_get_one_one_and_two_parts() {
    for scale in [1, 64, 256] {
        let mut machine = Machine::new(1, 1);
        machine.add_each([1, 1, 2].map(|part| (part * scale, Program::Spin)));
        machine.run(MINUTE);
        for (found, expected) in shares(&machine).into_iter().zip([250.0, 250.0, 500.0]) {
            assert_near(found, expected, "share");
        }
    }
}

#[test]
fn several_cpus_are_shared_as_one() {
    // Three equal spinners on two CPUs have two thirds each; and a weight can ask for more than a CPU.
    for (cpus, weights, expected) in [
        (2, vec![1, 1, 1], vec![333.3, 333.3, 333.3]),
        (2, vec![2, 1, 1], vec![500.0, 250.0, 250.0]),
        (2, vec![100, 1, 1], vec![500.0, 250.0, 250.0]),
        (2, vec![1000, 1, 3], vec![500.0, 125.0, 375.0]),
        (3, vec![4, 2, 1, 1], vec![333.3, 333.3, 166.7, 166.7]),
        (4, vec![1; 7], vec![142.9; 7]),
    ] {
        let mut machine = Machine::new(cpus, 1);
        machine.add_each(weights.iter().map(|weight| (*weight, Program::Spin)));
        machine.run(MINUTE);
        for (found, expected) in shares(&machine).into_iter().zip(expected) {
            assert_near(found, expected, &format!("{weights:?} on {cpus} CPUs"));
        }
    }
}

/// A guest with four vCPUs gets as much as one with a single vCPU of the same weight.
#[test]
fn a_guest_gets_no_more_for_more_vcpus() {
    let mut machine = Machine::new(1, 1);
    let (one, four) = (machine.scheduler.add_group(weight(64)), machine.scheduler.add_group(weight(64)));
    machine.add(one, Program::Spin);
    (0..4).for_each(|_| _ = machine.add(four, Program::Spin));
    machine.run(MINUTE);
    let found = shares(&machine);
    assert_near(found[0], 500.0, "the guest with one vCPU");
    found[1..].iter().for_each(|share| assert_near(*share, 125.0, "each of four vCPUs"));
}

#[test]
fn tasks_of_the_hypervisor_get_their_share_while_every_vcpu_spins() {
    for cpus in 1..=4 {
        let mut machine = Machine::new(cpus, 1);
        for _ in 0..2 {
            let guest = machine.scheduler.add_group(weight(100));
            (0..4).for_each(|_| _ = machine.add(guest, Program::Spin));
        }
        // Two tasks with a quarter and half of a guest's weight: of 275 parts, 25 and 50.
        machine.add_each([(25, Program::Spin), (50, Program::Spin)]);
        machine.run(MINUTE);
        let found = shares(&machine);
        assert_near(found[8], 1000.0 * 25.0 / 275.0, "a task");
        assert_near(found[9], 1000.0 * 50.0 / 275.0_f64, "the other task");
    }
}

/// Time that was used while no other entity waited is not owed.
#[test]
fn time_alone_on_a_cpu_is_free() {
    let mut machine = Machine::new(1, 1);
    machine.add_each([(64, Program::Spin)]);
    machine.run(10 * MINUTE);
    let alone = machine.entities[0].ran;
    machine.add_each([(64, Program::Spin)]);
    machine.run(11 * MINUTE);
    assert_near((machine.entities[0].ran - alone) as f64, MINUTE as f64 / 2.0, "the first");
    assert_near(machine.entities[1].ran as f64, MINUTE as f64 / 2.0, "the second");
}

/// What entities slept through, or were not there for, is no credit.
#[test]
fn late_ones_get_their_share_from_then_on() {
    let mut machine = Machine::new(1, 1);
    machine.add_each([(64, Program::Spin), (64, Program::Spin)]);
    machine.run(MINUTE);
    machine.add_each([(64, Program::Spin), (64, Program::Spin)]);
    machine.run(MINUTE + MINUTE / 10);
    machine.entities[2..].iter().for_each(|late| assert_near(late.ran as f64, MINUTE as f64 / 40.0, "a late one"));
}

/// An entity that had a CPU to itself for a minute, and then has to share, starves no other.
#[test]
fn a_heavy_entity_hoards_nothing() {
    let mut machine = Machine::new(2, 1);
    machine.add_each([(1000, Program::Spin), (1, Program::Spin), (1, Program::Spin)]);
    machine.run(MINUTE);
    let before: Vec<_> = machine.entities.iter().map(|entity| entity.ran).chain([0; 2]).collect();
    machine.add_each([(1000, Program::Spin), (1000, Program::Spin)]);
    machine.run(2 * MINUTE);
    for ((entity, before), weight) in machine.entities.iter().zip(before).zip([1000.0, 1.0, 1.0, 1000.0, 1000.0]) {
        let (ran, expected) = ((entity.ran - before) as f64, weight * 2.0 * MINUTE as f64 / 3002.0);
        assert!((ran - expected).abs() < expected / 100.0 + 3.0 * SLICE as f64, "{ran} instead of {expected}");
    }
}

/// Weights that change count from then on.
#[test]
fn a_weight_can_change() {
    let mut machine = Machine::new(1, 1);
    let groups = [64, 64].map(|of| machine.scheduler.add_group(weight(of)));
    groups.iter().for_each(|group| _ = machine.add(*group, Program::Spin));
    machine.run(MINUTE);
    let before = machine.entities[0].ran;
    machine.scheduler.set_weight(groups[0], weight(192), MINUTE);
    machine.run(2 * MINUTE);
    assert_near((machine.entities[0].ran - before) as f64, 0.75 * MINUTE as f64, "the heavier");
}

/// Each spinner's part of the CPUs: in proportion to its weight, but a CPU at most.
fn water_filling(cpus: usize, weights: &[f64]) -> Vec<f64> {
    let mut parts = vec![0.0; weights.len()];
    loop {
        let full = parts.iter().filter(|part| **part == 1.0).count();
        let rest: f64 = weights.iter().zip(&parts).filter(|(_, part)| **part < 1.0).map(|(weight, _)| weight).sum();
        let before = parts.clone();
        for (part, weight) in parts.iter_mut().zip(weights).filter(|(part, _)| **part < 1.0) {
            *part = f64::min(1.0, (cpus - full) as f64 * weight / rest);
        }
        if parts == before {
            return parts;
        }
    }
}

#[test]
fn spinners_of_any_weights_get_what_water_filling_gives_them() {
    for seed in 0..60_u64 {
        let cpus = 1 + seed as usize % 4;
        let mut machine = Machine::new(cpus, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = 1 + machine.random() % 10;
        let range = [4, 100, 1000][machine.random() as usize % 3];
        let weights: Vec<_> = (0..count).map(|_| 1 + machine.random() as u32 % range).collect();
        machine.add_each(weights.iter().map(|weight| (*weight, Program::Spin)));
        machine.run(MINUTE / 2);
        let weights: Vec<_> = weights.into_iter().map(f64::from).collect();
        for (entity, part) in machine.entities.iter().zip(water_filling(cpus, &weights)) {
            let (ran, expected) = (entity.ran as f64, part * (MINUTE / 2) as f64);
            let off = (ran - expected).abs();
            assert!(off <= expected / 100.0 + 2.0 * SLICE as f64, "seed {seed}: {entity:?} of {weights:?}: {expected}");
        }
    }
}

/// Random mixes of sleepers and spinners on 1 to 4 CPUs, where no weight asks for more than a CPU: what a spinner ran,
/// divided by its weight, is behind no other's by more than three slices of both.
#[test]
fn random_mixes_are_fair() {
    for seed in 0..60_u64 {
        let cpus = 1 + seed % 4;
        let mut machine = Machine::new(cpus as usize, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (spinners, sleepers) = (3 * cpus + machine.random() % 6, machine.random() % 8);
        let mut weights = Vec::new();
        for number in 0..spinners + sleepers {
            let most = [100, 5_000, 50_000][machine.random() as usize % 3];
            let spins = number < spinners;
            let of_weight = 10 + machine.random() as u32 % 20;
            let program = if spins { Program::Spin } else { Program::Sleep([1, most], [1, 3 * most]) };
            machine.add_each([(of_weight, program)]);
            weights.push(f64::from(of_weight));
        }
        const TIME: u64 = 4_000_000;
        machine.run(TIME);
        let all: u64 = machine.entities.iter().map(|entity| entity.ran).sum();
        assert_eq!(all, TIME * cpus, "seed {seed}: a CPU was idle, although an entity waited");
        let slice = SLICE as f64;
        for (one, weight) in machine.entities.iter().zip(&weights).take(spinners as usize) {
            for (other, others) in machine.entities.iter().zip(&weights) {
                let ahead = other.ran as f64 / others - one.ran as f64 / weight;
                let bound = 3.0 * slice / others + 3.0 * slice / weight;
                assert!(ahead <= bound, "seed {seed}: {other:?} of {others} is ahead of {one:?} of {weight}: {ahead}");
            }
        }
    }
}

/// A spinner whose weight asks for a CPU even if every other entity spins has one, whatever sleepers do.
#[test]
fn light_entities_do_not_interrupt_a_heavy_one() {
    let (mut heavy, mut least) = (0, 1.0_f64);
    for seed in 0..80_u64 {
        let cpus = 2 + seed as usize % 3;
        let mut machine = Machine::new(cpus, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (spinners, sleepers) = (cpus + machine.random() as usize % 5, machine.random() as usize % 8);
        let range = |machine: &mut Machine| [4, 100][machine.random() as usize % 2];
        let weights: Vec<_> =
            (0..spinners + sleepers).map(|_| 1 + machine.random() as u32 % range(&mut machine)).collect();
        for (number, weight) in weights.iter().enumerate() {
            let most = [100, 5_000, 50_000][machine.random() as usize % 3];
            let program = if number < spinners { Program::Spin } else { Program::Sleep([1, most], [1, 3 * most]) };
            machine.add_each([(*weight, program)]);
        }
        machine.run(MINUTE / 30);
        let weights: Vec<_> = weights.into_iter().map(f64::from).collect();
        for place in 0..spinners {
            // Not one that is heavy by a hair.
            let mut lighter = weights.clone();
            lighter[place] *= 0.8;
            if water_filling(cpus, &lighter)[place] < 1.0 {
                continue;
            }
            let entity = &machine.entities[place];
            heavy += 1;
            let part = entity.ran as f64 / (MINUTE / 30) as f64;
            least = least.min(part);
            assert!(part > 0.98, "seed {seed}: {part} of a CPU: {entity:?}");
        }
    }
    println!("{heavy} heavy entities had {least} of a CPU at least");
    assert!(heavy > 25);
}
