// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An entity blocks and the next one runs by one call: when it does, and when it must not. That the result is that of two
//! calls is seen in each test that uses `machine.rs`.

use twofold_vmm::scheduler::{EntityId, Scheduler};

use crate::machine::{SLICE, weight};

/// Two entities of one group on one CPU, of which the first runs and the second waits.
fn two() -> (Scheduler, [EntityId; 2]) {
    let mut scheduler = Scheduler::new(1, SLICE);
    assert_eq!(scheduler.pick(0, 0).run, None);
    let group = scheduler.add_group(weight(64));
    let entities = [(); 2].map(|()| scheduler.add(group));
    for entity in entities {
        let _ = scheduler.wake(entity, 0);
    }
    assert_eq!(scheduler.pick(0, 0).run, Some(entities[0]));
    (scheduler, entities)
}

#[test]
fn an_entity_that_was_woken_meanwhile_does_not_block() {
    let (mut scheduler, [first, second]) = two();
    assert_eq!(scheduler.wake(first, 10).0, 0);
    assert_eq!(scheduler.block_for_next(0, 20), None);
    assert!(!scheduler.block(0, 20));
    assert_eq!(scheduler.block_for_next(0, 30), Some(second));
    assert!(scheduler.is_blocked(first) && !scheduler.is_blocked(second));
}

/// The first one has run for a slice, and the second one blocks before it has.
#[test]
fn an_entity_that_is_behind_by_less_than_a_slice_blocks() {
    let (mut scheduler, [first, second]) = two();
    assert_eq!(scheduler.pick(0, SLICE).run, Some(second));
    assert_eq!(scheduler.block_for_next(0, SLICE + SLICE * 3 / 4), Some(first));
}

#[test]
fn an_entity_that_was_woken_meanwhile_does_not_rest() {
    let (mut scheduler, [first, second]) = two();
    assert!(!scheduler.block_and_rest(0, 10), "the second one waits");
    assert_eq!(scheduler.block_for_next(0, 10), Some(second));
    assert_eq!(scheduler.wake(second, 20).0, 0);
    assert!(!scheduler.block_and_rest(0, 30));
    assert!(!scheduler.is_blocked(second) && !scheduler.block(0, 30));
    assert!(scheduler.block_and_rest(0, 40));
    assert!(scheduler.is_blocked(first) && scheduler.is_blocked(second));
}

/// An entity resumes only where it was last, while that CPU is idle and nothing waits.
#[test]
fn an_entity_resumes_on_its_own_idle_cpu() {
    let mut scheduler = Scheduler::new(2, SLICE);
    let group = scheduler.add_group(weight(64));
    let [first, second, third] = [(); 3].map(|()| scheduler.add(group));
    assert!(!scheduler.resume(first, 0, 0), "the CPU has not begun");
    for cpu in 0..2 {
        assert_eq!(scheduler.pick(cpu, 0).run, None);
    }
    assert!(!scheduler.resume(second, 0, 0), "it is at home on the other CPU");
    assert_eq!(scheduler.wake(third, 0).0, 1);
    assert!(!scheduler.resume(second, 1, 0), "the third one waits");
    assert_eq!(scheduler.pick(0, 0).run, Some(third));
    assert!(scheduler.resume(second, 1, 0));
    assert!(!scheduler.resume(second, 1, 0), "it runs");
    assert_eq!((scheduler.ran(second, 7), scheduler.ran(third, 7)), (7, 7));
    assert!(scheduler.block(1, 7));
    assert_eq!(scheduler.pick(1, 7).run, None);
    assert!(scheduler.remove(second));
    assert!(!scheduler.resume(second, 1, 7), "it is gone");
}

/// The first wake-up makes the CPU set a time, and the next ones find that it does.
#[test]
fn a_cpu_is_interrupted_once_to_set_a_time() {
    let mut scheduler = Scheduler::new(1, SLICE);
    assert_eq!(scheduler.pick(0, 0).run, None);
    let group = scheduler.add_group(weight(64));
    let [first, second, third] = [(); 3].map(|()| scheduler.add(group));
    assert_eq!((scheduler.wake(first, 0).0, scheduler.pick(0, 0).run), (1, Some(first)));
    assert_eq!([scheduler.wake(second, 0).0, scheduler.wake(third, 0).0], [1, 0]);
}
