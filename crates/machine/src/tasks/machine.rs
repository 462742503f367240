// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: vCPUs with clocks of their own, and the order in which events happen.
//!
//! * M1: the next event is the earliest of the vCPUs' and the store's. At the same moment the store comes first, then
//!   the vCPU of the lowest number.
//! * M2: a completion kicks its vCPU. If that vCPU waits, its clock goes to the moment of the completion. If it is in
//!   its guest, its clock is there already, and it leaves before its next step.
//! * M3: a vCPU in its guest leaves it for a kick, then for its timer. Otherwise it takes an interrupt, or does one
//!   step.
//! * M4: each exit goes by `before_entry` back to the guest, or into a wait.
//!
//! A step is the shortest time, so an event is late by less than one step. All that is random comes from the tasks, so
//! equal machines have equal runs.
//!
//! **No task is lost.** If no event is left although a task has not ended, the run ends with [`MachineError::Stuck`]. So
//! a lost token, kick or interrupt is an error, and not an idle guest.

use twofold_memory::async_fault::{Completion, Mode};
use twofold_memory::{Error, GuestFault, GuestMemory};
use twofold_stage2::Ipa;

use super::costs::Costs;
use super::kernel::{Act, Enabled, Kernel, KernelCounts};
use super::pager::{Paged, Pager};
use super::seats::Seats;
use super::task::{Access, Task};
use super::time::Nanos;
use super::vcpu::{Place, TaskVcpu, VcpuCounts};
use crate::fast::VcpuError;
use crate::program::Exit;
use crate::vm::{Cpu, stage2_fault};

/// A machine that runs tasks in virtual time.
pub struct TaskMachine<'m, C: Cpu, P: Pager> {
    seats: Seats<'m, C>,
    pager: P,
    vcpus: Vec<TaskVcpu<P::Memory>>,
    costs: Costs,
}

/// What a vCPU of the guest has.
pub struct VcpuTasks {
    /// Its tasks.
    pub tasks: Vec<Box<dyn Task>>,
    /// Its asynchronous page faults, if its kernel uses them.
    pub enabled: Option<Enabled>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// Its time is over.
    Time,
    /// Every task has ended.
    Tasks,
}

/// Why a run cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// There are no CPUs, or no vCPUs.
    #[error("a machine needs at least one CPU and one vCPU")]
    Empty,
    /// The CPU cannot enter the guest.
    #[error(transparent)]
    Cpu(#[from] VcpuError),
    /// The guest's memory cannot answer a fault.
    #[error("{fault:x?}: {error}")]
    Memory {
        /// The fault.
        fault: GuestFault,
        /// The reason.
        error: Error,
    },
    /// A task touched what is no memory.
    #[error("vCPU {vcpu}: there is no memory at {ipa}")]
    NoMemory {
        /// The vCPU.
        vcpu: usize,
        /// The address.
        ipa: Ipa,
    },
    /// An exit that tasks never cause.
    #[error("vCPU {vcpu}: {exit:?}")]
    Exit {
        /// The vCPU.
        vcpu: usize,
        /// The exit.
        exit: Exit,
    },
    /// The hypervisor refused a call of the guest's kernel.
    #[error("vCPU {vcpu}: a call of the guest's kernel returned {answer}")]
    Call {
        /// The vCPU.
        vcpu: usize,
        /// The answer.
        answer: i64,
    },
    /// The store cannot bring a page, and no vCPU has anything else to do.
    #[error("vCPU {vcpu} is stopped: the store cannot bring the page at {page}")]
    Stopped {
        /// The vCPU.
        vcpu: usize,
        /// The page.
        page: Ipa,
    },
    /// Nothing will ever happen, and tasks have not ended.
    #[error("no event is left, {parked} tasks are parked, and vCPU {vcpu} has not ended its tasks")]
    Stuck {
        /// The first such vCPU.
        vcpu: usize,
        /// The tasks that wait for tokens.
        parked: usize,
    },
}

/// What a machine counted, for all its vCPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the hypervisor.
    pub vcpus: VcpuCounts,
    /// By the guest.
    pub kernels: KernelCounts,
    /// The guest's switches from one task to another.
    pub switches: u64,
}

impl<'m, C: Cpu, P: Pager> TaskMachine<'m, C, P> {
    /// A machine whose vCPUs start their kernels now. `cpus`: one for each vCPU, or fewer that they share.
    ///
    /// # Errors
    ///
    /// There are no CPUs, or no vCPUs.
    pub fn new(
        cpus: &'m [C],
        memory: &'m GuestMemory<C::Host>,
        pager: P,
        mode: Mode,
        vcpus: Vec<VcpuTasks>,
    ) -> Result<Self, MachineError> {
        if cpus.is_empty() || vcpus.is_empty() {
            return Err(MachineError::Empty);
        }
        let seats = Seats::new(cpus, memory, vcpus.len());
        let vcpus = vcpus.into_iter().enumerate().map(|(number, VcpuTasks { tasks, enabled })| {
            TaskVcpu::new(number, mode, Kernel::new(tasks, enabled), Nanos::ZERO)
        });
        Ok(Self { seats, pager, vcpus: vcpus.collect(), costs: Costs::STATED })
    }

    /// The same machine with other prices.
    #[must_use]
    pub fn with_costs(self, costs: Costs) -> Self {
        Self { costs, ..self }
    }

    /// Runs the guest until this moment, or until every task has ended.
    ///
    /// # Errors
    ///
    /// The run cannot go on. After [`MachineError::Stopped`] it can when the store works again
    /// ([`retry_failed`](Self::retry_failed)).
    pub fn run(&mut self, until: Nanos) -> Result<Ended, MachineError> {
        loop {
            let vcpu = self.vcpus.iter().filter_map(|vcpu| Some((vcpu.next()?, vcpu.number))).min();
            let arrival = self.pager.next().filter(|at| vcpu.is_none_or(|(next, _)| *at <= next));
            match (arrival, vcpu) {
                (Some(at), _) if at < until => self.arrive(at),
                (None, Some((at, vcpu))) if at < until => self.turn(vcpu)?,
                (None, None) => return self.ended(),
                _ => return Ok(Ended::Time),
            }
        }
    }

    /// The store works again. Asks for the pages that failed.
    pub fn retry_failed(&mut self) {
        let Self { pager, vcpus, .. } = self;
        vcpus.iter_mut().for_each(|vcpu| vcpu.retry_failed(pager));
    }

    /// The memory with its store.
    pub fn pager(&mut self) -> &mut P {
        &mut self.pager
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.vcpus.iter().fold(Counts::default(), |sum, vcpu| sum.and(vcpu.counts, &vcpu.kernel))
    }

    /// M2.
    fn arrive(&mut self, at: Nanos) {
        let Some((request, arrival)) = self.pager.arrive() else { return };
        let Some(vcpu) = self.vcpus.get_mut(request.vcpu) else { return };
        match vcpu.arrivals().complete(request.ticket, arrival) {
            Completion::Stale => return,
            Completion::Noted => {}
            Completion::Kick => {
                vcpu.kicked = true;
                vcpu.wake(at, self.costs.wake);
            }
        }
        vcpu.counts.pages += 1;
    }

    /// M3 and M4.
    fn turn(&mut self, number: usize) -> Result<(), MachineError> {
        let Self { seats, pager, vcpus, costs } = self;
        let vcpu = &mut vcpus[number];
        match vcpu.place {
            Place::Guest => {}
            Place::Entering => {
                vcpu.kicked = false;
                vcpu.enter(pager);
                return Ok(());
            }
            Place::Halted { .. } | Place::Idle { .. } => {
                // The timer wakes it: `next` returned its deadline.
                let at = vcpu.lines.deadline().unwrap_or(vcpu.clock);
                vcpu.wake(at, costs.wake);
                return Ok(());
            }
            Place::Stopped { .. } => return Ok(()),
        }
        if std::mem::take(&mut vcpu.kicked) || vcpu.lines.fire(vcpu.clock) {
            vcpu.exit(costs.exit);
            vcpu.enter(pager);
            return Ok(());
        }
        if vcpu.lines.can_take(vcpu.kernel.pstate()) {
            if let Some(line) = vcpu.lines.acknowledge() {
                let switched = vcpu.kernel.take(vcpu.clock, line);
                vcpu.clock += costs.interrupt;
                vcpu.switched(switched, costs.switch);
            }
            return Ok(());
        }
        match vcpu.kernel.act(vcpu.clock) {
            Act::Task(step) => match access(seats, vcpu, step.access)? {
                Ok(_) => {
                    vcpu.clock += step.cost;
                    vcpu.kernel.task_did();
                }
                Err(exit) => fault(seats, pager, vcpu, exit, costs)?,
            },
            Act::Access(of_kernel) => match access(seats, vcpu, of_kernel)? {
                Ok(loaded) => did(vcpu, loaded)?,
                Err(exit) => fault(seats, pager, vcpu, exit, costs)?,
            },
            Act::Call(arguments) => {
                vcpu.exit(costs.exit);
                let answer = vcpu.call(pager, arguments).unwrap_or(NOT_SUPPORTED);
                did(vcpu, answer as u64)?;
                vcpu.enter(pager);
            }
            Act::Inside { switched } => vcpu.switched(switched, costs.switch),
            Act::Idle => {
                vcpu.exit(costs.exit);
                vcpu.place = Place::Idle { since: vcpu.clock };
            }
        }
        Ok(())
    }

    /// No event is left.
    fn ended(&self) -> Result<Ended, MachineError> {
        for vcpu in &self.vcpus {
            if let Place::Stopped { page } = vcpu.place {
                return Err(MachineError::Stopped { vcpu: vcpu.number, page });
            }
        }
        match self.vcpus.iter().find(|vcpu| !vcpu.kernel.scheduler().is_over()) {
            None => Ok(Ended::Tasks),
            Some(vcpu) => {
                let parked = self.vcpus.iter().map(|vcpu| vcpu.kernel.scheduler().parked()).sum();
                Err(MachineError::Stuck { vcpu: vcpu.number, parked })
            }
        }
    }
}

const NOT_SUPPORTED: i64 = twofold_abi::async_fault::NOT_SUPPORTED;

fn access<C: Cpu, M: twofold_memory::async_fault::AreaMemory>(
    seats: &mut Seats<'_, C>,
    vcpu: &TaskVcpu<M>,
    access: Access,
) -> Result<Result<u64, Exit>, VcpuError> {
    if access == Access::No { Ok(Ok(0)) } else { seats.access(vcpu.number, access) }
}

/// The kernel's access or call has completed.
fn did<M: twofold_memory::async_fault::AreaMemory>(vcpu: &mut TaskVcpu<M>, value: u64) -> Result<(), MachineError> {
    vcpu.kernel.kernel_did(vcpu.clock, value).map_err(|answer| MachineError::Call { vcpu: vcpu.number, answer })
}

/// An access left the guest.
fn fault<C: Cpu, P: Pager>(
    seats: &mut Seats<'_, C>,
    pager: &mut P,
    vcpu: &mut TaskVcpu<P::Memory>,
    exit: Exit,
    costs: &Costs,
) -> Result<(), MachineError> {
    let other = MachineError::Exit { vcpu: vcpu.number, exit };
    let Exit::Abort(abort) = exit else { return Err(other) };
    let guest = seats.seat(vcpu.number)?;
    let fault = stage2_fault(guest, &abort).ok_or(other)?;
    vcpu.clock += costs.fault;
    vcpu.counts.faults += 1;
    // If the guest changed its stage 1 meanwhile, it repeats the access.
    let Some(fault) = fault else { return Ok(()) };
    match pager.fault(vcpu.clock, &fault).map_err(|error| MachineError::Memory { fault, error })? {
        Paged::Retry => vcpu.enter(pager),
        Paged::Absent(absent) => vcpu.fault(pager, &absent),
        Paged::NoMemory => return Err(MachineError::NoMemory { vcpu: vcpu.number, ipa: fault.ipa }),
    }
    Ok(())
}

impl Counts {
    fn and(self, vcpu: VcpuCounts, kernel: &Kernel) -> Self {
        let (one, other) = (self.vcpus, kernel.counts());
        Self {
            vcpus: VcpuCounts {
                faults: one.faults + vcpu.faults,
                exits: one.exits + vcpu.exits,
                pages: one.pages + vcpu.pages,
                announced: one.announced + vcpu.announced,
                halts: one.halts + vcpu.halts,
                halted: one.halted + vcpu.halted,
                idle: one.idle + vcpu.idle,
            },
            kernels: KernelCounts {
                parked: self.kernels.parked + other.parked,
                declined: self.kernels.declined + other.declined,
                woken: self.kernels.woken + other.woken,
            },
            switches: self.switches + kernel.scheduler().switches(),
        }
    }
}
