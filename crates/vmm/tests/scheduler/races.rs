// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goes through all orders in which CPUs and devices take the steps of the scheduler's protocol (B1 to B3, W1 to W3, I1
//! to I3 on its page): no wake-up is lost, and no entity waits while a CPU sleeps.
//!
//! Each step is one critical section, or one access outside of the lock, so an order of steps is all that there is.
//!
//! In some worlds a CPU that has nothing else to do keeps the entity loaded while that waits (`block_and_rest`, `resume`). What
//! has a reason for a loaded entity interrupts its CPU, and calls `wake` for any other one. Another CPU that gets the entity
//! waits until it is loaded nowhere.

use std::collections::HashSet;

use twofold_vmm::scheduler::{EntityId, Scheduler};

use crate::machine::{SLICE, weight};

/// What a CPU does next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Looks for a reason to run the entity (B1).
    Check(usize),
    /// B2.
    Block(usize),
    /// B3 or I3.
    Pick,
    /// Runs this entity until an interrupt, and for ever without one.
    Run(usize),
    /// I2: until an interrupt.
    Sleep,
    /// It waits for an interrupt, with this entity loaded and blocked.
    Rest(usize),
    /// It was interrupted there, and looks.
    Look(usize),
    /// It puts this entity away, and does what was decided.
    Leave(usize, Option<usize>),
    /// It has put this entity away, and looks once more.
    Left(usize, Option<usize>),
}

/// What a waker does next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wake {
    /// W1.
    Publish,
    /// Reads where the entity is loaded.
    Find,
    /// W2.
    Call,
    /// W3, for these CPUs.
    Kick(u64),
    Done,
}

#[derive(Clone, Debug)]
struct World {
    scheduler: Scheduler,
    cpus: Vec<Step>,
    /// Whether each CPU will call `pick` at a time that was set.
    has_limit: Vec<bool>,
    /// Interrupts that a CPU has not taken.
    interrupts: u64,
    /// Wakers: the entity of each, and what it does next.
    wakers: Vec<(usize, Wake)>,
    /// Reasons to run that an entity has not seen yet.
    reasons: Vec<u32>,
    /// Entities that never block.
    spins: Vec<bool>,
    entities: Vec<EntityId>,
    /// Whether CPUs keep entities loaded, and where each is.
    keeps: bool,
    loaded: Vec<Option<usize>>,
}

impl World {
    /// Creates `entities`, of which the first `spinners` never block, and wakers for these entities. A spinner without a
    /// waker is awake.
    fn new(cpus: usize, entities: usize, spinners: usize, wakers: &[usize]) -> Self {
        let mut scheduler = Scheduler::new(cpus, SLICE);
        let ids: Vec<_> = (0..entities)
            .map(|_| {
                let group = scheduler.add_group(weight(64));
                scheduler.add(group)
            })
            .collect();
        for spinner in (0..spinners).filter(|spinner| !wakers.contains(spinner)) {
            let _ = scheduler.wake(ids[spinner], 0);
        }
        Self {
            scheduler,
            cpus: vec![Step::Pick; cpus],
            has_limit: vec![false; cpus],
            interrupts: 0,
            wakers: wakers.iter().map(|entity| (*entity, Wake::Publish)).collect(),
            reasons: vec![0; entities],
            spins: (0..entities).map(|entity| entity < spinners).collect(),
            entities: ids,
            keeps: false,
            loaded: vec![None; entities],
        }
    }

    fn keeping(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// `wake`, and W3 right after it.
    fn wake(&mut self, entity: usize, now: u64) {
        self.interrupts |= self.scheduler.wake(self.entities[entity], now).0;
    }

    /// `pick`, and the place of the entity that it gave.
    fn pick(&mut self, cpu: usize, now: u64) -> Option<usize> {
        let decision = self.scheduler.pick(cpu, now);
        self.has_limit[cpu] = decision.run.is_some() && decision.until != u64::MAX;
        decision.run.map(|id| self.entities.iter().position(|entity| *entity == id).unwrap())
    }

    /// What a CPU does after this decision.
    fn after(decision: Option<usize>) -> Step {
        decision.map_or(Step::Sleep, Step::Check)
    }

    /// The steps of a CPU that keeps an entity, as far as they differ; `None`: it does what the other worlds do.
    fn step_keeping(&mut self, cpu: usize, now: u64) -> Option<Step> {
        Some(match self.cpus[cpu] {
            // Another CPU is about to put it away.
            Step::Check(entity) if self.loaded[entity].is_some_and(|other| other != cpu) => return None,
            Step::Check(entity) if self.loaded[entity].is_none() => {
                self.loaded[entity] = Some(cpu);
                Step::Check(entity)
            }
            Step::Check(entity) if !self.spins[entity] && self.reasons[entity] == 0 => Step::Block(entity),
            Step::Block(entity) if self.loaded[entity].is_some() => {
                if self.scheduler.block_and_rest(cpu, now) {
                    Step::Rest(entity)
                } else {
                    self.loaded[entity] = None;
                    // W4.
                    if self.reasons[entity] == 0 { Step::Block(entity) } else { Step::Check(entity) }
                }
            }
            Step::Rest(entity) if self.interrupts >> cpu & 1 == 1 => {
                self.interrupts &= !(1 << cpu);
                Step::Look(entity)
            }
            Step::Rest(_) => return None,
            Step::Look(entity) => {
                let has_reason = self.reasons[entity] > 0;
                if has_reason && self.scheduler.resume(self.entities[entity], cpu, now) {
                    self.has_limit[cpu] = false;
                    return Some(Step::Check(entity));
                }
                if has_reason {
                    self.wake(entity, now);
                }
                match self.pick(cpu, now) {
                    Some(next) if next == entity => Step::Check(entity),
                    None if !has_reason && self.scheduler.is_blocked(self.entities[entity]) => Step::Rest(entity),
                    other => Step::Leave(entity, other),
                }
            }
            Step::Leave(entity, next) => {
                self.loaded[entity] = None;
                Step::Left(entity, next)
            }
            Step::Left(entity, next) => {
                if self.reasons[entity] > 0 {
                    self.wake(entity, now);
                }
                Self::after(next)
            }
            Step::Pick => {
                // Whatever was loaded was put away.
                self.loaded.iter_mut().filter(|loaded| **loaded == Some(cpu)).for_each(|loaded| *loaded = None);
                self.interrupts &= !(1 << cpu);
                Self::after(self.pick(cpu, now))
            }
            _ => return self.step_simply(cpu, now),
        })
    }

    /// Takes the next step of a CPU. Returns `false` if it has none.
    fn step_cpu(&mut self, cpu: usize, now: u64) -> bool {
        let next = if self.keeps { self.step_keeping(cpu, now) } else { self.step_simply(cpu, now) };
        next.map(|step| self.cpus[cpu] = step).is_some()
    }

    fn step_simply(&mut self, cpu: usize, now: u64) -> Option<Step> {
        Some(match self.cpus[cpu] {
            Step::Check(entity) if self.spins[entity] => Step::Run(entity),
            Step::Check(entity) if self.reasons[entity] > 0 => {
                self.reasons[entity] -= 1;
                Step::Check(entity)
            }
            Step::Check(entity) => Step::Block(entity),
            Step::Block(entity) if self.scheduler.block(cpu, now) => {
                assert!(!self.spins[entity]);
                Step::Pick
            }
            Step::Block(entity) => Step::Check(entity),
            Step::Pick => {
                self.interrupts &= !(1 << cpu);
                Self::after(self.pick(cpu, now))
            }
            Step::Run(_) | Step::Sleep if self.interrupts >> cpu & 1 == 1 => Step::Pick,
            _ => return None,
        })
    }

    fn step_waker(&mut self, waker: usize, now: u64) -> bool {
        let (entity, step) = self.wakers[waker];
        self.wakers[waker].1 = match step {
            Wake::Publish => {
                self.reasons[entity] += 1;
                Wake::Find
            }
            Wake::Find => self.loaded[entity].map_or(Wake::Call, |cpu| Wake::Kick(1 << cpu)),
            Wake::Call => Wake::Kick(self.scheduler.wake(self.entities[entity], now).0),
            Wake::Kick(cpus) => {
                self.interrupts |= cpus;
                Wake::Done
            }
            Wake::Done => return false,
        };
        true
    }

    /// Nothing moves any more: what is left must be nothing, or must end at a time that was set.
    fn check_end(&self) {
        // Time that passes is stolen from an entity that waits for a CPU.
        let waits = |id: &EntityId| self.scheduler.stolen(*id, 1) > self.scheduler.stolen(*id, 0);
        for ((id, reasons), spins) in self.entities.iter().zip(&self.reasons).zip(&self.spins) {
            assert!(*spins || *reasons == 0 || waits(id), "a reason is not seen: {self:#?}");
        }
        for (cpu, step) in self.cpus.iter().enumerate() {
            let keeper = if let Step::Check(entity) = step { self.loaded[*entity] } else { None };
            assert!(keeper.is_none_or(|keeper| keeper == cpu), "CPU {cpu} waits for what another one keeps: {self:#?}");
        }
        if self.entities.iter().any(waits) {
            assert!(!self.cpus.contains(&Step::Sleep), "a CPU sleeps while an entity waits: {self:#?}");
            assert!(self.has_limit.contains(&true), "no CPU looks again: {self:#?}");
        }
    }

    /// Goes through all orders; returns the number of states.
    fn explore(self) -> usize {
        let (mut seen, mut left) = (HashSet::new(), vec![self]);
        while let Some(world) = left.pop() {
            let mut is_end = true;
            // Time stands still: the slices do not end.
            for actor in 0..world.cpus.len() + world.wakers.len() {
                let mut next = world.clone();
                let cpus = next.cpus.len();
                let moved = if actor < cpus { next.step_cpu(actor, 0) } else { next.step_waker(actor - cpus, 0) };
                if moved {
                    is_end = false;
                    if seen.insert(format!("{next:?}")) {
                        left.push(next);
                    }
                }
            }
            if is_end {
                world.check_end();
            }
        }
        seen.len()
    }
}

#[test]
fn no_wake_up_of_a_vcpu_is_lost() {
    // One CPU or two; one entity or two; two or three wakers, of the same or of different entities.
    let mut states = 0;
    for (cpus, entities, wakers) in [
        (1, 1, &[0, 0][..]),
        (1, 1, &[0, 0, 0]),
        (2, 1, &[0, 0, 0]),
        (1, 2, &[0, 1, 0]),
        (2, 2, &[0, 1, 0]),
        (2, 3, &[0, 1]),
    ] {
        states += World::new(cpus, entities, 0, wakers).explore();
    }
    println!("{states} states");
    assert!(states > 1000);
}

/// As above, where CPUs keep an entity that waits loaded.
#[test]
fn no_wake_up_of_a_vcpu_that_stays_loaded_is_lost() {
    let mut states = 0;
    for (cpus, entities, spinners, wakers) in [
        (1, 1, 0, &[0, 0][..]),
        (1, 1, 0, &[0, 0, 0]),
        (2, 1, 0, &[0, 0, 0]),
        (1, 2, 0, &[0, 1, 0]),
        (2, 2, 0, &[0, 1]),
        (2, 2, 0, &[0, 1, 0]),
        (2, 3, 0, &[0, 1]),
        (2, 3, 1, &[1, 2]),
        (1, 2, 1, &[1, 0]),
    ] {
        states += World::new(cpus, entities, spinners, wakers).keeping().explore();
    }
    println!("{states} states");
    assert!(states > 1000);
}

/// Spinners have the CPUs: an entity that wakes makes one of them set a time, or takes it.
#[test]
fn one_that_wakes_beside_spinners_gets_a_cpu_within_a_slice() {
    let mut states = 0;
    for (cpus, entities, spinners, wakers) in [
        (1, 2, 1, &[1, 1][..]),
        (2, 3, 2, &[2, 2]),
        (2, 3, 1, &[1, 2]),
        (2, 4, 2, &[2, 3]),
        (2, 3, 1, &[1, 2, 1]),
        (2, 2, 2, &[0, 1]),
        (2, 3, 3, &[0, 1, 2]),
        (3, 3, 3, &[0, 1, 2]),
    ] {
        states += World::new(cpus, entities, spinners, wakers).explore();
    }
    println!("{states} states");
    assert!(states > 1000);
}
