// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine in simulated time: CPUs that do what the scheduler decides, and entities that spin, or run and sleep in
//! turns. Time is in microseconds.

use twofold_vmm::scheduler::{Decision, EntityId, GroupId, Kicks, Scheduler, Ticks, Weight};

/// The slice of all tests, in microseconds.
pub const SLICE: Ticks = 3000;

/// What an entity does.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// It never stops.
    Spin,
    /// It runs for a time between the first two, then sleeps for one between the others.
    Sleep([Ticks; 2], [Ticks; 2]),
}

#[derive(Clone, Debug)]
pub struct Simulated {
    pub id: EntityId,
    pub program: Program,
    /// What it still runs before it sleeps.
    left: Ticks,
    /// When it wakes, if it sleeps.
    wakes: Option<Ticks>,
    /// When it became able to run without a CPU.
    waits_since: Option<Ticks>,
    /// Everything that it ran, and waited, as the machine saw it.
    pub ran: Ticks,
    pub waited: Ticks,
    /// The longest wait for a CPU, and the longest after it woke.
    pub longest_wait: Ticks,
    pub longest_after_waking: Ticks,
    just_woke: bool,
    /// The CPU where it ran last, and how often it got another one, the first one too.
    ran_on: Option<usize>,
    pub moves: u64,
    /// How often it got a CPU.
    pub turns: u64,
}

pub struct Machine {
    pub scheduler: Scheduler,
    pub now: Ticks,
    pub entities: Vec<Simulated>,
    /// What each CPU runs, and until when.
    cpus: Vec<Decision>,
    random: u64,
    /// How often an entity blocked and another one followed by one call.
    pub followed: u64,
    /// How often an entity blocked and nothing followed, and how often one woke and ran on, by one call each.
    pub rested: u64,
    pub resumed: u64,
}

pub fn weight(weight: u32) -> Weight {
    Weight::checked(weight).unwrap()
}

impl Machine {
    /// Creates a machine whose CPUs are idle.
    pub fn new(cpus: usize, seed: u64) -> Self {
        let mut scheduler = Scheduler::new(cpus, SLICE);
        let cpus = (0..cpus).map(|cpu| scheduler.pick(cpu, 0)).collect();
        Self { scheduler, now: 0, entities: Vec::new(), cpus, random: seed | 1, followed: 0, rested: 0, resumed: 0 }
    }

    /// Adds an entity that is woken at once.
    pub fn add(&mut self, group: GroupId, program: Program) -> usize {
        let id = self.scheduler.add(group);
        self.entities.push(Simulated {
            id,
            program,
            left: 0,
            wakes: Some(self.now),
            waits_since: None,
            ran: 0,
            waited: 0,
            longest_wait: 0,
            longest_after_waking: 0,
            just_woke: false,
            ran_on: None,
            moves: 0,
            turns: 0,
        });
        self.entities.len() - 1
    }

    /// Adds a group of its own for each of these.
    pub fn add_each(&mut self, all: impl IntoIterator<Item = (u32, Program)>) {
        for (of_weight, program) in all {
            let group = self.scheduler.add_group(weight(of_weight));
            self.add(group, program);
        }
    }

    /// Lets time pass until `end`.
    pub fn run(&mut self, end: Ticks) {
        while self.now < end {
            self.wake_all_due();
            let next = self.next_event().min(end);
            assert!(next >= self.now);
            self.pass(next - self.now);
            if self.now < end {
                self.events();
            }
        }
    }

    fn next_event(&self) -> Ticks {
        let wakes = self.entities.iter().filter_map(|entity| entity.wakes);
        let sleeps = self.cpus.iter().filter_map(|decision| {
            let entity = &self.entities[self.place(decision.run?)];
            matches!(entity.program, Program::Sleep(..)).then_some(self.now + entity.left)
        });
        let limits = self.cpus.iter().filter(|decision| decision.run.is_some()).map(|decision| decision.until);
        wakes.chain(sleeps).chain(limits).min().unwrap_or(Ticks::MAX)
    }

    fn pass(&mut self, time: Ticks) {
        self.now += time;
        for cpu in 0..self.cpus.len() {
            if let Some(id) = self.cpus[cpu].run {
                let place = self.place(id);
                let entity = &mut self.entities[place];
                entity.ran += time;
                entity.left = entity.left.saturating_sub(time);
            }
        }
    }

    fn events(&mut self) {
        for cpu in 0..self.cpus.len() {
            let Some(id) = self.cpus[cpu].run else { continue };
            let place = self.place(id);
            if let (Program::Sleep(_, sleep), 0) = (self.entities[place].program, self.entities[place].left) {
                let wakes = self.now + self.between(sleep);
                let mut by_one_call = self.scheduler.clone();
                let next = by_one_call.block_for_next(cpu, self.now);
                let mut resting = self.scheduler.clone();
                let rests = resting.block_and_rest(cpu, self.now);
                let is_blocked = self.scheduler.block(cpu, self.now);
                if is_blocked {
                    self.entities[place].wakes = Some(wakes);
                    self.pick(cpu);
                }
                if let Some(next) = next {
                    assert!(is_blocked, "it was woken");
                    let next = Decision { run: Some(next), until: Ticks::MAX };
                    assert_eq!((next, &by_one_call), (self.cpus[cpu], &self.scheduler));
                    self.followed += 1;
                }
                let has_none = is_blocked && self.cpus[cpu].run.is_none();
                assert_eq!(rests, has_none, "one call rests where two calls would leave the CPU without work");
                if rests {
                    assert_eq!(resting, self.scheduler);
                    self.rested += 1;
                }
            } else if self.cpus[cpu].until <= self.now {
                self.pick(cpu);
            }
        }
    }

    fn wake_all_due(&mut self) {
        for place in 0..self.entities.len() {
            if self.entities[place].wakes.is_some_and(|wakes| wakes <= self.now) {
                if let Program::Sleep(run, _) = self.entities[place].program {
                    self.entities[place].left = self.between(run);
                }
                let entity = &mut self.entities[place];
                (entity.wakes, entity.waits_since, entity.just_woke) = (None, Some(self.now), true);
                let (id, before) = (entity.id, self.scheduler.clone());
                let kicks = self.scheduler.wake(id, self.now);
                self.kick(kicks);
                self.check_resume(id, before);
            }
        }
    }

    /// Tries for each CPU whether one call does what the wake-up of this entity, and what followed, have just done.
    fn check_resume(&mut self, id: EntityId, before: Scheduler) {
        for cpu in 0..self.cpus.len() {
            let mut by_one_call = before.clone();
            if by_one_call.resume(id, cpu, self.now) {
                assert_eq!(self.cpus[cpu], Decision { run: Some(id), until: Ticks::MAX });
                assert_eq!(by_one_call, self.scheduler);
                self.resumed += 1;
            }
        }
    }

    pub fn kick(&mut self, kicks: Kicks) {
        (0..self.cpus.len()).filter(|cpu| kicks.0 >> cpu & 1 == 1).for_each(|cpu| self.pick(cpu));
    }

    fn pick(&mut self, cpu: usize) {
        let before = self.cpus[cpu].run;
        let decision = self.scheduler.pick(cpu, self.now);
        self.cpus[cpu] = decision;
        if decision.run == before {
            // A CPU without work before has none now; otherwise it goes on.
            self.started(cpu, decision);
            return;
        }
        if let Some(place) = before.map(|id| self.place(id))
            && self.entities[place].wakes.is_none()
        {
            self.entities[place].waits_since = Some(self.now);
        }
        self.started(cpu, decision);
    }

    fn started(&mut self, cpu: usize, decision: Decision) {
        let now = self.now;
        let Some(place) = decision.run.map(|id| self.place(id)) else { return };
        let entity = &mut self.entities[place];
        if let Some(since) = entity.waits_since.take() {
            let waited = now - since;
            entity.waited += waited;
            entity.longest_wait = entity.longest_wait.max(waited);
            if std::mem::take(&mut entity.just_woke) {
                entity.longest_after_waking = entity.longest_after_waking.max(waited);
            }
            entity.moves += u64::from(entity.ran_on.replace(cpu) != Some(cpu));
            entity.turns += 1;
        }
    }

    fn place(&self, id: EntityId) -> usize {
        self.entities.iter().position(|entity| entity.id == id).unwrap()
    }

    fn between(&mut self, range: [Ticks; 2]) -> Ticks {
        range[0] + self.random() % (range[1] - range[0] + 1)
    }

    pub fn random(&mut self) -> u64 {
        // A linear congruential generator's upper bits.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.random >> 33
    }
}
