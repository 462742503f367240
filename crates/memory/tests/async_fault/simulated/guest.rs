// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with a few tasks on one vCPU, which follows the pseudo-code of `docs/async-page-fault.md`. Its kernel runs
//! in small steps, so anything may happen between two of them.

use std::collections::VecDeque;

use twofold_abi::async_fault::{NO_TOKEN, WAKE_ALL, area};

use crate::rig::Ram;

/// The kernel's own instructions.
pub const KERNEL_PC: u64 = 0xffff_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    User,
    /// The kernel on the task's behalf, with interrupts.
    Kernel,
    /// The same with interrupts masked.
    Masked,
}

#[derive(Clone, Debug)]
pub struct Task {
    pub accesses: Vec<(u64, Kind)>,
    pub done: usize,
    /// The token that it waits for.
    pub parked: Option<u32>,
}

impl Task {
    fn is_runnable(&self) -> bool {
        self.parked.is_none() && self.done < self.accesses.len()
    }
}

/// A step of the kernel, with interrupts masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Touch(u64),
    Switch,
    SwitchIfParked,
    Announcement,
    Ready,
    Acknowledge(u32),
}

/// What the guest does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It touches a page. `None` is the area's.
    Touch(Option<u64>, Access),
    Acknowledge(u32),
    /// It did something that the machine does not see.
    Inside,
    TakeInterrupt,
    Idle,
}

/// Where an access is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub pc: u64,
    pub kind: Kind,
}

pub struct Guest {
    pub tasks: Vec<Task>,
    pub current: Option<usize>,
    pub kernel: VecDeque<Step>,
    /// Where the interrupt came: exception level and PC.
    interrupted: Option<(u32, u64)>,
    handled: u64,
    pub ppi: bool,
    pub timer: bool,
    /// Which of the two is taken first.
    pub timer_first: bool,
    /// A page that the timer's handler touches.
    pub timer_page: Option<u64>,
    pub parked: usize,
    pub declined: usize,
    pub woken_by_all: usize,
}

impl Guest {
    pub fn new(tasks: Vec<Task>) -> Self {
        Self {
            tasks,
            current: None,
            kernel: VecDeque::new(),
            interrupted: None,
            handled: 0,
            ppi: false,
            timer: false,
            timer_first: true,
            timer_page: None,
            parked: 0,
            declined: 0,
            woken_by_all: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        self.kernel.is_empty() && self.tasks.iter().all(|task| task.done == task.accesses.len())
    }

    pub fn is_masked(&self) -> bool {
        !self.kernel.is_empty()
    }

    pub fn can_take_interrupt(&self) -> bool {
        !self.is_masked() && (self.ppi || self.timer)
    }

    /// What the guest does next. A step that touches nothing, or RAM that is present, is done here.
    pub fn act(&mut self, ram: &Ram, is_present: impl Fn(u64) -> bool) -> Act {
        if let Some(step) = self.kernel.front().copied() {
            return self.step(step, ram, is_present);
        }
        if self.can_take_interrupt() {
            self.take_interrupt();
            return Act::TakeInterrupt;
        }
        let Some(current) = self.current.filter(|current| self.tasks[*current].is_runnable()) else {
            self.switch();
            return if self.current.is_some() { Act::Inside } else { Act::Idle };
        };
        let task = &mut self.tasks[current];
        let (page, kind) = task.accesses[task.done];
        if kind == Kind::Masked {
            task.done += 1;
            self.kernel.push_back(Step::Touch(page));
            return Act::Inside;
        }
        if is_present(page) {
            task.done += 1;
            return Act::Inside;
        }
        Act::Touch(Some(page), Access { pc: pc(task.done), kind })
    }

    fn step(&mut self, step: Step, ram: &Ram, is_present: impl Fn(u64) -> bool) -> Act {
        let masked = Access { pc: KERNEL_PC, kind: Kind::Masked };
        match step {
            Step::Touch(page) if !is_present(page) => return Act::Touch(Some(page), masked),
            Step::Announcement | Step::Ready if ram.absent.get() => return Act::Touch(None, masked),
            Step::Acknowledge(token) => {
                self.kernel[0] = Step::Ready;
                return Act::Acknowledge(token);
            }
            _ => {}
        }
        self.kernel.pop_front();
        match step {
            Step::Announcement => self.read_announcement(ram),
            Step::Ready => self.read_ready(ram),
            Step::Switch => self.switch(),
            Step::SwitchIfParked if self.current.is_some_and(|current| !self.tasks[current].is_runnable()) => {
                self.switch();
            }
            Step::Touch(_) | Step::SwitchIfParked | Step::Acknowledge(_) => {}
        }
        Act::Inside
    }

    /// G2 to G5 of the document.
    fn read_announcement(&mut self, ram: &Ram) {
        let token = ram.u32(area::NOT_PRESENT);
        if token == NO_TOKEN {
            return;
        }
        let at = (ram.u32(area::LEVEL), ram.u64(area::PC));
        let sequence = ram.u64(area::SEQUENCE);
        ram.set_u32(area::NOT_PRESENT, NO_TOKEN);
        assert!(sequence > self.handled, "announcement {sequence} after {}", self.handled);
        self.handled = sequence;
        match self.current {
            Some(current) if self.interrupted == Some(at) => {
                self.tasks[current].parked = Some(token);
                self.parked += 1;
            }
            _ => self.declined += 1,
        }
    }

    /// G6 to G9 of the document.
    fn read_ready(&mut self, ram: &Ram) {
        let token = ram.u32(area::READY);
        if token == NO_TOKEN {
            return;
        }
        ram.set_u32(area::READY, NO_TOKEN);
        self.wake(token);
        self.kernel.push_front(Step::Acknowledge(token));
    }

    pub fn wake(&mut self, token: u32) {
        for task in &mut self.tasks {
            if task.parked.is_some_and(|parked| parked == token || token == WAKE_ALL) {
                task.parked = None;
                self.woken_by_all += usize::from(token == WAKE_ALL);
            }
        }
    }

    fn take_interrupt(&mut self) {
        self.interrupted = self.current.map(|current| {
            let task = &self.tasks[current];
            let kind = task.accesses.get(task.done).map_or(Kind::Masked, |(_, kind)| *kind);
            (u32::from(kind != Kind::User), pc(task.done))
        });
        if self.timer && (self.timer_first || !self.ppi) {
            self.timer = false;
            self.kernel.extend(self.timer_page.map(Step::Touch));
            self.kernel.push_back(Step::Switch);
        } else {
            self.ppi = false;
            self.kernel.extend([Step::Announcement, Step::Ready, Step::SwitchIfParked]);
        }
    }

    /// The next runnable task in turn, or none.
    fn switch(&mut self) {
        let (count, last) = (self.tasks.len(), self.current.unwrap_or(0));
        self.current = (1..=count).map(|by| (last + by) % count).find(|task| self.tasks[*task].is_runnable());
    }

    /// A kernel that has just booted, with the same work to do.
    pub fn reset(&mut self) {
        self.kernel.clear();
        (self.ppi, self.timer, self.current) = (false, false, None);
        self.wake(WAKE_ALL);
    }
}

/// All tasks run the same program, so an announced PC can be another task's.
fn pc(done: usize) -> u64 {
    0x1000 + (done as u64 % 3) * 4
}
