// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a guest's contended spinlock with more vCPUs than CPUs: a vCPU that spins hands its slice to the one that was
//! interrupted while it held the lock, or whose turn is next.
//!
//! Time is in microseconds. A vCPU works outside of the lock, takes it, holds it, and begins again. A switch costs time.

use std::collections::VecDeque;

use twofold_vmm::scheduler::{Decision, EntityId, Scheduler};

use crate::machine::{SLICE, weight};

const OUTSIDE: u32 = 5;
const HOLD: u32 = 10;
/// How long a vCPU spins before its WFE traps.
const WINDOW: u32 = 2;
const SWITCH: u32 = 1;
const TIME: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Outside(u32),
    Spinning(u32),
    Holding(u32),
}

/// Which waiter gets the lock.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// The one that has waited longest, as with Linux's queued spinlocks.
    First,
    /// The first that looks.
    Any,
}

struct Guest {
    order: Order,
    hands_on: bool,
    scheduler: Scheduler,
    vcpus: Vec<(EntityId, Doing)>,
    /// The holder, and then those whose turn it is.
    queue: VecDeque<usize>,
    held: bool,
    last: Option<usize>,
    handovers: u64,
    /// What vCPUs executed.
    ran: u64,
    /// The longest time between two hand-overs.
    longest: u64,
    last_at: u64,
}

impl Guest {
    fn new(order: Order, cpus: usize, vcpus: usize, hands_on: bool) -> Self {
        let mut scheduler = Scheduler::new(cpus, SLICE);
        let group = scheduler.add_group(weight(64));
        let vcpus: Vec<_> = (0..vcpus).map(|_| (scheduler.add(group), Doing::Outside(OUTSIDE))).collect();
        for (id, _) in &vcpus {
            let _ = scheduler.wake(*id, 0);
        }
        let queue = VecDeque::new();
        let (held, last, handovers, ran, longest, last_at) = (false, None, 0, 0, 0, 0);
        Self { order, hands_on, scheduler, vcpus, queue, held, last, handovers, ran, longest, last_at }
    }

    /// Runs for [`TIME`]; returns the hand-overs in a second of the guest's own instructions.
    fn run(&mut self, cpus: usize) -> f64 {
        let mut decisions: Vec<_> = (0..cpus).map(|cpu| (self.scheduler.pick(cpu, 0), SWITCH)).collect();
        for now in 0..TIME {
            for (cpu, current) in decisions.iter_mut().enumerate() {
                if current.1 > 0 {
                    current.1 -= 1;
                } else if current.0.until <= now {
                    switch(current, self.scheduler.pick(cpu, now));
                } else if let Some(decision) = self.execute(cpu, current.0, now) {
                    switch(current, decision);
                }
            }
        }
        self.handovers as f64 * 1e6 / self.ran as f64
    }

    /// Lets the vCPU of this CPU run for a microsecond. Returns a decision if the CPU gets another vCPU.
    fn execute(&mut self, cpu: usize, decision: Decision, now: u64) -> Option<Decision> {
        let vcpu = self.vcpus.iter().position(|(id, _)| Some(*id) == decision.run)?;
        self.ran += 1;
        let before = self.vcpus[vcpu].1;
        let (doing, given) = match before {
            Doing::Outside(0) => {
                self.queue.push_back(vcpu);
                (Doing::Spinning(0), None)
            }
            Doing::Outside(left) => (Doing::Outside(left - 1), None),
            Doing::Spinning(_) if self.take(vcpu, now) => (Doing::Holding(HOLD), None),
            Doing::Spinning(WINDOW) if self.hands_on => (Doing::Spinning(0), self.scheduler.spinning(cpu, now)),
            Doing::Spinning(spun) => (Doing::Spinning(spun.wrapping_add(1)), None),
            Doing::Holding(0) => {
                self.held = false;
                (Doing::Outside(OUTSIDE), None)
            }
            Doing::Holding(left) => (Doing::Holding(left - 1), None),
        };
        self.vcpus[vcpu].1 = doing;
        given
    }

    fn take(&mut self, vcpu: usize, now: u64) -> bool {
        if self.held || self.order == Order::First && self.queue.front() != Some(&vcpu) {
            return false;
        }
        self.queue.retain(|other| *other != vcpu);
        self.held = true;
        if self.last.replace(vcpu) != Some(vcpu) {
            self.handovers += 1;
            self.longest = self.longest.max(now - self.last_at);
            self.last_at = now;
        }
        true
    }
}

fn switch(current: &mut (Decision, u32), decision: Decision) {
    let is_other = current.0.run != decision.run;
    *current = (decision, if is_other { SWITCH } else { 0 });
}

#[test]
fn four_vcpus_on_two_cpus_hand_a_lock_over_at_least_half_as_often_as_two() {
    for order in [Order::First, Order::Any] {
        let two = Guest::new(order, 2, 2, true).run(2);
        for vcpus in [3, 4, 8] {
            let mut guest = Guest::new(order, 2, vcpus, true);
            let more = guest.run(2);
            println!("{order:?}: 2 vCPUs {two:.0}, {vcpus} vCPUs {more:.0}, longest {} us", guest.longest);
            assert!(more >= two / 2.0, "{order:?}: {more:.0} with {vcpus} vCPUs, {two:.0} with 2");
            assert!(guest.longest < SLICE, "{order:?}: no hand-over for {} us", guest.longest);
        }
        // The test can fail: without handing on, spinners use up their slices.
        if order == Order::First {
            let without = Guest::new(order, 2, 4, false).run(2);
            println!("{order:?}: 4 vCPUs without handing on {without:.0}");
            assert!(without < two / 10.0, "{without:.0} without handing on, {two:.0} with 2 vCPUs");
        }
    }
}

/// A guest that hands slices on all the time gets no more than its share.
#[test]
fn a_guest_gains_nothing_by_spinning() {
    let mut scheduler = Scheduler::new(1, SLICE);
    let groups = [(); 2].map(|()| scheduler.add_group(weight(64)));
    let other = scheduler.add(groups[0]);
    let spinners: Vec<_> = (0..3).map(|_| scheduler.add(groups[1])).collect();
    let mut decision = scheduler.pick(0, 0);
    for id in spinners.iter().chain([&other]) {
        let _ = scheduler.wake(*id, 0);
    }
    let mut ran = 0_u64;
    for now in 0..TIME {
        if decision.run == Some(other) {
            ran += 1;
        }
        if decision.until <= now || decision.run.is_none() {
            decision = scheduler.pick(0, now);
        } else if decision.run != Some(other)
            && now % 7 == 0
            && let Some(given) = scheduler.spinning(0, now)
        {
            assert!(given.until <= now + SLICE);
            decision = given;
        }
    }
    assert!(ran.abs_diff(TIME / 2) < TIME / 100, "{ran} of {TIME} for the other guest");
    // Each vCPU of the guest gets something.
    let parts: Vec<_> = spinners.iter().map(|id| scheduler.ran(*id, TIME)).collect();
    assert!(parts.iter().all(|part| *part > TIME / 12), "{parts:?}");
}

#[test]
fn vcpus_that_spin_hand_the_slice_on_in_turn() {
    let mut scheduler = Scheduler::new(1, SLICE);
    let group = scheduler.add_group(weight(64));
    let vcpus = [(); 3].map(|()| scheduler.add(group));
    for id in vcpus {
        let _ = scheduler.wake(id, 0);
    }
    assert_eq!(scheduler.pick(0, 0).run, Some(vcpus[0]));
    for (now, next) in [1, 2, 0, 1, 2, 0].into_iter().enumerate() {
        let given = scheduler.spinning(0, now as u64).unwrap();
        assert_eq!(given.run, Some(vcpus[next]), "at {now}");
    }
}

#[test]
fn a_slice_is_handed_only_to_a_vcpu_of_the_same_guest_that_waits() {
    let mut scheduler = Scheduler::new(1, SLICE);
    let groups = [(); 2].map(|()| scheduler.add_group(weight(64)));
    let [one, blocked, sibling] = [(); 3].map(|()| scheduler.add(groups[0]));
    let other = scheduler.add(groups[1]);
    for id in [one, other] {
        let _ = scheduler.wake(id, 0);
    }
    let mut decision = scheduler.pick(0, 0);
    if decision.run == Some(other) {
        decision = scheduler.pick(0, SLICE);
    }
    let now = decision.until - SLICE;
    assert_eq!(decision.run, Some(one));
    assert_eq!(scheduler.spinning(0, now + 1), None, "the only one that waits is of another guest");
    for target in [one, blocked, other] {
        assert_eq!(scheduler.yield_to(0, target, now + 1), None);
    }
    let _ = scheduler.wake(sibling, now + 2);
    let given = scheduler.yield_to(0, sibling, now + 10).unwrap();
    assert_eq!((given.run, given.until), (Some(sibling), now + SLICE), "the rest of the slice");
    // There is no rest.
    let picked = scheduler.spinning(0, now + SLICE).unwrap();
    assert_eq!(picked.until, now + 2 * SLICE);
}
