// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: threads that are its CPUs, one of which runs at a time, and what their programs may do and ask.
//!
//! Invariant: between two runs no thread is a CPU, and each CPU knows what any of them did.

use std::any::Any;
use std::io;
use std::panic;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use twofold_stage2::{Features, Ipa, IpaRange, Pa};

use super::bbm::Bbm;
use super::breach::{Breach, Rule};
use super::clock::{CPUS, Clock};
use super::context::Context;
use super::expected::Withdrawn;
use super::model::{Broken, Model};
use super::observer;
use super::platform::Hosted;
use super::shape::ROOT;
use super::trace::Trace;
use crate::arena::{Arena, ArenaError, ArenaOptions};
use crate::turns::Turns;

/// What the machine is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// CPUs, 1 to 8.
    pub cpus: usize,
    /// Of all that is left to chance.
    pub seed: u64,
    /// Between two switches from one CPU to another are so many events on average.
    pub events_between_switches: u32,
    /// The CPUs' features.
    pub features: Features,
    /// And which changes of a mapping's size they take without a break.
    pub bbm: Bbm,
    /// Memory.
    pub memory: ArenaOptions,
    /// The file for a trace (`docs/trace.md`). Without it `TWOFOLD_TRACE` names one: the second machine of a process
    /// writes to that name with `.1` behind it, and so on.
    pub trace: Option<PathBuf>,
}

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Too many CPUs, or none.
    #[error("{asked} CPUs: the unforgiving mode has 1 to {CPUS}; take {CPUS}, or the fast mode")]
    Cpus {
        /// How many were wanted.
        asked: usize,
    },
    /// No memory.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// No trace.
    #[error("the trace cannot be written to {path}: {why}; name a file in a directory that is there")]
    Trace {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
}

/// An unforgiving machine.
#[derive(Clone)]
pub struct Machine {
    pub(crate) shared: Arc<Shared>,
}

impl Machine {
    /// A machine whose CPUs are off.
    ///
    /// # Errors
    ///
    /// It cannot have so many CPUs, or so much memory, or its trace cannot be written.
    pub fn new(mut options: Options) -> Result<Self, MachineError> {
        if !(1..=CPUS).contains(&options.cpus) {
            return Err(MachineError::Cpus { asked: options.cpus });
        }
        observer::install();
        let arena = Arc::new(Arena::new(&options.memory)?);
        let mut model = Model::new((options.features, options.bbm), arena.clone(), options.cpus);
        model.trace = Trace::new(options.trace.take(), &options.features, options.cpus)?;
        let shared = Shared { options, arena, model: Mutex::new(model), breach: Mutex::new(None) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its memory.
    pub fn arena(&self) -> &Arena {
        &self.shared.arena
    }

    /// How many CPUs it has.
    pub fn cpus(&self) -> usize {
        self.shared.options.cpus
    }

    /// The seed that it goes by.
    pub fn seed(&self) -> u64 {
        self.shared.options.seed
    }

    /// The platform that an engine runs on here.
    pub fn platform(&self) -> Hosted {
        Hosted { shared: self.shared.clone() }
    }

    /// Does something as CPU 0, while the others are off.
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
    /// The rule that was broken.
    ///
    /// # Panics
    ///
    /// Where a program does, but for a breach.
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
        self.lock().trace_flush();
        let breach = self.shared.breach.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(breach) = breach {
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
        Breach { rule, what, ipa: None, cpu: 0, step, seed: self.seed(), site: None, changes: Vec::new() }
    }
}

/// Keeps this thread where the others are: one of them runs at a time, and to wake one on another core takes longer than
/// what it then does. Where the system does not let it, it is slower.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        cores.set(core);
        let _ = sched_setaffinity(None, &cores);
    }
}

/// What a CPU is to do.
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

    /// Lets others run, as who waits for them does.
    pub fn pause(&self) {
        self.context.pass();
    }

    /// What another CPU knew is known here too from now on: it was handed over, as through a lock.
    pub fn learn(&self, other: &Knowledge) {
        self.context.silently(|model, cpu| {
            model.cells.learn(cpu, &other.0);
            Ok(())
        });
    }

    /// How many TLB invalidations this CPU has issued.
    pub fn invalidations(&self) -> u64 {
        self.context.silently(|model, cpu| Ok(model.cpus[cpu].invalidations))
    }

    /// The programs have met at a barrier of their own: each knows by now what any of them did.
    pub fn meet(&self) {
        self.context.silently(|model, _| {
            model.cells.meet();
            Ok(())
        });
    }

    /// `MSR VTTBR_EL2; ISB`.
    #[track_caller]
    pub fn load(&self, vttbr: u64) {
        self.tell(|context| {
            context.event(|model, cpu| {
                model.load_vttbr(cpu, vttbr);
                model.isb(cpu)
            });
        });
    }

    /// The frame becomes something else: another guest's, a table, the hypervisor's. It is reported where a TLB may still
    /// lead there.
    pub fn reuse(&self, start: Pa, size: u64) {
        self.context.event(|model, _| model.check_frame_free(start.raw(), size));
    }

    /// The hypervisor reads a frame, through its cache. It is reported where a guest may have written past that.
    pub fn reads(&self, start: Pa, size: u64) {
        self.context.event(|model, _| {
            if !model.lines.is_past(start.raw(), size) {
                return Ok(());
            }
            let what = format!("{size:#x} bytes at {start} are read, and a guest wrote there past the cache");
            Err(Broken::new(Rule::StaleData, what))
        });
    }

    /// What this CPU knows of the others' changes, before an operation.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge(self.context.silently(|model, cpu| Ok(*model.cells.known(cpu))))
    }

    /// A flush of these tables has returned, which was to end `withdrawn` in `range`: of all that this CPU knew to have
    /// changed before the operation, whoever changed it, nothing may be cached any more.
    pub fn expect_flushed(&self, vttbr: u64, range: &IpaRange, before: &Knowledge, withdrawn: Withdrawn) {
        let root = vttbr & ROOT;
        self.context.event(|model, cpu| model.check_flushed(cpu, root, range, &before.0, withdrawn));
    }

    /// A leaf at `ipa` gives more than before, and this CPU was told: an `AT` here has to see it (Arm ARM D8.16), with no
    /// guest entered in between.
    pub fn expect_fresh(&self, vttbr: u64, ipa: Ipa) {
        let root = vttbr & ROOT;
        self.context.event(|model, cpu| model.check_fresh(cpu, root, ipa));
    }

    /// The program found what must not be: reported as a breach.
    pub fn report(&self, what: String) -> ! {
        self.context.report(Broken::new(Rule::Content, what))
    }
}

/// What a CPU knows of the others' changes.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge(Clock);

impl Knowledge {
    /// That of the CPU which this thread is; `None` where it is none. For what hands things from one CPU to another by a
    /// lock of the host's, of which the machine does not know.
    pub fn of_this_cpu() -> Option<Self> {
        Context::current(|context| Self(context.silently(|model, cpu| Ok(*model.cells.known(cpu)))))
    }

    /// The CPU that this thread is learns it.
    pub fn learn(&self) {
        Context::current(|context| {
            context.silently(|model, cpu| {
                model.cells.learn(cpu, &self.0);
                Ok(())
            });
        });
    }
}

/// What its CPUs share.
pub(crate) struct Shared {
    pub(super) options: Options,
    pub(crate) arena: Arc<Arena>,
    model: Mutex<Model>,
    pub(super) breach: Mutex<Option<Breach>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
