// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a slice ends, and what a CPU does that is interrupted without a reason.

use twofold_vmm::scheduler::Scheduler;

use crate::machine::{SLICE, weight};

#[test]
fn a_slice_ends_where_it_would_have_ended_whatever_interrupts_it() {
    let mut scheduler = Scheduler::new(1, SLICE);
    assert_eq!(scheduler.pick(0, 0).run, None);
    let group = scheduler.add_group(weight(64));
    let [first, second] = [(); 2].map(|()| scheduler.add(group));
    for entity in [first, second] {
        let _ = scheduler.wake(entity, 0);
    }
    let mut picked = |now| {
        let decision = scheduler.pick(0, now);
        (decision.run, decision.until)
    };
    assert_eq!(picked(0), (Some(first), SLICE));
    assert_eq!(picked(SLICE / 16), (Some(first), SLICE));
    assert_eq!(picked(SLICE), (Some(second), 2 * SLICE));
    assert_eq!(picked(SLICE + SLICE / 16), (Some(second), 2 * SLICE));
    // Both have run for as long, so nothing is gained by a change.
    assert_eq!(picked(2 * SLICE), (Some(second), 3 * SLICE));
    assert_eq!(picked(3 * SLICE), (Some(first), 4 * SLICE));
}

/// An idle CPU takes what waits for another one, and is not idle then.
#[test]
fn an_idle_cpu_that_is_interrupted_takes_what_waits() {
    let mut scheduler = Scheduler::new(2, SLICE);
    for cpu in 0..2 {
        assert_eq!(scheduler.pick(cpu, 0).run, None);
    }
    let group = scheduler.add_group(weight(64));
    let [first, second] = [(); 2].map(|()| scheduler.add(group));
    assert_eq!(scheduler.wake(first, 0).0, 1);
    assert_eq!(scheduler.pick(1, 0).run, Some(first));
    assert_eq!(scheduler.pick(0, 0).run, None);
    assert_eq!(scheduler.wake(second, 0).0, 1, "the other CPU, which is its home, is busy");
}

/// Of CPUs whose entities have run for as long, the one that wakes takes its own.
#[test]
fn an_entity_that_wakes_prefers_its_own_cpu() {
    for home in 0..2 {
        let mut scheduler = Scheduler::new(2, SLICE);
        for cpu in 0..2 {
            assert_eq!(scheduler.pick(cpu, 0).run, None);
        }
        let group = scheduler.add_group(weight(64));
        // The homes of these are the CPUs in turn.
        let entities = [(); 4].map(|()| scheduler.add(group));
        for (cpu, entity) in entities[..2].iter().enumerate() {
            assert_eq!(scheduler.wake(*entity, 0).0, 1 << cpu);
            assert_eq!(scheduler.pick(cpu, 0).run, Some(*entity));
        }
        assert_eq!(scheduler.wake(entities[3 - home], 0).0, 3, "both CPUs set a time");
        for (cpu, entity) in entities[..2].iter().enumerate() {
            assert_eq!(scheduler.pick(cpu, 0).run, Some(*entity));
        }
        assert_eq!(scheduler.wake(entities[2 + home], SLICE - 1).0, 1 << home);
    }
}
