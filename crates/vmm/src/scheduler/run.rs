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
    #[inline]
    pub fn block(&mut self, cpu: usize, now: Ticks) -> bool {
        let now = self.advance(now);
        let Some(Running { entity, .. }) = self.cpus[cpu].running else { return true };
        if core::mem::take(&mut self.entity(entity).is_woken) {
            return false;
        }
        self.settle(cpu, now);
        self.cpus[cpu].running = None;
        let contended = self.contended.at(now);
        let blocked = self.entity(entity);
        blocked.state = State::Blocked;
        let group = blocked.group;
        self.groups[group.0 as usize].subtract_runnable(contended);
        true
    }

    /// [`block`](Self::block), and then [`pick`](Self::pick), in the usual case of a vCPU's WFI: one entity waits, in this
    /// CPU's queue, and it is of the same group. Each number is then computed once. Returns that entity, which runs until
    /// the CPU is interrupted. Returns `None` in any other case: then nothing has changed but the time.
    #[inline(always)]
    pub fn block_for_next(&mut self, cpu: usize, now: Ticks) -> Option<EntityId> {
        let now = self.advance(now);
        let contended = self.contended.of_one(now)?;
        let this = &mut self.cpus[cpu];
        let next = this.waiting.only()?;
        let running = this.running?;
        let next_group = self.entities[next.entity.0 as usize].group;
        let blocked = &mut self.entities[running.entity.0 as usize];
        if blocked.group != next_group {
            return None;
        }
        let group = &mut self.groups[next_group.0 as usize];
        let clock = group.clock(contended);
        let virtual_time = blocked.virtual_time + (clock - running.clock);
        let least = Virtual::from(self.slice) * Virtual::from(group.least_rate());
        // `settle` lifts one that is ahead of the first by more than a slice.
        if blocked.is_woken || virtual_time + least < next.virtual_time {
            return None;
        }
        blocked.virtual_time = virtual_time;
        blocked.ran += now - running.since;
        blocked.state = State::Blocked;
        let entity = next.entity;
        group.subtract_runnable_at(clock, contended);
        this.waiting.clear();
        self.contended.subtract(now, contended);
        let chosen = &mut self.entities[entity.0 as usize];
        if let State::Waiting(since) = chosen.state {
            chosen.stolen += now - since;
        }
        // Its home is this CPU, because it waited in the queue here.
        chosen.state = State::Running(cpu);
        // No other one waits, so there is no limit.
        this.running = Some(Running { entity, since: now, clock, slice_began: now, is_limited: false });
        Some(entity)
    }

    /// [`block`](Self::block), and then [`pick`](Self::pick), if nothing waits for a CPU: this CPU is idle from now on. Returns
    /// `false` if something waits, or if the entity was woken since it was last blocked: then nothing has changed but the time.
    pub fn block_and_rest(&mut self, cpu: usize, now: Ticks) -> bool {
        let now = self.advance(now);
        let this = &mut self.cpus[cpu];
        let Some(running) = this.running.filter(|_| !self.contended.is_running()) else { return false };
        let blocked = &mut self.entities[running.entity.0 as usize];
        if blocked.is_woken {
            return false;
        }
        let contended = self.contended.at(now);
        let group = &mut self.groups[blocked.group.0 as usize];
        let clock = group.clock(contended);
        blocked.virtual_time += clock - running.clock;
        blocked.ran += now - running.since;
        blocked.state = State::Blocked;
        group.subtract_runnable_at(clock, contended);
        this.running = None;
        self.idle |= 1 << cpu;
        true
    }

    /// [`wake`](Self::wake), and then [`pick`](Self::pick) by the CPU that this interrupts, for the CPU on which the entity was
    /// blocked last: it is idle still, and nothing waits for a CPU. The entity runs there until the CPU is interrupted. Returns
    /// `false` in any other case: then nothing has changed but the time.
    pub fn resume(&mut self, entity: EntityId, cpu: usize, now: Ticks) -> bool {
        let now = self.advance(now);
        let woken = &self.entities[entity.0 as usize];
        let is_idle = self.idle >> cpu & 1 == 1 && !self.contended.is_running();
        if !is_idle || woken.state != State::Blocked || woken.home != cpu {
            return false;
        }
        self.raise_floor(now);
        let contended = self.contended.at(now);
        let group = &mut self.groups[self.entities[entity.0 as usize].group.0 as usize];
        group.add_runnable(contended);
        let clock = group.clock(contended);
        let credit = self.virtual_of(entity, self.slice / 2);
        let earliest = self.floor.saturating_sub(credit);
        let woken = self.entity(entity);
        woken.virtual_time = woken.virtual_time.max(earliest);
        woken.state = State::Running(cpu);
        self.contended.passes(now);
        self.idle &= !(1 << cpu);
        self.cpus[cpu].running = Some(Running { entity, since: now, clock, slice_began: now, is_limited: false });
        true
    }

    /// Whether the entity is blocked.
    pub fn is_blocked(&self, entity: EntityId) -> bool {
        self.entities[entity.0 as usize].state == State::Blocked
    }

    /// Charges the entity that runs on this CPU for the time until now.
    pub fn charge(&mut self, cpu: usize, now: Ticks) {
        let now = self.advance(now);
        self.settle(cpu, now);
    }

    /// What this CPU does next: go on, another entity, or none. A CPU calls this when it has none, at the time of its
    /// last decision, and when it is interrupted.
    #[inline]
    pub fn pick(&mut self, cpu: usize, now: Ticks) -> Decision {
        let now = self.advance(now);
        match self.cpus[cpu].running {
            Some(running) => self.pick_again(cpu, running, now),
            None => self.pick_of(cpu, now, self.first(), self.cpus[cpu].waiting.first()),
        }
    }

    /// What a CPU does on which an entity runs.
    #[inline(never)]
    fn pick_again(&mut self, cpu: usize, running: Running, now: Ticks) -> Decision {
        self.settle(cpu, now);
        let is_over = now - running.slice_began >= self.slice;
        let virtual_time = self.entity(running.entity).virtual_time;
        let own = self.cpus[cpu].waiting.first();
        let next = self.first().map(|first| self.preferred(first, own, Some(virtual_time))).filter(|next| {
            // Before its end a slice is cut short only for one that is clearly ahead.
            let margin = if is_over { 0 } else { self.virtual_of(next.entity, self.slice / MARGIN) };
            next.virtual_time + margin < virtual_time
        });
        let Some(next) = next else {
            if is_over && let Some(running) = &mut self.cpus[cpu].running {
                running.slice_began = now;
            }
            return self.go_on(cpu);
        };
        self.cpus[cpu].running = None;
        self.enqueue(running.entity, cpu, now);
        self.dispatch(cpu, next.entity, now, now)
    }

    /// What a CPU does that has no entity. `first` and `own`: the first of all that wait, and of its own queue.
    #[inline]
    fn pick_of(&mut self, cpu: usize, now: Ticks, first: Option<Item>, own: Option<Item>) -> Decision {
        let Some(first) = first else {
            self.idle |= 1 << cpu;
            return Decision { run: None, until: Ticks::MAX };
        };
        self.idle &= !(1 << cpu);
        let next = self.preferred(first, own, None);
        self.dispatch(cpu, next.entity, now, now)
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
    #[inline]
    fn dequeue(&mut self, entity: EntityId, now: Ticks, contended: Ticks) {
        let waiting = &mut self.entities[entity.0 as usize];
        if let State::Waiting(since) = waiting.state {
            waiting.stolen += now - since;
        }
        self.cpus[waiting.home].waiting.remove(entity);
        self.contended.subtract(now, contended);
    }

    /// Runs a waiting entity on this CPU, which has none, in a slice that began at `slice_began`.
    #[inline]
    pub(super) fn dispatch(&mut self, cpu: usize, entity: EntityId, slice_began: Ticks, now: Ticks) -> Decision {
        let contended = self.contended.at(now);
        self.dequeue(entity, now, contended);
        let is_limited = self.contended.is_running();
        let chosen = &mut self.entities[entity.0 as usize];
        (chosen.state, chosen.home) = (State::Running(cpu), cpu);
        let clock = self.groups[chosen.group.0 as usize].clock(contended);
        self.cpus[cpu].running = Some(Running { entity, since: now, clock, slice_began, is_limited });
        Decision { run: Some(entity), until: self.end_of_slice(slice_began, is_limited) }
    }

    /// Charges the entity that runs on this CPU. If the first that waits is ahead by more than it can get by one slice,
    /// the entity asks for more than a CPU, and is lifted.
    #[inline]
    pub(super) fn settle(&mut self, cpu: usize, now: Ticks) {
        let contended = self.contended.at(now);
        let Some(running) = &mut self.cpus[cpu].running else { return };
        let entity = &mut self.entities[running.entity.0 as usize];
        let clock = self.groups[entity.group.0 as usize].clock(contended);
        entity.virtual_time += clock - running.clock;
        entity.ran += now - running.since;
        (running.since, running.clock) = (now, clock);
        let (id, virtual_time) = (running.entity, entity.virtual_time);
        // One that is behind the first is not ahead of it by too much.
        if let Some(first) = self.first().filter(|first| virtual_time < first.virtual_time) {
            self.lift(id, first);
        }
    }

    /// Lifts an entity that is ahead of the first one that waits by more than that can get by one slice.
    #[inline(never)]
    fn lift(&mut self, entity: EntityId, first: Item) {
        let slice = self.virtual_of(first.entity, self.slice + self.slice / STICKINESS);
        let lifted = self.entity(entity);
        lifted.virtual_time = lifted.virtual_time.max(first.virtual_time.saturating_sub(slice));
    }

    /// The decision to go on with the entity that runs on this CPU.
    fn go_on(&mut self, cpu: usize) -> Decision {
        let is_limited = self.contended.is_running();
        let Some(running) = &mut self.cpus[cpu].running else {
            return Decision { run: None, until: Ticks::MAX };
        };
        running.is_limited = is_limited;
        let (entity, slice_began) = (running.entity, running.slice_began);
        Decision { run: Some(entity), until: self.end_of_slice(slice_began, is_limited) }
    }

    /// When the CPU has to call `pick` again.
    #[inline]
    fn end_of_slice(&self, slice_began: Ticks, is_limited: bool) -> Ticks {
        if is_limited { slice_began.saturating_add(self.slice) } else { Ticks::MAX }
    }

    /// The waiting entity that a CPU would run: the first of all, or the first of its own queue if that is not far
    /// behind. `running` is the virtual time of the entity that would have to go, and which a kept one must be ahead of.
    #[inline]
    fn preferred(&self, first: Item, own: Option<Item>, running: Option<Virtual>) -> Item {
        match own {
            Some(own) if own.entity != first.entity && self.is_kept(own, first, running) => own,
            _ => first,
        }
    }

    /// Whether a CPU prefers the first of its own queue.
    #[inline(never)]
    fn is_kept(&self, own: Item, first: Item, running: Option<Virtual>) -> bool {
        let kept = self.virtual_of(own.entity, self.slice / STICKINESS);
        own.virtual_time <= first.virtual_time + kept && running.is_none_or(|running| own.virtual_time < running)
    }

    /// The first of all waiting entities.
    #[inline]
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
    #[inline(always)] // a function of its own would cost each switch of vCPUs
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
