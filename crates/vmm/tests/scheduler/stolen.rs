// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests stolen time to the tick, against a naive model: an entity can run from its wake-up until it is blocked; in each
//! tick of that time in which no CPU has it, a tick is stolen.

use proptest::prelude::*;
use twofold_vmm::scheduler::{EntityId, Scheduler};

use crate::machine::{SLICE, weight};

/// A call of the scheduler, on a CPU or for an entity. Numbers too large wrap around.
#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    Wake(usize),
    Block(usize),
    Pick(usize),
    Charge(usize),
    Spinning(usize),
    YieldTo(usize, usize),
    SetWeight(usize, u32),
    /// The time of the next calls is earlier by this, as of a CPU that was overtaken.
    Late(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..2 * SLICE).prop_map(Event::Pass),
        6 => (0_usize..8).prop_map(Event::Wake),
        4 => (0_usize..4).prop_map(Event::Block),
        8 => (0_usize..4).prop_map(Event::Pick),
        1 => (0_usize..4).prop_map(Event::Charge),
        2 => (0_usize..4).prop_map(Event::Spinning),
        2 => ((0_usize..4), (0_usize..8)).prop_map(|(cpu, target)| Event::YieldTo(cpu, target)),
        1 => ((0_usize..8), (1_u32..1024)).prop_map(|(entity, weight)| Event::SetWeight(entity, weight)),
        1 => (0..SLICE).prop_map(Event::Late),
    ]
}

/// What an entity does, as the calls and their results say.
#[derive(Clone, Copy, Debug, Default)]
struct Naive {
    can_run: bool,
    /// A wake-up that the next `block` finds.
    is_woken: bool,
    stolen: u64,
    ran: u64,
    idle: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_tick_is_stolen_in_which_an_entity_can_run_and_has_no_cpu(
        cpus in 1_usize..=4,
        groups in prop::collection::vec(1_usize..=3, 1..=4),
        events in prop::collection::vec(event(), 0..300),
    ) {
        let mut scheduler = Scheduler::new(cpus, SLICE);
        let mut entities: Vec<EntityId> = Vec::new();
        let mut groups_of = Vec::new();
        for members in groups {
            let group = scheduler.add_group(weight(64));
            groups_of.extend((0..members).map(|_| group));
            entities.extend((0..members).map(|_| scheduler.add(group)));
        }
        let place = |entity: EntityId| entities.iter().position(|other| *other == entity).unwrap();
        let mut runs: Vec<Option<usize>> = (0..cpus).map(|cpu| scheduler.pick(cpu, 0).run.map(place)).collect();
        let mut naive = vec![Naive::default(); entities.len()];
        let (mut now, mut late) = (0, 0);
        for event in events {
            // A call that is overtaken has the latest time.
            let time = now - std::mem::take(&mut late).min(now);
            match event {
                Event::Pass(ticks) => {
                    for (entity, naive) in naive.iter_mut().enumerate() {
                        match (naive.can_run, runs.contains(&Some(entity))) {
                            (true, true) => naive.ran += ticks,
                            (true, false) => naive.stolen += ticks,
                            (false, _) => naive.idle += ticks,
                        }
                    }
                    now += ticks;
                    // The scheduler learns the time from calls alone.
                    scheduler.charge(0, now);
                }
                Event::Wake(entity) => {
                    let entity = entity % entities.len();
                    naive[entity].is_woken = naive[entity].can_run;
                    naive[entity].can_run = true;
                    let _ = scheduler.wake(entities[entity], time);
                }
                Event::Block(cpu) => {
                    let cpu = cpu % cpus;
                    let blocked = scheduler.block(cpu, time);
                    if let Some(entity) = runs[cpu] {
                        prop_assert_eq!(blocked, !std::mem::take(&mut naive[entity].is_woken));
                        naive[entity].can_run = !blocked;
                        if blocked {
                            runs[cpu] = None;
                        }
                    }
                    runs[cpu] = scheduler.pick(cpu, time).run.map(place);
                }
                Event::Pick(cpu) => runs[cpu % cpus] = scheduler.pick(cpu % cpus, time).run.map(place),
                Event::Charge(cpu) => scheduler.charge(cpu % cpus, time),
                Event::Spinning(cpu) => {
                    if let Some(decision) = scheduler.spinning(cpu % cpus, time) {
                        runs[cpu % cpus] = decision.run.map(place);
                    }
                }
                Event::YieldTo(cpu, target) => {
                    let target = entities[target % entities.len()];
                    if let Some(decision) = scheduler.yield_to(cpu % cpus, target, time) {
                        runs[cpu % cpus] = decision.run.map(place);
                    }
                }
                Event::SetWeight(entity, to) => {
                    scheduler.set_weight(groups_of[entity % entities.len()], weight(to), time);
                }
                Event::Late(by) => late = by,
            }
            for (entity, naive) in entities.iter().zip(&naive) {
                prop_assert_eq!(scheduler.stolen(*entity, now), naive.stolen);
                prop_assert_eq!(scheduler.ran(*entity, now), naive.ran);
                prop_assert_eq!(naive.ran + naive.stolen + naive.idle, now);
            }
        }
    }
}
