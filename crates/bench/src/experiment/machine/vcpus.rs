// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vCPUs: one thread each, which sleeps between its orders. (The vCPUs of KVM's selftests wait busily instead. With
//! more vCPUs than CPUs, a waiting vCPU then takes CPU time from the measured ones.)
//!
//! Invariant: a crew has all its threads; they end before it is dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use twofold_machine::fast::FastVcpu;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::passes::{Load, Passes, Repeat};
use twofold_machine::program::{Abort, Ended, Exit, Program, State};
use twofold_memory::{Answer, GuestFault};
use twofold_stage2::fault::{Fault, FaultKind, ipa_from_hpfar, ipa_from_par};
use twofold_workload::pass::Pass;

use super::guest::MachineGuest;
use crate::clock::Moment;
use crate::experiment::setup::Setup;
use crate::experiment::target::{Meter, Progress, Taken};
use crate::experiment::threads::{ThreadId, pin};
use crate::results::Quantity;

/// All vCPUs of a guest.
pub struct Crew {
    workers: Vec<Worker>,
    /// Nanoseconds that the model adds for each fault.
    exit_cost: u64,
    /// The start time, while the vCPUs repeat their passes.
    runs: Option<Instant>,
}

/// A vCPU's thread.
struct Worker {
    orders: Option<Sender<Order>>,
    reports: Receiver<anyhow::Result<Report>>,
    load: Arc<Load>,
    thread: Option<JoinHandle<()>>,
    id: ThreadId,
    /// Accesses that were done before the last start.
    before: u64,
}

enum Order {
    /// Run the passes once.
    Once(Vec<Pass>),
    /// Repeat the passes until the load is stopped.
    Repeat(Vec<Pass>),
}

/// The work of a vCPU in one order.
struct Report {
    ended: Instant,
    cpu: f64,
    faults: Faults,
    passes: Vec<Pass>,
}

/// Number of stage-2 faults, by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    translation: u64,
    permission: u64,
    access_flag: u64,
}

impl Crew {
    /// Starts the vCPU threads, asleep.
    pub fn new(guest: &Arc<MachineGuest>, setup: &Setup) -> anyhow::Result<Self> {
        ensure!(
            setup.pinned.is_empty() || setup.pinned.len() == setup.vcpus,
            "{} CPUs for {} vCPUs: name one for each",
            setup.pinned.len(),
            setup.vcpus
        );
        let exit_cost = setup.exit_cost;
        let mut crew = Self { workers: Vec::new(), exit_cost, runs: None };
        for number in 0..setup.vcpus {
            crew.workers.push(Worker::new(guest, number, setup.pinned.get(number).copied(), exit_cost)?);
        }
        Ok(crew)
    }

    /// Runs the passes of each vCPU, and waits for the last vCPU.
    pub fn run(&mut self, passes: &mut [Vec<Pass>]) -> anyhow::Result<Taken> {
        ensure!(self.runs.is_none(), "the guest runs already");
        let start = Instant::now();
        for (worker, passes) in self.workers.iter().zip(&*passes) {
            worker.order(Order::Once(passes.clone()))?;
        }
        let reports = self.reports()?;
        for (passes, report) in passes.iter_mut().zip(&reports) {
            passes.clone_from(&report.passes);
        }
        Ok(self.taken(start, &reports, self.exit_cost))
    }

    /// Starts all vCPUs, which repeat their passes.
    pub fn start(&mut self, passes: &[Vec<Pass>]) -> anyhow::Result<()> {
        ensure!(self.runs.is_none(), "the guest runs already");
        self.runs = Some(Instant::now());
        for (worker, passes) in self.workers.iter_mut().zip(passes) {
            worker.before = worker.load.done();
            worker.load.start();
            worker.order(Order::Repeat(passes.clone()))?;
        }
        Ok(())
    }

    /// Stops the vCPUs. The modelled exit cost is included already: each vCPU waited for that time at each exit.
    pub fn stop(&mut self) -> anyhow::Result<Taken> {
        let start = self.runs.take().context("the guest does not run")?;
        self.workers.iter().for_each(|worker| worker.load.stop());
        let reports = self.reports()?;
        Ok(self.taken(start, &reports, 0))
    }

    /// Returns the vCPUs' progress.
    pub fn meter(&self) -> Meter {
        let workers: Vec<_> =
            self.workers.iter().map(|worker| (Arc::clone(&worker.load), worker.before, worker.id)).collect();
        Arc::new(move || Progress {
            // A load's count continues from one start to the next.
            accesses: workers.iter().map(|(load, before, _)| load.done() - before).sum(),
            cpu: workers.iter().map(|(_, _, id)| id.cpu_time()).sum(),
        })
    }

    /// The reports of all vCPUs. Waits for each of them, even if one fails.
    fn reports(&self) -> anyhow::Result<Vec<Report>> {
        let reports: Vec<_> = self.workers.iter().map(Worker::report).collect();
        reports.into_iter().collect()
    }

    fn taken(&self, start: Instant, reports: &[Report], exit_cost: u64) -> Taken {
        let exits = |report: &Report| (report.faults.all() * exit_cost) as f64;
        let time = |report: &Report| report.ended.duration_since(start).as_nanos() as f64 + exits(report);
        let sum = |part: fn(&Faults) -> u64| reports.iter().map(|report| part(&report.faults) as f64).sum();
        Taken::from([
            (Quantity::Time, reports.iter().map(time).fold(0.0, f64::max)),
            (Quantity::CpuTime, reports.iter().map(|report| report.cpu + exits(report)).sum()),
            (Quantity::Faults, sum(Faults::all)),
            (Quantity::TranslationFaults, sum(|faults| faults.translation)),
            (Quantity::PermissionFaults, sum(|faults| faults.permission)),
            (Quantity::AccessFlagFaults, sum(|faults| faults.access_flag)),
        ])
    }
}

impl Worker {
    fn new(guest: &Arc<MachineGuest>, number: usize, cpu: Option<usize>, exit_cost: u64) -> anyhow::Result<Self> {
        let stage2 = guest.memory.stage2();
        let interrupts = Arc::new(Interrupts::new());
        let mut vcpu = FastVcpu::new(&guest.machine, number, (stage2.vttbr(), stage2.vtcr()), interrupts)?;
        vcpu.set_state(State { stage1: guest.stage1, ..State::default() });
        let (orders, ordered) = channel();
        let (reporter, reports) = channel();
        let (ready, is_ready) = channel();
        let load = Arc::new(Load::default());
        let mut runner = Runner {
            guest: Arc::clone(guest),
            vcpu,
            load: Arc::clone(&load),
            exit_cost: Duration::from_nanos(exit_cost),
        };
        let thread = thread::Builder::new().name(format!("vcpu {number}")).spawn(move || {
            if ready.send(cpu.map_or(Ok(()), pin).map(|()| ThreadId::this())).is_err() {
                return;
            }
            // The sender is dropped with the crew, which ends this loop.
            while let Ok(order) = ordered.recv() {
                if reporter.send(runner.obey(order)).is_err() {
                    return;
                }
            }
        });
        let thread = Some(thread.context("cannot start a thread for a vCPU")?);
        let id = is_ready.recv().context("a vCPU's thread ended")??;
        Ok(Self { orders: Some(orders), reports, load, thread, id, before: 0 })
    }

    fn order(&self, order: Order) -> anyhow::Result<()> {
        let orders = self.orders.as_ref().context("a vCPU's thread is ending")?;
        orders.send(order).ok().context("a vCPU's thread ended")
    }

    fn report(&self) -> anyhow::Result<Report> {
        self.reports.recv().context("a vCPU's thread ended")?
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.load.stop();
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic's message was printed already.
            let _ = thread.join();
        }
    }
}

/// The state of a vCPU's thread.
struct Runner {
    guest: Arc<MachineGuest>,
    vcpu: FastVcpu,
    load: Arc<Load>,
    exit_cost: Duration,
}

impl Runner {
    fn obey(&mut self, order: Order) -> anyhow::Result<Report> {
        let moment = Moment::now();
        let (faults, passes) = match order {
            Order::Once(passes) => {
                let mut program = Passes::new(passes);
                (self.run(&mut program, false)?, program.passes().to_vec())
            }
            Order::Repeat(passes) => {
                let load = Arc::clone(&self.load);
                (self.run(&mut Repeat::new(passes, &load), true)?, Vec::new())
            }
        };
        Ok(Report { ended: Instant::now(), cpu: moment.elapsed(), faults, passes })
    }

    /// Runs the guest until its program ends, and resolves its faults. `at_length` adds the exit cost as real time to
    /// each.
    fn run(&mut self, program: &mut impl Program, at_length: bool) -> anyhow::Result<Faults> {
        let (mut faults, mut last, mut again) = (Faults::default(), None, 0);
        loop {
            let abort = match self.vcpu.run(program) {
                Ok(Ended) => return Ok(faults),
                Err(Exit::Abort(abort)) => abort,
                Err(exit) => bail!("the guest exited: {exit:?}"),
            };
            let fault = self.answer(&abort)?;
            faults.count(fault.kind);
            again = if last == Some(fault) { again + 1 } else { 0 };
            ensure!(again < PATIENCE, "the guest makes no progress: {fault:x?}");
            last = Some(fault);
            if at_length {
                spin(self.exit_cost);
            }
        }
    }

    fn answer(&mut self, abort: &Abort) -> anyhow::Result<GuestFault> {
        let Some(fault) = Fault::from_syndrome(abort.esr) else {
            bail!("an abort that is not a stage-2 fault: {abort:?}")
        };
        let ipa = if fault.hpfar_is_valid() {
            Some(ipa_from_hpfar(abort.hpfar))
        } else {
            ipa_from_par(self.vcpu.translate_stage1(abort.far))
        };
        let ipa = ipa.with_context(|| format!("the guest's stage-1 tables do not map {:#x}", abort.far))?;
        let fault = GuestFault { ipa, kind: fault.kind, access: fault.access };
        match self.guest.memory.fault(&fault).with_context(|| format!("{fault:x?}"))? {
            Answer::Retry(_) => Ok(fault),
            Answer::Skip | Answer::ExternalAbort | Answer::Absent => bail!("the guest has no memory at {ipa}"),
        }
    }
}

impl Faults {
    fn count(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Translation => self.translation += 1,
            FaultKind::Permission => self.permission += 1,
            FaultKind::AccessFlag => self.access_flag += 1,
        }
    }

    fn all(&self) -> u64 {
        self.translation + self.permission + self.access_flag
    }
}

/// The most times that the same fault may repeat. Another thread may undo a mapping again, but not forever.
const PATIENCE: u32 = 1 << 20;

/// Spins for a time. A vCPU outside of its guest keeps its CPU meanwhile.
fn spin(time: Duration) {
    if time.is_zero() {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
