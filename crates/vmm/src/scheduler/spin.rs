// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handing a slice on within a guest: a vCPU that spins waits for another vCPU, which may have no CPU.
//!
//! Invariant: handing on changes neither how long the guest holds the CPU nor the sum of its entities' virtual times, so no
//! other guest waits longer, and no guest gains by spinning. Without the exchange a vCPU that always spins would keep a
//! small virtual time, and would get slice after slice for its siblings.

use super::{Decision, EntityId, Scheduler, State, Ticks};

impl Scheduler {
    /// The vCPU that runs on this CPU spins (it executed WFE, say, while another vCPU held a lock). If another vCPU of
    /// its guest waits for a CPU, that one runs here for the rest of the slice; they take turns, so the one that holds the
    /// lock is soon among them. `None`: there is none, so the vCPU may as well go on spinning.
    pub fn spinning(&mut self, cpu: usize, now: Ticks) -> Option<Decision> {
        let spinner = self.cpus[cpu].running?.entity;
        let group = self.group_of(spinner);
        let count = group.members.len();
        let waits = |place: &usize| {
            let member = group.members[*place];
            matches!(self.entities[member.0 as usize].state, State::Waiting(_))
        };
        let place = (1..=count).map(|step| (group.handed_to + step) % count).find(waits)?;
        let target = group.members[place];
        let group = self.entity(spinner).group;
        self.groups[group.0 as usize].handed_to = place;
        self.hand_over(cpu, target, now)
    }

    /// Hands the rest of this CPU's slice to `target`, if it waits for a CPU and is of the same group as the entity that
    /// runs here.
    pub fn yield_to(&mut self, cpu: usize, target: EntityId, now: Ticks) -> Option<Decision> {
        let running = self.cpus[cpu].running?.entity;
        let group = self.entity(running).group;
        let other = self.entities.get(target.0 as usize)?;
        let may = matches!(other.state, State::Waiting(_)) && other.group == group;
        if may { self.hand_over(cpu, target, now) } else { None }
    }

    /// `target` waits and is of the group of the entity that runs on this CPU.
    fn hand_over(&mut self, cpu: usize, target: EntityId, now: Ticks) -> Option<Decision> {
        let now = self.advance(now);
        let running = self.cpus[cpu].running?;
        if now - running.slice_began >= self.slice {
            // There is nothing left to hand on.
            return Some(self.pick(cpu, now));
        }
        self.settle(cpu, now);
        self.cpus[cpu].running = None;
        let own = self.entity(running.entity).virtual_time;
        let others = core::mem::replace(&mut self.entity(target).virtual_time, own);
        self.entity(running.entity).virtual_time = others;
        // The time that it waits in the queue of this CPU begins before the other's ends, so contended time goes on.
        self.enqueue(running.entity, cpu, now);
        Some(self.dispatch(cpu, target, running.slice_began, now))
    }
}
