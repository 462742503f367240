// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waking, blocking, charging and choosing: the calls of every CPU.
//!
//! Invariants, after each call: an entity is in one queue if it waits, and in none otherwise; it runs on one CPU at most.
//! While an entity waits and no CPU is idle or was just interrupted, each running entity has a limit.

use super::queue::Item;
use super::units::Virtual;
use super::{Decision, EntityId, Kicks, Running, Scheduler, State, Ticks};

impl Scheduler {
    /// The entity can run. Returns the CPUs to interrupt.
    pub fn wake(&mut self, entity: EntityId, now: Ticks) -> Kicks {
        let now = self.advance(now);
        match self.entity(entity).state {
            State::Blocked => {}
            State::Waiting(_) | State::Running(_) => {
                self.entity(entity).is_woken = true;
                return Kicks::default();
            }
            State::Removed => return Kicks::default(),
        }
        self.raise_floor(now);
        let contended = self.contended.at(now);
        let group = self.entity(entity).group;
        self.groups[group.0 as usize].add_runnable(contended);
        let credit = self.virtual_of(entity, self.slice / 2);
        let earliest = self.floor.saturating_sub(credit);
        let woken = self.entity(entity);
        woken.virtual_time = woken.virtual_time.max(earliest);
        let home = woken.home;
        if self.idle != 0 {
            let cpu = if self.idle >> home & 1 == 1 { home } else { self.idle.trailing_zeros() as usize };
            self.idle &= !(1 << cpu);
            self.enqueue(entity, cpu, now);
            return Kicks(1 << cpu);
        }
        let mut kicks = 0;
        let mut cpu = home;
        if let Some(victim) = self.victim(entity, now) {
            cpu = victim;
            kicks |= 1 << victim;
        }
        self.enqueue(entity, cpu, now);
        for (number, cpu) in self.cpus.iter_mut().enumerate() {
            if let Some(running) = cpu.running.as_mut().filter(|running| !running.is_limited) {
                // The CPU calls `pick` now, which sets a time.
                running.is_limited = true;
                kicks |= 1 << number;
            }
        }
        Kicks(kicks)
    }

    /// Blocks the entity that runs on this CPU. Returns `false`, and blocks nothing, if the entity was woken since it was
    /// last blocked: the embedder looks for the reason, and calls again if it finds none.
    #[must_use]
    pub fn block(&mut self, cpu: usize, now: Ticks) -> bool {
        let now = self.advance(now);
        let Some(Running { entity, .. }) = self.cpus[cpu].running else { return true };
        if core::mem::take(&mut self.entity(entity).is_woken) {
            return false;
        }
        self.settle(cpu, now);
        self.cpus[cpu].running = None;
        self.entity(entity).state = State::Blocked;
        let contended = self.contended.at(now);
        let group = self.entity(entity).group;
        self.groups[group.0 as usize].subtract_runnable(contended);
        true
    }

    /// Charges the entity that runs on this CPU for the time until now.
    pub fn charge(&mut self, cpu: usize, now: Ticks) {
        let now = self.advance(now);
        self.settle(cpu, now);
    }

    /// What this CPU does next: go on, another entity, or none. A CPU calls this when it has none, at the time of its
    /// last decision, and when it is interrupted.
    pub fn pick(&mut self, cpu: usize, now: Ticks) -> Decision {
        let now = self.advance(now);
        self.settle(cpu, now);
        self.idle &= !(1 << cpu);
        if let Some(running) = self.cpus[cpu].running {
            let is_over = now - running.slice_began >= self.slice;
            let virtual_time = self.entity(running.entity).virtual_time;
            let next = self.next(cpu, Some(virtual_time)).filter(|next| {
                // Before its end a slice is cut short only for one that is clearly ahead.
                let margin = if is_over { 0 } else { self.virtual_of(next.entity, self.slice / MARGIN) };
                next.virtual_time + margin < virtual_time
            });
            let Some(next) = next else {
                if is_over {
                    self.cpus[cpu].running = Some(Running { slice_began: now, ..running });
                }
                return self.go_on(cpu);
            };
            self.cpus[cpu].running = None;
            self.enqueue(running.entity, cpu, now);
            return self.dispatch(cpu, next.entity, now, now);
        }
        match self.next(cpu, None) {
            Some(next) => self.dispatch(cpu, next.entity, now, now),
            None => {
                self.idle |= 1 << cpu;
                Decision { run: None, until: Ticks::MAX, moved: false }
            }
        }
    }

    /// Makes an entity that can run wait in this CPU's queue.
    pub(super) fn enqueue(&mut self, entity: EntityId, cpu: usize, now: Ticks) {
        self.contended.add(now);
        let waiting = self.entity(entity);
        (waiting.state, waiting.home) = (State::Waiting(now), cpu);
        let virtual_time = waiting.virtual_time;
        self.cpus[cpu].waiting.push(Item { virtual_time, entity });
    }

    /// Takes a waiting entity out of its queue.
    pub(super) fn dequeue(&mut self, entity: EntityId, now: Ticks) {
        let home = self.entity(entity).home;
        self.cpus[home].waiting.remove(entity);
        self.contended.subtract(now);
        let waiting = self.entity(entity);
        if let State::Waiting(since) = waiting.state {
            waiting.stolen += now - since;
        }
    }

    /// Runs a waiting entity on this CPU, which has none, in a slice that began at `slice_began`.
    pub(super) fn dispatch(&mut self, cpu: usize, entity: EntityId, slice_began: Ticks, now: Ticks) -> Decision {
        self.dequeue(entity, now);
        let contended = self.contended.at(now);
        let clock = self.group_of(entity).clock(contended);
        let chosen = self.entity(entity);
        let moved = chosen.ran_on != Some(cpu);
        (chosen.state, chosen.home, chosen.ran_on) = (State::Running(cpu), cpu, Some(cpu));
        self.cpus[cpu].running = Some(Running { entity, since: now, clock, slice_began, is_limited: true });
        Decision { moved, ..self.go_on(cpu) }
    }

    /// Charges the entity that runs on this CPU. If the first that waits is ahead by more than it can get by one slice,
    /// the entity asks for more than a CPU, and is lifted.
    pub(super) fn settle(&mut self, cpu: usize, now: Ticks) {
        let Some(running) = self.cpus[cpu].running else { return };
        let clock = self.group_of(running.entity).clock(self.contended.at(now));
        let least = match self.first() {
            Some(first) => {
                first.virtual_time.saturating_sub(self.virtual_of(first.entity, self.slice + self.slice / STICKINESS))
            }
            None => 0,
        };
        let entity = self.entity(running.entity);
        entity.virtual_time = (entity.virtual_time + (clock - running.clock)).max(least);
        entity.ran += now - running.since;
        self.cpus[cpu].running = Some(Running { since: now, clock, ..running });
    }

    /// The decision to go on with the entity that runs on this CPU.
    fn go_on(&mut self, cpu: usize) -> Decision {
        let (slice, is_limited) = (self.slice, self.contended.is_running());
        let Some(running) = &mut self.cpus[cpu].running else {
            return Decision { run: None, until: Ticks::MAX, moved: false };
        };
        running.is_limited = is_limited;
        let until = if is_limited { running.slice_began.saturating_add(slice) } else { Ticks::MAX };
        Decision { run: Some(running.entity), until, moved: false }
    }

    /// The waiting entity that this CPU would run: the first of all, or the first of its own queue if that is not far
    /// behind. `running` is the virtual time of the entity that would have to go, and which a kept one must be ahead of.
    fn next(&self, cpu: usize, running: Option<Virtual>) -> Option<Item> {
        let first = self.first()?;
        let own = self.cpus[cpu].waiting.first().filter(|own| {
            let kept = self.virtual_of(own.entity, self.slice / STICKINESS);
            own.virtual_time <= first.virtual_time + kept && running.is_none_or(|running| own.virtual_time < running)
        });
        Some(own.unwrap_or(first))
    }

    /// The first of all waiting entities.
    fn first(&self) -> Option<Item> {
        if !self.contended.is_running() {
            return None;
        }
        self.cpus.iter().filter_map(|cpu| cpu.waiting.first()).min()
    }

    /// The CPU whose entity has run furthest ahead, if `entity` is clearly before it.
    fn victim(&self, entity: EntityId, now: Ticks) -> Option<usize> {
        let woken = &self.entities[entity.0 as usize];
        let from = woken.virtual_time + self.virtual_of(entity, self.slice / MARGIN);
        let ahead = |cpu| Some((self.running_at(cpu, now)?, cpu == woken.home, cpu));
        let furthest = (0..self.cpus.len()).filter_map(ahead).max()?;
        (from < furthest.0).then_some(furthest.2)
    }

    /// The virtual time of the entity that runs on this CPU.
    fn running_at(&self, cpu: usize, now: Ticks) -> Option<Virtual> {
        let running = self.cpus[cpu].running?;
        let clock = self.group_of(running.entity).clock(self.contended.at(now));
        Some(self.entities[running.entity.0 as usize].virtual_time + (clock - running.clock))
    }

    /// Moves the floor up to the least virtual time of all entities that can run.
    fn raise_floor(&mut self, now: Ticks) {
        let running = (0..self.cpus.len()).filter_map(|cpu| self.running_at(cpu, now)).min();
        let waiting = self.first().map(|first| first.virtual_time);
        if let Some(least) = running.into_iter().chain(waiting).min() {
            self.floor = self.floor.max(least);
        }
    }
}

/// A slice is cut short for an entity that is ahead by a slice divided by this.
const MARGIN: Ticks = 8;
/// A CPU keeps an entity of its own that is behind by at most a slice divided by this.
const STICKINESS: Ticks = 4;
