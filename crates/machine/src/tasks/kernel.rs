// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's kernel on one vCPU: its scheduler, its timer, and its half of asynchronous page faults.
//!
//! The handler of the PPI has the steps G1 to G10 of `docs/async-page-fault.md`. It reads and writes the area by
//! accesses of the guest, so each of them may fault: the kernel stops at that access, and goes on when it completes.
//! Interrupts are masked from the first to the last of them.
//!
//! **Invariants.** A task is parked only on a token that was announced for the instruction at which it was interrupted,
//! and only where it may sleep. Each token that the kernel read as ready is acknowledged, once.

use twofold_abi::async_fault::{ACKNOWLEDGE, ENABLE, NO_TOKEN, area};

use super::lines::{Line, pstate};
use super::scheduler::{Scheduler, TaskId};
use super::task::{Access, Step, Task};
use super::time::Nanos;

/// A kernel with its tasks.
pub struct Kernel {
    scheduler: Scheduler,
    tasks: Vec<Running>,
    area: Option<Enabled>,
    /// The sequence number of the last announcement.
    handled: u64,
    stage: Option<Stage>,
    counts: KernelCounts,
}

/// How the kernel uses asynchronous page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enabled {
    /// The guest-physical address of this vCPU's area.
    pub area: u64,
    /// The flags of [`ENABLE`].
    pub flags: u64,
}

/// What the kernel counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Tasks that were parked.
    pub parked: u64,
    /// Announcements that parked no task.
    pub declined: u64,
    /// Tasks that woke.
    pub woken: u64,
}

/// What the vCPU does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The current task's step.
    Task(Step),
    /// An access of the kernel, with interrupts masked.
    Access(Access),
    /// A hypercall with these arguments.
    Call([u64; 3]),
    /// The kernel did something that only it sees. `switched`: another task has the vCPU now.
    Inside {
        /// Whether it switched to another task.
        switched: bool,
    },
    /// Nothing is ready: WFI.
    Idle,
}

/// The kernel's instructions, for their faults.
pub const KERNEL_PC: u64 = 0xffff_0000_0000_0000;

struct Running {
    task: Box<dyn Task>,
    /// The step that has not completed.
    step: Option<Step>,
}

/// The kernel's next access or call, with interrupts masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Zeroes this word of the area, before it enables.
    Zero {
        word: u64,
    },
    Enable,
    /// G2.
    NotPresent,
    /// G3 in three steps.
    ReadPc {
        token: u32,
        level: u32,
    },
    ReadSequence {
        token: u32,
        level: u32,
        pc: u64,
    },
    Consume {
        token: u32,
        level: u32,
        pc: u64,
        sequence: u64,
    },
    /// G6.
    Ready,
    /// G7.
    Take {
        token: u32,
    },
    /// G9.
    Acknowledge {
        token: u32,
    },
    /// G10, and the end of the start.
    Schedule,
}

impl Kernel {
    /// A kernel that starts with its first step. It uses asynchronous page faults if `area` says so.
    pub fn new(tasks: Vec<Box<dyn Task>>, area: Option<Enabled>) -> Self {
        let stage = if area.is_some() { Stage::Zero { word: 0 } } else { Stage::Schedule };
        Self {
            scheduler: Scheduler::new(tasks.len()),
            tasks: tasks.into_iter().map(|task| Running { task, step: None }).collect(),
            area,
            handled: 0,
            stage: Some(stage),
            counts: KernelCounts::default(),
        }
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What was counted so far.
    pub fn counts(&self) -> KernelCounts {
        self.counts
    }

    /// The vCPU's PSTATE now.
    pub fn pstate(&self) -> u64 {
        match (self.stage, self.step()) {
            (Some(_), _) => pstate::MASKED,
            (None, Some(step)) => step.privilege.pstate(),
            (None, None) => pstate::KERNEL,
        }
    }

    /// The address of the instruction that is next.
    pub fn pc(&self) -> u64 {
        if self.stage.is_some() { KERNEL_PC } else { self.step().map_or(KERNEL_PC, |step| step.pc) }
    }

    /// What the vCPU does next, if it takes no interrupt first.
    pub fn act(&mut self, now: Nanos) -> Act {
        if let (Some(stage), enabled) = (self.stage, self.area) {
            return self.act_in(stage, enabled, now);
        }
        let Some(TaskId(current)) = self.scheduler.current() else { return Act::Idle };
        let running = &mut self.tasks[current];
        running.step = running.step.or_else(|| running.task.step());
        match running.step {
            Some(step) => Act::Task(step),
            None => {
                self.scheduler.end(now);
                Act::Inside { switched: self.scheduler.switch(now) }
            }
        }
    }

    /// The current task's step has completed.
    pub fn task_did(&mut self) {
        if let Some(TaskId(current)) = self.scheduler.current() {
            self.tasks[current].step = None;
        }
    }

    /// The kernel's access has completed, with the word that it loaded; or its call, with the answer.
    ///
    /// # Errors
    ///
    /// The hypervisor refused the call, with this answer.
    pub fn kernel_did(&mut self, now: Nanos, value: u64) -> Result<(), i64> {
        let Some(stage) = self.stage else { return Ok(()) };
        let low = value as u32;
        self.stage = Some(match stage {
            Stage::Zero { word } if (word + 1) * WORD < area::SIZE => Stage::Zero { word: word + 1 },
            Stage::Zero { .. } => Stage::Enable,
            Stage::Enable | Stage::Acknowledge { .. } if value != 0 => return Err(value as i64),
            Stage::Enable => Stage::Schedule,
            Stage::NotPresent if low == NO_TOKEN => Stage::Ready,
            Stage::NotPresent => Stage::ReadPc { token: low, level: (value >> 32) as u32 },
            Stage::ReadPc { token, level } => Stage::ReadSequence { token, level, pc: value },
            Stage::ReadSequence { token, level, pc } => Stage::Consume { token, level, pc, sequence: value },
            Stage::Consume { token, level, pc, sequence } => {
                self.park(now, token, (level, pc), sequence);
                Stage::Ready
            }
            Stage::Ready if low == NO_TOKEN => Stage::Schedule,
            Stage::Ready => Stage::Take { token: low },
            Stage::Take { token } => {
                self.counts.woken += self.scheduler.wake(now, token) as u64;
                Stage::Acknowledge { token }
            }
            Stage::Acknowledge { .. } => Stage::Ready,
            Stage::Schedule => Stage::Schedule,
        });
        Ok(())
    }

    /// The vCPU takes an interrupt. Returns whether the handler switched to another task.
    pub fn take(&mut self, now: Nanos, line: Line) -> bool {
        match line {
            Line::Timer if self.may_switch() => self.scheduler.switch(now),
            Line::Timer => {
                self.scheduler.renew(now);
                false
            }
            Line::Ppi => {
                self.stage = Some(Stage::NotPresent);
                false
            }
        }
    }

    /// G4 and G5.
    fn park(&mut self, now: Nanos, token: u32, announced: (u32, u64), sequence: u64) {
        let is_new = sequence > self.handled;
        self.handled = self.handled.max(sequence);
        let interrupted = self.step().map(|step| (step.privilege.level(), step.pc));
        if is_new && interrupted == Some(announced) && self.may_switch() {
            self.scheduler.park(now, token);
            self.counts.parked += 1;
        } else {
            self.counts.declined += 1;
        }
    }

    fn act_in(&mut self, stage: Stage, enabled: Option<Enabled>, now: Nanos) -> Act {
        let Enabled { area, flags } = enabled.unwrap_or(Enabled { area: 0, flags: 0 });
        let load = |offset: usize| Act::Access(Access::Load { at: area + offset as u64 });
        let store = |offset: usize, value| Act::Access(Access::Store { at: area + offset as u64, value });
        match stage {
            Stage::Zero { word } => store((word * WORD) as usize, 0),
            Stage::Enable => Act::Call([ENABLE.into(), area, flags]),
            Stage::NotPresent => load(area::NOT_PRESENT),
            Stage::ReadPc { .. } => load(area::PC),
            Stage::ReadSequence { .. } => load(area::SEQUENCE),
            // One store for both fields of the word: the level is the hypervisor's, and is read.
            Stage::Consume { level, .. } => store(area::NOT_PRESENT, u64::from(level) << 32),
            Stage::Ready => load(area::READY),
            Stage::Take { .. } => store(area::READY, 0),
            Stage::Acknowledge { token } => Act::Call([ACKNOWLEDGE.into(), token.into(), 0]),
            Stage::Schedule => {
                self.stage = None;
                let is_due =
                    self.scheduler.current().is_none() || self.may_switch() && self.scheduler.would_switch(now);
                Act::Inside { switched: is_due && self.scheduler.switch(now) }
            }
        }
    }

    /// The current task's step that has not completed.
    fn step(&self) -> Option<Step> {
        self.tasks[self.scheduler.current()?.0].step
    }

    fn may_switch(&self) -> bool {
        self.step().is_none_or(|step| step.privilege.may_sleep())
    }
}

/// Bytes of an access.
const WORD: u64 = 8;

const _: () =
    assert!(area::LEVEL == area::NOT_PRESENT + 4 && area::READY.is_multiple_of(8) && area::PC.is_multiple_of(8));
