// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests how long an entity waits: at most the stated bound, hardly at all after it woke, and as much as is reported as
//! stolen.

use crate::machine::{Machine, Program, SLICE, weight};

const SECOND: u64 = 1_000_000;

/// No entity waits longer than the bound of the module's page, whatever the others do.
#[test]
fn nobody_waits_longer_than_the_bound() {
    for seed in 0..80_u64 {
        let cpus = 1 + seed as usize % 4;
        let mut machine = Machine::new(cpus, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = 2 + machine.random() % 12;
        let mut weights = Vec::new();
        for _ in 0..count {
            let of_weight = 1 + machine.random() as u32 % [3, 64][machine.random() as usize % 2];
            let most = [100, 5_000, 50_000][machine.random() as usize % 3];
            let program = match machine.random() % 2 {
                0 => Program::Spin,
                _ => Program::Sleep([1, most], [1, most]),
            };
            machine.add_each([(of_weight, program)]);
            weights.push(f64::from(of_weight));
        }
        machine.run(3 * SECOND);
        let slice = SLICE as f64;
        for (place, (entity, weight)) in machine.entities.iter().zip(&weights).enumerate() {
            let others = weights.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, other)| other);
            let least = others.clone().copied().fold(f64::MAX, f64::min);
            let running = if cpus == 1 { 0.0 } else { 1.25 / least };
            let sum: f64 = others.map(|other| 1.25 * other / weight + running * other + 1.75).sum();
            let bound = slice + slice / cpus as f64 * sum;
            assert!(entity.longest_wait as f64 <= bound, "seed {seed}: more than {bound}: {entity:?} of {weight}");
        }
    }
}

/// One that runs a little, and sleeps in between, gets a CPU at once when it wakes, although all are busy.
#[test]
fn a_sleeper_that_uses_little_interrupts_spinners() {
    for cpus in 1..=4 {
        let mut machine = Machine::new(cpus, 7);
        machine.add_each((0..2 * cpus).map(|_| (64, Program::Spin)));
        machine.run(SECOND);
        machine.add_each([(64, Program::Sleep([50, 200], [3_000, 9_000]))]);
        machine.run(20 * SECOND);
        let sleeper = machine.entities.last().unwrap();
        assert!(sleeper.ran > SECOND / 10 && sleeper.longest_after_waking == 0, "{sleeper:?}");
    }
}

/// One that runs as long as a spinner between its sleeps gains nothing by them.
#[test]
fn sleeping_often_is_no_way_to_more() {
    let mut machine = Machine::new(1, 7);
    machine.add_each([(64, Program::Spin), (64, Program::Sleep([2_900, 2_900], [1, 1]))]);
    machine.run(60 * SECOND);
    let [spinner, sleeper] = &machine.entities[..] else { unreachable!() };
    assert!(sleeper.ran <= spinner.ran + 2 * SLICE, "{sleeper:?} beside {spinner:?}");
}

/// What the machine saw an entity wait for a CPU is stolen time; what it slept is not.
#[test]
fn stolen_time_is_the_wait_for_a_cpu() {
    let mut machine = Machine::new(2, 7);
    machine.add_each([(64, Program::Spin), (64, Program::Spin), (32, Program::Spin)]);
    machine.add_each([(64, Program::Sleep([50, 9_000], [50, 9_000]))]);
    machine.run(20 * SECOND);
    for entity in &machine.entities {
        let (stolen, ran) =
            (machine.scheduler.stolen(entity.id, 20 * SECOND), machine.scheduler.ran(entity.id, 20 * SECOND));
        assert_eq!(ran, entity.ran);
        // The machine adds a wait when it ends.
        assert!(stolen >= entity.waited && stolen - entity.waited < 10 * SLICE, "{stolen}: {entity:?}");
    }
    let mut alone = Machine::new(1, 7);
    alone.add_each([(64, Program::Sleep([50, 9_000], [50, 9_000]))]);
    alone.run(20 * SECOND);
    assert_eq!(alone.scheduler.stolen(alone.entities[0].id, 20 * SECOND), 0);
}

/// As many spinners as CPUs never move, and a sleeper among them hardly makes them.
#[test]
fn an_entity_stays_on_its_cpu() {
    let mut machine = Machine::new(4, 7);
    machine.add_each((0..4).map(|_| (64, Program::Spin)));
    machine.run(20 * SECOND);
    assert!(machine.entities.iter().all(|entity| entity.moves == 1), "{:?}", machine.entities);
    // More entities than CPUs, which begin and sleep at different times: most slices are where the last one was.
    for seed in 0..4 {
        let mut machine = Machine::new(3, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        for _ in 0..6 {
            let now = machine.now + 1 + machine.random() % 2_000;
            machine.run(now);
            machine.add_each([(64, Program::Spin)]);
        }
        machine.add_each([(64, Program::Sleep([1, 1_000], [1, 20_000]))]);
        machine.run(20 * SECOND);
        let moves: u64 = machine.entities.iter().map(|entity| entity.moves).sum();
        let turns: u64 = machine.entities.iter().map(|entity| entity.turns).sum();
        println!("{moves} moves in {turns} turns");
        assert!(moves * 7 < turns, "{moves} moves in {turns} turns");
    }
}

/// While no other entity can run, no CPU is interrupted for a slice.
#[test]
fn an_entity_alone_has_no_limit() {
    let mut scheduler = twofold_vmm::scheduler::Scheduler::new(1, SLICE);
    assert_eq!(scheduler.pick(0, 0).run, None);
    let group = scheduler.add_group(weight(64));
    let [first, second] = [(); 2].map(|()| scheduler.add(group));
    assert_eq!(scheduler.wake(first, 10).0, 1);
    let decision = scheduler.pick(0, 20);
    assert_eq!((decision.run, decision.until), (Some(first), u64::MAX));
    assert_eq!(scheduler.wake(first, 30).0, 0);
    // The second one makes the CPU set a time.
    assert_eq!(scheduler.wake(second, 5_000).0, 1);
    let decision = scheduler.pick(0, 5_000);
    assert!(decision.run.is_some() && decision.until <= 5_000 + SLICE, "{decision:?}");
    assert!(!scheduler.remove(first), "it can run");
}

/// Otherwise a CPU would set a time that has passed.
#[test]
fn a_slice_is_a_tick_at_least() {
    for (slice, length) in [(0, 1), (1, 1), (2, 2)] {
        let mut scheduler = twofold_vmm::scheduler::Scheduler::new(1, slice);
        assert_eq!(scheduler.pick(0, 0).run, None);
        let group = scheduler.add_group(weight(64));
        for _ in 0..2 {
            let entity = scheduler.add(group);
            assert!(scheduler.wake(entity, 10).0 <= 1);
        }
        assert_eq!(scheduler.pick(0, 10).until, 10 + length, "{slice}");
    }
}

/// One that wakes takes the CPU of the entity that has run furthest ahead, not the CPU where it ran itself.
#[test]
fn the_entity_that_is_furthest_ahead_is_interrupted() {
    let mut scheduler = twofold_vmm::scheduler::Scheduler::new(2, SLICE);
    for cpu in 0..2 {
        assert_eq!(scheduler.pick(cpu, 0).run, None);
    }
    // In the order of their numbers they are at home on CPU 0 and 1 in turn.
    let [sleeper, light, heavy, waiting] = [64, 1, 1024, 1].map(|of| {
        let group = scheduler.add_group(weight(of));
        scheduler.add(group)
    });
    for (cpu, entity) in [heavy, light].into_iter().enumerate() {
        assert_eq!(scheduler.wake(entity, 0).0, 1 << cpu);
        assert_eq!(scheduler.pick(cpu, 0).run, Some(entity));
    }
    assert_eq!(scheduler.wake(waiting, 0).0, 3, "both CPUs set a time");
    assert_eq!((scheduler.pick(0, 0).run, scheduler.pick(1, 0).run), (Some(heavy), Some(light)));
    assert_eq!(scheduler.wake(sleeper, SLICE - 1).0, 2, "the CPU of the light one");
    assert_eq!(scheduler.pick(1, SLICE - 1).run, Some(sleeper));
    // A slice that is not over is not cut short for a hair.
    assert_eq!(scheduler.pick(0, SLICE - 1).run, Some(heavy));
}
