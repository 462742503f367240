// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Simulated guests and a simulated store in random orders. No token is lost, none is delivered twice, every task that
//! sleeps wakes, and no vCPU repeats an access before anything has happened.
//!
//! 400 cases, or `PROPTEST_CASES`. A failure prints its smallest case and the seed; `PROPTEST_RNG_SEED` repeats it.

mod guest;
mod world;

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use twofold_memory::async_fault::Mode;

use guest::{Kind, Task};
use world::{Event, Seen, World};

const PAGES: u64 = 90;

#[derive(Clone, Debug)]
struct Case {
    mode: Mode,
    kernel: bool,
    tasks: [Vec<Task>; 2],
    events: Vec<Event>,
}

fn any_task() -> impl Strategy<Value = Task> {
    let kind = prop_oneof![6 => Just(Kind::User), 2 => Just(Kind::Kernel), 1 => Just(Kind::Masked)];
    vec((0..PAGES, kind), 1..8).prop_map(|accesses| Task { accesses, done: 0, parked: None })
}

fn any_event() -> impl Strategy<Value = Event> {
    let (vcpu, which) = (0..2_usize, any::<usize>());
    prop_oneof![
        20 => (vcpu.clone(), 1..40_u8).prop_map(|(vcpu, steps)| Event::Run { vcpu, steps }),
        12 => which.prop_map(|which| Event::Complete { which }),
        2 => which.prop_map(|which| Event::Fail { which }),
        3 => which.prop_map(|which| Event::CompleteAgain { which }),
        2 => Just(Event::AnswerAtOnce),
        3 => Just(Event::Mend),
        3 => (0..PAGES).prop_map(|page| Event::Evict { page }),
        2 => vcpu.clone().prop_map(|vcpu| Event::EvictArea { vcpu }),
        1 => vcpu.clone().prop_map(|vcpu| Event::ReplaceSlot { vcpu }),
        8 => (vcpu.clone(), any::<bool>(), option::of(0..PAGES))
            .prop_map(|(vcpu, first, page)| Event::Timer { vcpu, first, page }),
        1 => vcpu.clone().prop_map(|vcpu| Event::Restart { vcpu }),
        1 => vcpu.prop_map(|vcpu| Event::Reset { vcpu }),
        1 => Just(Event::Migrate),
    ]
}

fn any_case() -> impl Strategy<Value = Case> {
    let mode = prop_oneof![1 => Just(Mode::Off), 2 => Just(Mode::Halt), 9 => Just(Mode::Pv)];
    // More tasks than tokens, at times.
    let tasks = || prop_oneof![4 => vec(any_task(), 1..6), 1 => vec(any_task(), 66..80)];
    (mode, any::<bool>(), [tasks(), tasks()], vec(any_event(), 0..160)).prop_map(|(mode, kernel, tasks, events)| Case {
        mode,
        kernel,
        tasks,
        events,
    })
}

fn run(case: &Case) -> Seen {
    let mut world = World::new(case.mode, case.kernel, case.tasks.clone());
    case.events.iter().for_each(|event| world.happen(*event));
    world.drain();
    world.seen
}

/// Task 1 faults, and the timer comes with the announcement and is taken first. It switches to task 0, which makes an
/// access of this kind at the same PC. The PPI interrupts task 0. Returns the tasks that sleep then.
fn timer_first(kind: Kind) -> (Vec<usize>, Seen) {
    let task = |page, kind| Task { accesses: vec![(page, kind)], done: 0, parked: None };
    let mut world = World::new(Mode::Pv, false, [vec![task(1, kind), task(0, Kind::User)], vec![]]);
    world.happen(Event::Run { vcpu: 0, steps: 3 });
    assert_eq!(world.seen.announced, 1);
    world.happen(Event::Timer { vcpu: 0, first: true, page: None });
    // The exit for the timer, the timer, the switch; the PPI, its announcement.
    world.happen(Event::Run { vcpu: 0, steps: 5 });
    let asleep = world.asleep(0);
    world.drain();
    (asleep, world.seen)
}

#[test]
fn another_interrupt_first_parks_no_task_for_ever() {
    let (asleep, seen) = timer_first(Kind::Kernel);
    assert_eq!((asleep, seen.parked, seen.declined), (vec![], 0, 1), "the level differs: declined");
    let (asleep, seen) = timer_first(Kind::User);
    assert_eq!((asleep, seen.declined), (vec![0], 0), "the wrong task, which sleeps and wakes");
}

#[test]
fn no_token_is_lost_in_any_order() {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 400 };
    let seed = match ProptestConfig::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    let total = Cell::new(Seen::default());
    // Some parts are rare: more cases follow until each was used. A runner counts its cases over all its runs, so each
    // round has its own, with the next seed.
    let mut all_used = false;
    for round in 0..20 {
        let seed = seed.wrapping_add(round);
        let rng_seed = RngSeed::Fixed(seed);
        let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
        let outcome = TestRunner::new(config).run(&any_case(), |case| {
            total.set(total.get() + run(&case));
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("PROPTEST_RNG_SEED={seed}: {error}");
        }
        let Seen { announced, parked, declined, woken_by_all, halts, stops, stale } = total.get();
        let counts = [announced, parked, declined, woken_by_all, halts, stops, stale];
        all_used = cases < 100 || counts.iter().all(|count| *count > 0);
        if all_used {
            break;
        }
    }
    println!("PROPTEST_RNG_SEED={seed}: {:?}", total.get());
    assert!(all_used, "a part of the protocol was never used: {:?}", total.get());
}
