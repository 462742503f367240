// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's scheduler on one vCPU: pre-emptive and fair, with tasks that sleep on tokens.
//!
//! Each task has a *turn*: the time that it has been the current task. The ready task of the smallest turn runs next,
//! and ties go in order of the last run. A task keeps the vCPU for a slice, unless a task wakes whose turn is smaller.
//! That is the rule of Linux's schedulers since 2007, without weights.
//!
//! The scheduler reads the guest's clock, so time that the vCPU spends outside the guest is charged to the current
//! task. A guest without steal time does the same. This is why a task that faults in mode `off` pays for its pages.
//!
//! **Invariants.** The current task is ready: it is not parked. A parked task becomes ready by its token, by wake-all,
//! and by nothing else. A task that slept gains at most one slice over the others by it.

use twofold_abi::async_fault::WAKE_ALL;

use super::time::Nanos;

/// How long a task runs while another one is ready: the tick of a guest with HZ=250.
pub const SLICE: Nanos = Nanos::millis(4);

/// A task's place in its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(super) usize);

/// The tasks of one vCPU.
#[derive(Clone, Debug)]
pub struct Scheduler {
    tasks: Vec<Entry>,
    current: Option<TaskId>,
    /// When the current task was last charged.
    charged: Nanos,
    /// When the current task got the vCPU.
    began: Nanos,
    /// Goes up with each switch, so that ties have an order.
    switches: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    turn: Nanos,
    /// The switch that last gave it the vCPU.
    ran: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Parked { token: u32 },
    Ended,
}

impl Scheduler {
    /// A scheduler with this many tasks, all ready, none current.
    pub fn new(tasks: usize) -> Self {
        let ready = Entry { state: State::Ready, turn: Nanos::ZERO, ran: 0 };
        let (charged, began) = (Nanos::ZERO, Nanos::ZERO);
        Self { tasks: vec![ready; tasks], current: None, charged, began, switches: 0 }
    }

    /// The task that has the vCPU.
    pub fn current(&self) -> Option<TaskId> {
        self.current
    }

    /// Gives the vCPU to the task that is next. Returns whether that is another task than before.
    pub fn switch(&mut self, now: Nanos) -> bool {
        self.charge(now);
        let next = self.next();
        self.began = now;
        if next == self.current {
            return false;
        }
        self.current = next;
        self.switches += 1;
        if let Some(TaskId(task)) = next {
            self.tasks[task].ran = self.switches;
        }
        true
    }

    /// Gives the current task a new slice: it may not lose the vCPU now.
    pub fn renew(&mut self, now: Nanos) {
        self.began = now;
    }

    /// Parks the current task until its token is ready. Then no task is current, until the next switch.
    pub fn park(&mut self, now: Nanos, token: u32) {
        self.leave(now, State::Parked { token });
    }

    /// Ends the current task. Then no task is current, until the next switch.
    pub fn end(&mut self, now: Nanos) {
        self.leave(now, State::Ended);
    }

    /// Wakes the task that waits for the token, or all for wake-all. Returns how many woke.
    pub fn wake(&mut self, now: Nanos, token: u32) -> usize {
        self.charge(now);
        let floor = self.least(|state| state == State::Ready).map_or(Nanos::ZERO, |turn| turn - SLICE);
        let sleeps = |state| matches!(state, State::Parked { token: on } if on == token || token == WAKE_ALL);
        let woken = self.tasks.iter_mut().filter(|entry| sleeps(entry.state));
        woken.map(|entry| (entry.state, entry.turn) = (State::Ready, entry.turn.max(floor))).count()
    }

    /// Whether a switch now would give the vCPU to a task with a smaller turn.
    pub fn would_switch(&mut self, now: Nanos) -> bool {
        self.charge(now);
        self.next() != self.current
    }

    /// When the current task's slice ends; `None` if no other task is ready.
    pub fn deadline(&self) -> Option<Nanos> {
        let is_ready = |entry: &&Entry| entry.state == State::Ready;
        (self.current.is_some() && self.tasks.iter().filter(is_ready).count() > 1).then(|| self.began + SLICE)
    }

    /// The number of tasks that wait for tokens.
    pub fn parked(&self) -> usize {
        self.tasks.iter().filter(|entry| matches!(entry.state, State::Parked { .. })).count()
    }

    /// Whether every task has ended.
    pub fn is_over(&self) -> bool {
        self.tasks.iter().all(|entry| entry.state == State::Ended)
    }

    /// How long a task has been the current one, up to the last charge.
    pub fn turn(&self, task: TaskId) -> Nanos {
        self.tasks[task.0].turn
    }

    /// The number of switches so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    fn leave(&mut self, now: Nanos, state: State) {
        self.charge(now);
        if let Some(TaskId(task)) = self.current.take() {
            self.tasks[task].state = state;
        }
    }

    fn charge(&mut self, now: Nanos) {
        if let Some(TaskId(task)) = self.current {
            self.tasks[task].turn += now - self.charged;
        }
        self.charged = now;
    }

    /// The ready task of the smallest turn; of equals, the one that ran longest ago.
    fn next(&self) -> Option<TaskId> {
        let ready = self.tasks.iter().enumerate().filter(|(_, entry)| entry.state == State::Ready);
        let first = |(at, entry): &(usize, &Entry)| (entry.turn, entry.ran, *at);
        ready.min_by_key(first).map(|(at, _)| TaskId(at))
    }

    fn least(&self, is: impl Fn(State) -> bool) -> Option<Nanos> {
        self.tasks.iter().filter(|entry| is(entry.state)).map(|entry| entry.turn).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::millis;

    fn running(tasks: usize) -> Scheduler {
        let mut scheduler = Scheduler::new(tasks);
        assert!(scheduler.switch(MS(0)));
        scheduler
    }

    #[test]
    fn equal_tasks_take_turns_by_slices() {
        let mut scheduler = running(3);
        let mut order = Vec::new();
        for slice in 1..=6 {
            order.push(scheduler.current().unwrap().0);
            assert_eq!(scheduler.deadline(), Some(MS(4 * slice)));
            assert!(scheduler.switch(MS(4 * slice)));
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_task_alone_has_no_slice() {
        let mut scheduler = running(2);
        scheduler.park(MS(1), 7);
        assert!(scheduler.switch(MS(1)));
        assert_eq!((scheduler.current(), scheduler.deadline()), (Some(TaskId(1)), None));
        assert_eq!(scheduler.wake(MS(2), 7), 1);
        assert_eq!(scheduler.deadline(), Some(MS(5)), "its slice began when it got the vCPU");
    }

    #[test]
    fn time_outside_the_guest_is_charged_to_the_current_task() {
        let mut scheduler = running(2);
        // Task 0 faulted, and the vCPU came back after 10 ms.
        assert!(scheduler.switch(MS(10)));
        assert_eq!(scheduler.turn(TaskId(0)), MS(10));
        for (now, switched) in [(14, false), (18, false), (22, true)] {
            assert_eq!(scheduler.switch(MS(now)), switched, "at {now} ms");
        }
        assert_eq!(scheduler.current(), Some(TaskId(0)), "task 1 had its 10 ms");
    }

    #[test]
    fn a_task_wakes_by_its_own_token_only() {
        let mut scheduler = running(3);
        for token in [5, 6] {
            scheduler.park(MS(0), token);
            scheduler.switch(MS(0));
        }
        assert_eq!((scheduler.parked(), scheduler.wake(MS(1), 9)), (2, 0));
        assert_eq!(scheduler.wake(MS(1), 5), 1);
        assert_eq!((scheduler.parked(), scheduler.wake(MS(1), 5)), (1, 0), "once");
        assert_eq!(scheduler.wake(MS(1), WAKE_ALL), 1);
        assert_eq!(scheduler.parked(), 0);
    }

    #[test]
    fn a_task_that_slept_runs_at_once_and_keeps_little_of_it() {
        let mut scheduler = running(2);
        scheduler.park(MS(0), 5);
        scheduler.switch(MS(0));
        scheduler.wake(MS(1000), 5);
        assert!(scheduler.would_switch(MS(1000)));
        assert!(scheduler.switch(MS(1000)));
        assert_eq!((scheduler.current(), scheduler.turn(TaskId(0))), (Some(TaskId(0)), MS(996)));
        // It gained one slice, not the second that it slept.
        assert!(!scheduler.would_switch(MS(1003)));
        assert!(scheduler.would_switch(MS(1005)));
    }

    #[test]
    fn no_task_is_current_when_all_sleep_or_have_ended() {
        let mut scheduler = running(2);
        scheduler.park(MS(1), 5);
        assert!(scheduler.switch(MS(1)));
        scheduler.end(MS(2));
        assert_eq!((scheduler.switch(MS(2)), scheduler.current(), scheduler.deadline()), (false, None, None));
        assert!(!scheduler.is_over());
        scheduler.wake(MS(3), WAKE_ALL);
        assert!(scheduler.switch(MS(3)));
        scheduler.end(MS(4));
        assert!(scheduler.is_over());
        assert_eq!(scheduler.wake(MS(5), WAKE_ALL), 0, "an ended task stays so");
    }
}
