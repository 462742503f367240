// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entities, groups and CPUs that come and go, and the numbers that they get.

use twofold_vmm::scheduler::{MAX_CPUS, Scheduler};

use crate::machine::{SLICE, weight};

#[test]
fn there_are_1_to_64_cpus() {
    assert_eq!(MAX_CPUS, 64);
    assert_eq!(Scheduler::new(0, SLICE), Scheduler::new(1, SLICE));
    assert_eq!(Scheduler::new(65, SLICE), Scheduler::new(64, SLICE));
    assert_ne!(Scheduler::new(63, SLICE), Scheduler::new(64, SLICE));
    assert_ne!(Scheduler::new(1, SLICE), Scheduler::new(2, SLICE));
}

#[test]
fn a_cpu_that_has_not_begun_is_not_interrupted() {
    let mut scheduler = Scheduler::new(2, SLICE);
    assert_eq!(scheduler.pick(1, 0).run, None);
    assert!(scheduler.block(1, 0), "nothing runs there");
    let group = scheduler.add_group(weight(64));
    let entity = scheduler.add(group);
    assert_eq!(scheduler.wake(entity, 0).0, 1 << 1);
}

/// Entities are spread over the CPUs, in the order of their numbers.
#[test]
fn an_entity_wakes_at_home() {
    let mut scheduler = Scheduler::new(3, SLICE);
    let group = scheduler.add_group(weight(64));
    let entities = [(); 4].map(|()| scheduler.add(group));
    for cpu in 0..3 {
        assert_eq!(scheduler.pick(cpu, 0).run, None);
    }
    for (number, kicked) in [(1, 1 << 1), (2, 1 << 2), (3, 1)] {
        assert_eq!(scheduler.wake(entities[number], 0).0, kicked, "entity {number}");
    }
}

/// The number of an entity that was removed is the next one's, and a group goes with its last entity.
#[test]
fn what_is_removed_gives_its_number_to_another() {
    let mut scheduler = Scheduler::new(1, SLICE);
    let group = scheduler.add_group(weight(64));
    let [first, second, third] = [(); 3].map(|()| scheduler.add(group));
    assert!(scheduler.remove(first));
    assert!(!scheduler.remove(first), "it is gone");
    assert!(!Scheduler::new(1, SLICE).remove(second), "it is another scheduler's");
    assert!(scheduler.remove(second));
    let other = scheduler.add_group(weight(64));
    assert_ne!(other, group, "the group has a third entity");
    let next = scheduler.add(other);
    assert_eq!(next, first);
    // An entity that waits for a CPU stays.
    let _ = scheduler.wake(third, 0);
    assert!(!scheduler.remove(third));
    assert_eq!(scheduler.pick(0, 0).run, Some(third));
    assert!(scheduler.block(0, 10));
    assert_eq!(scheduler.ran(third, 20), 10);
    assert!(scheduler.remove(third));
    assert_eq!((scheduler.add_group(weight(64)), scheduler.add(other)), (group, second));
}
