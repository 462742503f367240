// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which task of a vCPU is next: the rule of the hosted machine's guest (`twofold_machine::tasks`).
//!
//! Each task has a *turn*: the time that it has been the current one. The ready task of the smallest turn runs next, and ties
//! go in the order of the last run. Task 0 is what the vCPU does when no other is ready; it never parks, and has no turn.
//!
//! Invariants: the current task is ready. A parked task becomes ready by its token, or by wake-all.

use twofold_abi::async_fault::WAKE_ALL;

/// The most tasks of a vCPU, with task 0.
pub const MOST: usize = 9;

/// The tasks of a vCPU.
pub struct Scheduler {
    pub tasks: [Task; MOST],
    count: usize,
    pub current: usize,
    /// When the current task was last charged, and when it got the vCPU.
    charged: u64,
    began: u64,
    switches: u64,
}

#[derive(Clone, Copy)]
pub struct Task {
    state: State,
    turn: u64,
    ran: u64,
    /// Where its registers are, while it is not the current one.
    pub stack: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Parked { token: u32 },
    Ended,
}

impl Scheduler {
    /// No task but task 0.
    pub const fn new() -> Self {
        let none = Task { state: State::Ended, turn: 0, ran: 0, stack: 0 };
        Self { tasks: [none; MOST], count: 1, current: 0, charged: 0, began: 0, switches: 0 }
    }

    /// Adds a task that is ready, with its registers at `stack`.
    pub fn add(&mut self, stack: u64) {
        if let Some(task) = self.tasks.get_mut(self.count) {
            *task = Task { state: State::Ready, turn: 0, ran: 0, stack };
            self.count += 1;
        }
    }

    /// Time begins.
    pub fn begin(&mut self, now: u64) {
        (self.charged, self.began) = (now, now);
    }

    /// Chooses the current task. Returns when its slice ends, if another one is ready.
    pub fn choose(&mut self, now: u64, slice: u64) -> Option<u64> {
        self.charge(now);
        let next = self.next();
        let is_over = now.wrapping_sub(self.began) >= slice;
        let gives_way =
            self.current == 0 || self.tasks[self.current].state != State::Ready || is_over || self.is_behind(next);
        if gives_way {
            self.began = now;
            if next != self.current {
                self.current = next;
                self.switches += 1;
                self.tasks[next].ran = self.switches;
            }
        }
        let ready = self.each().filter(|task| task.state == State::Ready).count();
        (ready > 1).then(|| self.began + slice)
    }

    /// Parks the current task until its token is ready.
    pub fn park(&mut self, now: u64, token: u32) {
        self.charge(now);
        self.tasks[self.current].state = State::Parked { token };
    }

    /// Ends the current task.
    pub fn end(&mut self, now: u64) {
        self.charge(now);
        self.tasks[self.current].state = State::Ended;
    }

    /// Wakes the task that waits for the token, or all for wake-all. Returns how many woke. A task that slept gains a slice at
    /// most.
    pub fn wake(&mut self, now: u64, token: u32, slice: u64) -> u64 {
        self.charge(now);
        let least = self.each().filter(|task| task.state == State::Ready).map(|task| task.turn).min();
        let floor = least.map_or(0, |turn| turn.saturating_sub(slice));
        let mut woken = 0;
        for task in &mut self.tasks[1..self.count] {
            if matches!(task.state, State::Parked { token: on } if on == token || token == WAKE_ALL) {
                (task.state, task.turn) = (State::Ready, task.turn.max(floor));
                woken += 1;
            }
        }
        woken
    }

    /// Whether every task but task 0 has ended.
    pub fn is_over(&self) -> bool {
        self.each().all(|task| task.state == State::Ended)
    }

    fn each(&self) -> impl Iterator<Item = &Task> {
        self.tasks[1..self.count].iter()
    }

    fn charge(&mut self, now: u64) {
        self.tasks[self.current].turn += now.wrapping_sub(self.charged);
        self.charged = now;
    }

    /// Whether the current task has had more than the next one, by enough to give way in the middle of its slice.
    fn is_behind(&self, next: usize) -> bool {
        self.tasks[next].turn < self.tasks[self.current].turn
    }

    /// The ready task of the smallest turn; of equals, the one that ran longest ago. Task 0 if none is ready.
    fn next(&self) -> usize {
        let ready = (1..self.count).filter(|at| self.tasks[*at].state == State::Ready);
        ready.min_by_key(|at| (self.tasks[*at].turn, self.tasks[*at].ran, *at)).unwrap_or(0)
    }
}
