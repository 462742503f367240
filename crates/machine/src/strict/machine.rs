// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: threads as its CPUs, of which one runs at a time, and the operations and checks for their programs.
//!
//! Invariant: between two runs no thread is a CPU, and every CPU knows everything that any CPU did.

use std::any::Any;
use std::panic;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use twofold_stage2::{Ipa, IpaRange, Pa};

use super::breach::{Breach, Rule};
use super::clock::{CPUS, Clock};
use super::context::Context;
use super::expected::Withdrawn;
use super::model::{Broken, Model};
use super::observer;
use super::options::{MachineError, Options};
use super::platform::Hosted;
use super::shared::Shared;
use super::trace::Trace;
use crate::arena::Arena;
use crate::turns::Turns;

/// A strict machine.
#[derive(Clone)]
pub struct Machine {
    pub(crate) shared: Arc<Shared>,
}

impl Machine {
    /// A machine whose CPUs are off.
    ///
    /// # Errors
    ///
    /// The machine cannot have this number of CPUs or this much memory, or its trace cannot be written.
    pub fn new(mut options: Options) -> Result<Self, MachineError> {
        if !(1..=CPUS).contains(&options.cpus) {
            return Err(MachineError::Cpus { asked: options.cpus });
        }
        observer::install();
        let arena = Arc::new(Arena::new(&options.memory)?);
        let trace = Trace::new(options.trace.take(), &options.features, options.cpus)?;
        let model = Model::new((options.features, options.bbm), arena.clone(), options.cpus, trace);
        let shared = Shared { options, arena, model: Mutex::new(model), breach: Mutex::new(None) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its memory.
    pub fn arena(&self) -> &Arena {
        &self.shared.arena
    }

    /// The number of its CPUs.
    pub fn cpus(&self) -> usize {
        self.shared.options.cpus
    }

    /// The seed of its random choices.
    pub fn seed(&self) -> u64 {
        self.shared.options.seed
    }

    /// The platform for an engine on this machine.
    pub fn platform(&self) -> Hosted {
        Hosted { shared: self.shared.clone(), vmids: None }
    }

    /// Runs `body` as CPU 0, while the others are off.
    ///
    /// # Errors
    ///
    /// The rule that was broken.
    pub fn alone<R: Send>(&self, body: impl FnOnce(&CpuHandle) -> R + Send) -> Result<R, Breach> {
        let mut result = None;
        let slot = &mut result;
        self.run_each(vec![Box::new(move |cpu: &CpuHandle| *slot = Some(body(cpu)))])?;
        result.ok_or_else(|| self.unexplained("the body did not end"))
    }

    /// Runs a program on each CPU, until all have ended.
    ///
    /// # Errors
    ///
    /// # Panics
    ///
    /// A program panics, other than by a breach.
    pub fn run(&self, programs: Vec<Program<'_>>) -> Result<(), Breach> {
        self.run_each(programs)
    }

    fn run_each(&self, programs: Vec<Program<'_>>) -> Result<(), Breach> {
        let cpus = programs.len().min(self.shared.options.cpus);
        let seed = self.shared.options.seed ^ self.lock().step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let turns = Arc::new(Turns::new(cpus, seed, self.shared.options.events_between_switches));
        let panicked: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
        let core = sched_getcpu();
        thread::scope(|scope| {
            for (cpu, program) in programs.into_iter().take(cpus).enumerate() {
                let (turns, panicked, shared) = (turns.clone(), &panicked, self.shared.clone());
                scope.spawn(move || {
                    stay_on(core);
                    let context = Context::new(shared, cpu, turns.clone());
                    let handle = CpuHandle { context: context.clone() };
                    let _entered = turns.enter(cpu);
                    if let Err(payload) = context.run(|| program(&handle)) {
                        turns.halt();
                        panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
                    }
                });
            }
        });
        self.lock().cells.meet();
        self.lock().trace.flush();
        let breach = self.shared.breach.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(mut breach) = breach {
            // In the order of the CPUs: the host decides in which order the threads stop.
            breach.others.sort_by_key(|other| other.cpu);
            return Err(breach);
        }
        match panicked.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(payload) => panic::resume_unwind(payload),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        self.shared.lock()
    }

    fn unexplained(&self, what: &str) -> Breach {
        let step = self.lock().step;
        let (rule, what) = (Rule::Livelock, what.to_owned());
        Breach {
            rule,
            what,
            ipa: None,
            cpu: 0,
            step,
            seed: self.seed(),
            site: None,
            changes: Vec::new(),
            others: Box::default(),
        }
    }
}

/// Keeps this thread on the core of the others. One thread runs at a time, and waking one on another core takes longer
/// than what it then does. If the host refuses, the run is only slower.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        cores.set(core);
        let _ = sched_setaffinity(None, &cores);
    }
}

/// The program of a CPU.
pub type Program<'a> = Box<dyn FnOnce(&CpuHandle) + Send + 'a>;

/// A CPU, for the program that runs on it.
pub struct CpuHandle {
    pub(crate) context: Context,
}

impl CpuHandle {
    /// Its number.
    pub fn number(&self) -> usize {
        self.context.cpu
    }

    /// A random number below a bound, from the machine's seed.
    pub fn draw(&self, below: u64) -> u64 {
        self.context.draw(below)
    }

    /// The machine's step.
    pub fn step(&self) -> u64 {
        self.context.shared.lock().step
    }

    /// Lets other CPUs run, as a wait for one does.
    pub fn pause(&self) {
        self.context.pass();
    }

    /// Adds what another CPU knew to what this CPU knows, as if both had used the same lock.
    pub fn learn(&self, other: &Knowledge) {
        self.context.silently(|model, cpu| {
            model.cells.learn(cpu, &other.0);
            Ok(())
        });
    }

    /// The number of TLB invalidations that this CPU has issued.
    pub fn invalidations(&self) -> u64 {
        self.context.silently(|model, cpu| Ok(model.cpus[cpu].invalidations))
    }

    /// States that the programs have met at a barrier of their own: every CPU now knows everything that any CPU did.
    pub fn meet(&self) {
        self.context.silently(|model, _| {
            model.cells.meet();
            Ok(())
        });
    }

    /// `MSR VTTBR_EL2; ISB`.
    #[track_caller]
    pub fn load(&self, vttbr: u64) {
        self.with_context(|context| {
            context.event(|model, cpu| {
                model.load_vttbr(cpu, vttbr);
                model.isb(cpu)
            });
        });
    }

    /// States that the frame gets another use: another guest's, a table's or the hypervisor's. Reports a breach if a
    /// TLB may still lead to it.
    pub fn reuse(&self, start: Pa, size: u64) {
        self.context.event(|model, _| model.check_frame_free(start.raw(), size));
    }

    /// States that the hypervisor reads a frame through its cache. Reports a breach if a guest may have written it past
    /// the cache.
    pub fn reads(&self, start: Pa, size: u64) {
        self.context.event(|model, _| {
            if !model.lines.is_past(start.raw(), size) {
                return Ok(());
            }
            let what = format!("{size:#x} bytes at {start} are read, and a guest wrote to them past the cache");
            Err(Broken::new(Rule::StaleData, what))
        });
    }

    /// What this CPU knows of the others' changes, to be taken before an operation.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge(self.context.silently(|model, cpu| Ok(*model.cells.known(cpu))))
    }

    /// States that a flush of these tables, to end `withdrawn` in `range`, has returned. Nothing may be cached any more
    /// of any change that this CPU knew of before the operation, whichever CPU made it.
    pub fn expect_flushed(&self, vttbr: u64, range: &IpaRange, before: &Knowledge, withdrawn: Withdrawn) {
        self.context
            .event(|model, cpu| model.check_flushed(cpu, model.format.root(vttbr), range, &before.0, withdrawn));
    }

    /// States that a leaf at `ipa` allows more than before, and that this CPU has invalidated the old one. An `AT` on
    /// this CPU has to see the new leaf (Arm ARM DDI 0487K.a, D8.16), even if no guest was entered in between.
    pub fn expect_fresh(&self, vttbr: u64, ipa: Ipa) {
        self.context.event(|model, cpu| model.check_fresh(cpu, model.format.root(vttbr), ipa));
    }

    /// Reports a wrong result of the program as a breach.
    pub fn report(&self, what: String) -> ! {
        self.context.report(Broken::new(Rule::Content, what))
    }
}

/// What a CPU knows of the others' changes.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge(Clock);

impl Knowledge {
    /// The knowledge of the CPU that this thread is; `None` if it is none. For data that moves from one CPU to another
    /// under a lock of the host, which the machine does not see.
    pub fn of_this_cpu() -> Option<Self> {
        Context::current(|context| Self(context.silently(|model, cpu| Ok(*model.cells.known(cpu)))))
    }

    /// Adds it to the knowledge of the CPU that this thread is.
    pub fn learn(&self) {
        Context::current(|context| {
            context.silently(|model, cpu| {
                model.cells.learn(cpu, &self.0);
                Ok(())
            });
        });
    }
}
