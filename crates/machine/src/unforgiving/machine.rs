// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: threads that are its CPUs, one of which runs at a time; the platform that the engine runs on; and the
//! observer through which the engine's accesses come here.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{self, AssertUnwindSafe, Location};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use twofold_abi::trace::{self, Event, How};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::primitive::{Access, Observer, observe};
use twofold_stage2::{Features, Ipa, IpaRange, Pa, Record};

use super::bbm::Bbm;
use super::breach::{Breach, Rule};
use super::clock::{CPUS, Clock};
use super::model::{ACCESSED, Broken, Model, Outcome, Withdrawn};
use super::tables::{PAGE, Standing};
use super::trace::Trace;
use crate::arena::{Arena, ArenaError, ArenaOptions};
use crate::turns::{Stop, Turns};

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

pub(crate) struct Shared {
    options: Options,
    pub(crate) arena: Arc<Arena>,
    model: Mutex<Model>,
    breach: Mutex<Option<Breach>>,
}

/// What a thread is: a CPU of a machine.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cpu: usize,
    turns: Arc<Turns>,
    /// Where the next instruction is in the source.
    pub(super) site: Cell<Option<&'static Location<'static>>>,
}

thread_local! {
    static CONTEXT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// What unwinds a thread whose machine has stopped.
struct Stopped;

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
        static ROUTER: &dyn Observer = &Router;
        static ONCE: Once = Once::new();
        ONCE.call_once(|| observe(Some(&ROUTER)));
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
        thread::scope(|scope| {
            for (cpu, program) in programs.into_iter().take(cpus).enumerate() {
                let (turns, panicked, shared) = (turns.clone(), &panicked, self.shared.clone());
                scope.spawn(move || {
                    let context = Context { shared, cpu, turns: turns.clone(), site: Cell::new(None) };
                    let handle = CpuHandle { context: context.clone() };
                    let _entered = turns.enter(cpu);
                    CONTEXT.set(Some(context));
                    let ended = panic::catch_unwind(AssertUnwindSafe(|| program(&handle)));
                    CONTEXT.set(None);
                    if let Err(payload) = ended
                        && !payload.is::<Stopped>()
                    {
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
        self.context.turns.draw(below)
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
        let root = vttbr & super::model::ROOT;
        self.context.event(|model, cpu| model.check_flushed(cpu, root, range, &before.0, withdrawn));
    }

    /// A leaf at `ipa` gives more than before, and this CPU was told: an `AT` here has to see it (Arm ARM D8.16), with no
    /// guest entered in between.
    pub fn expect_fresh(&self, vttbr: u64, ipa: Ipa) {
        let root = vttbr & super::model::ROOT;
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

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// What this thread is, unless its machine has stopped.
    fn current<R>(body: impl FnOnce(&Self) -> R) -> Option<R> {
        if thread::panicking() {
            return None;
        }
        CONTEXT.with_borrow(|context| context.as_ref().map(body))
    }

    /// Another CPU may run here.
    pub(crate) fn point(&self) {
        if self.turns.point(self.cpu).is_err() {
            panic::resume_unwind(Box::new(Stopped));
        }
    }

    /// Another CPU has to run here.
    pub(crate) fn pass(&self) {
        match self.turns.pass(self.cpu) {
            Ok(()) => {}
            Err(Stop::Stuck { .. }) => {
                self.report(Broken::new(Rule::Livelock, "every CPU waits for another"));
            }
            Err(_) => panic::resume_unwind(Box::new(Stopped)),
        }
    }

    /// One event, at a point.
    pub(crate) fn event<R>(&self, body: impl FnOnce(&mut Model, usize) -> Outcome<R>) -> R {
        self.point();
        self.silently(body)
    }

    /// One event, with what came before.
    pub(crate) fn silently<R>(&self, body: impl FnOnce(&mut Model, usize) -> Outcome<R>) -> R {
        let mut model = self.shared.lock();
        model.step += 1;
        model.trace_at(self.cpu, self.site.get());
        let outcome = body(&mut model, self.cpu);
        drop(model);
        match outcome {
            Ok(result) => result,
            Err(broken) => self.report(broken),
        }
    }

    /// For the trace alone.
    fn trace(&self, event: Event<'_>) {
        let mut model = self.shared.lock();
        model.trace_at(self.cpu, self.site.get());
        model.trace(event);
    }

    pub(crate) fn choose(&self, values: usize) -> usize {
        if self.turns.draw(2) == 0 { 0 } else { self.turns.draw(values as u64) as usize }
    }

    pub(crate) fn draw(&self, below: u64) -> u64 {
        self.turns.draw(below)
    }

    /// Something was done: nobody waits in vain.
    pub(crate) fn progress(&self) {
        self.turns.progress();
    }

    #[allow(clippy::boxed_local, reason = "as it comes out of an event")]
    pub(crate) fn report(&self, broken: Box<Broken>) -> ! {
        let model = self.shared.lock();
        let Broken { rule, what, ipa, entries } = *broken;
        let breach = Breach {
            rule,
            what,
            ipa: ipa.map(Ipa::new),
            cpu: self.cpu,
            step: model.step,
            seed: self.shared.options.seed,
            site: self.site.get(),
            changes: model.changes_of(&entries),
        };
        drop(model);
        self.shared.breach.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(breach);
        self.turns.halt();
        panic::resume_unwind(Box::new(Stopped))
    }
}

/// The engine's platform.
#[derive(Clone)]
pub struct Hosted {
    shared: Arc<Shared>,
}

impl Hosted {
    /// Takes a lock of the hypervisor's own, bit 0 of a word, which the engine does not know of: who has it next sees what
    /// was done under it. To a thread that is no CPU it is no lock.
    #[track_caller]
    pub(crate) fn lock(&self, word: &AtomicU64) {
        let access = Access { order: Ordering::Acquire, site: Location::caller() };
        while Context::current(|context| context.try_lock(word, access)) == Some(None) {
            self.pause(1);
        }
    }

    /// Gives it back.
    #[track_caller]
    pub(crate) fn unlock(&self, word: &AtomicU64) {
        let access = Access { order: Ordering::Release, site: Location::caller() };
        Context::current(|context| context.unlock(word, 0, access));
    }

    fn event(&self, body: impl FnOnce(&mut Model, usize) -> Outcome) {
        Context::current(|context| context.event(body));
    }
}

// SAFETY: `pointer` and `record` are the arena's, which lives as long as any clone of this; its memory is accessed by
// atomics only, and each frame has a record of its own.
unsafe impl Platform for Hosted {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.event(|model, cpu| model.tlbi(cpu, operation, operand));
    }

    fn dsb(&self, domain: Domain) {
        Context::current(|context| {
            context.point();
            // An access that began under an old entry ends before the barrier does.
            if domain == Domain::Ish {
                while context.silently(|model, cpu| Ok(model.waits_for_accesses(cpu))) {
                    context.pass();
                }
            }
            context.silently(|model, cpu| {
                model.dsb(cpu, domain);
                Ok(())
            });
        });
    }

    fn isb(&self) {
        self.event(Model::isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        let line = match operation {
            Dc::Civac => self.shared.options.features.data_line,
            Dc::Zva => self.shared.options.features.zero_block,
        };
        // SAFETY: promised by the caller.
        unsafe { self.dc_lines(operation, address & !(line as usize - 1), line, line) };
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, _: u64) {
        let Some(pa) = self.shared.arena.pa_of(start) else { return };
        if operation == Dc::Zva {
            for offset in (0..size).step_by(8) {
                if let Some(word) = self.shared.arena.word(pa + offset) {
                    zero(word, pa + offset);
                }
            }
            Context::current(|context| context.trace(Event::Dc { operation: trace::Dc::Zva, pa: pa.raw(), size }));
        } else {
            self.event(|model, cpu| model.clean(cpu, pa.raw(), size));
        }
    }

    fn ic(&self, operation: Ic, address: usize) {
        let line = self.shared.options.features.instruction_line;
        let range = self.shared.arena.pa_of(address).map(|pa| (pa.raw() & !(line - 1), line));
        self.event(|model, cpu| {
            model.ic(cpu, operation, range);
            Ok(())
        });
    }

    fn vttbr(&self) -> u64 {
        Context::current(|context| context.silently(|model, cpu| Ok(model.cpus[cpu].vttbr))).unwrap_or(0)
    }

    fn load_vttbr(&self, value: u64) {
        self.event(|model, cpu| {
            model.load_vttbr(cpu, value);
            Ok(())
        });
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.shared.arena.pointer(pa).unwrap_or_else(|| panic!("the machine has no memory at {pa}"))
    }

    fn record(&self, pa: Pa) -> &Record {
        self.shared.arena.record(pa).unwrap_or_else(|| panic!("the frame at {pa} has no record"))
    }

    fn pause(&self, _: u32) {
        if Context::current(Context::pass).is_none() {
            thread::yield_now();
        }
    }
}

/// Zeroes a word as `DC ZVA` does: of a table, an entry; of a frame, data, of which the engine tells as a whole.
fn zero(word: &AtomicU64, pa: Pa) {
    let done = Context::current(|context| {
        context.silently(|model, cpu| {
            if model.tables.of(pa.raw()).is_none() {
                word.store(0, Ordering::Relaxed);
                return Ok(());
            }
            let (step, site) = (model.step, context.site.get());
            let (old, moment) = model.cells.store(cpu, word, 0, Ordering::Relaxed, step);
            model.written(cpu, pa.raw(), (old, 0), moment, site)
        });
    });
    if done.is_none() {
        word.store(0, Ordering::Relaxed);
    }
}

/// Takes the engine's accesses to the machine whose CPU the thread is.
struct Router;

/// What a word is.
enum Word {
    /// In the machine's memory.
    Entry(u64),
    /// The first word of the record of the page there.
    Lock(u64),
    Other,
}

impl Context {
    fn word(&self, word: &AtomicU64) -> Word {
        let address = std::ptr::from_ref(word).addr();
        if let Some(pa) = self.shared.arena.pa_of(address) {
            return Word::Entry(pa.raw());
        }
        match self.shared.arena.frame_of_record(address) {
            Some(page) if address.is_multiple_of(size_of::<Record>()) => Word::Lock(page.raw()),
            _ => Word::Other,
        }
    }

    pub(super) fn store(&self, word: &AtomicU64, value: u64, access: Access) {
        self.site.set(Some(access.site));
        let what = self.word(word);
        let body = |model: &mut Model, cpu: usize| {
            if let Word::Entry(pa) = what
                && model.tables.of(pa).is_none()
                && (value, access.order) == (0, Ordering::Relaxed)
            {
                // A frame is zeroed, of which the engine tells as a whole.
                word.store(0, Ordering::Relaxed);
                return Ok(());
            }
            let step = model.step;
            let (old, moment) = model.cells.store(cpu, word, value, access.order, step);
            match what {
                Word::Entry(pa) => {
                    self.progress();
                    model.trace(Event::Write { pa, old, new: value, how: How::Store, order: access.order.into() });
                    // A walk may have set the access flag, and cached the entry, just before the store (Arm ARM D8.5.1).
                    let flagged = old & 1 == 1 && model.features.hardware_access_flag;
                    let old = if flagged { old | ACCESSED } else { old };
                    model.written(cpu, pa, (old, value), moment, Some(access.site))
                }
                _ => Ok(()),
            }
        };
        // Another CPU's walk may come in between, wherever one may be.
        let is_quiet = access.order == Ordering::Relaxed && !self.is_in_tree(&what);
        if is_quiet { self.silently(body) } else { self.event(body) }
    }

    fn is_in_tree(&self, word: &Word) -> bool {
        let Word::Entry(pa) = word else { return false };
        let page = self.shared.lock().tables.of(*pa);
        page.is_some_and(|page| page.standing != Standing::Loose)
    }

    pub(super) fn update(
        &self,
        word: &AtomicU64,
        change: &mut dyn FnMut(u64) -> Option<u64>,
        access: Access,
    ) -> Result<u64, u64> {
        self.site.set(Some(access.site));
        let what = self.word(word);
        self.event(|model, cpu| {
            let step = model.step;
            let mut new = 0;
            let mut change = |old| {
                let changed = change(old);
                new = changed.unwrap_or(0);
                changed
            };
            match model.cells.update(cpu, word, &mut change, access.order, step) {
                Ok((old, moment)) => {
                    if let Word::Entry(pa) = what {
                        model.trace(Event::Write { pa, old, new, how: How::Rmw, order: access.order.into() });
                        model.written(cpu, pa, (old, new), moment, Some(access.site))?;
                    }
                    Ok(Ok(old))
                }
                Err(now) => Ok(Err(now)),
            }
        })
    }

    pub(super) fn load(&self, word: &AtomicU64, access: Access) -> u64 {
        self.site.set(Some(access.site));
        let is_own = access.order == Ordering::Relaxed && matches!(self.word(word), Word::Entry(_));
        let body = |model: &mut Model, cpu: usize| {
            Ok(model.cells.load(cpu, word, access.order, &mut |values| self.choose(values)))
        };
        if is_own { self.silently(body) } else { self.event(body) }
    }

    pub(super) fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64> {
        self.site.set(Some(access.site));
        let what = self.word(word);
        self.event(|model, cpu| {
            let step = model.step;
            let taken = model.cells.update(
                cpu,
                word,
                &mut |old| (old & LOCKED == 0).then_some(old | LOCKED),
                access.order,
                step,
            );
            match (taken, what) {
                (Ok((old, _)), Word::Lock(page)) => model.locked(cpu, page).map(|()| Some(old)),
                (Ok((old, _)), _) => Ok(Some(old)),
                (Err(_), _) => Ok(None),
            }
        })
    }

    pub(super) fn unlock(&self, word: &AtomicU64, value: u64, access: Access) {
        self.site.set(Some(access.site));
        let what = self.word(word);
        self.event(|model, cpu| {
            if let Word::Lock(page) = what {
                model.unlocked(cpu, page)?;
            }
            let step = model.step;
            model.cells.store(cpu, word, value, access.order, step);
            Ok(())
        });
    }
}

pub(super) const LOCKED: u64 = 1;

// SAFETY: a word's value is changed by one thread at a time, whoever has the turn, by atomic accesses; loads tell values
// that were stored there, by the memory model's rules. Threads that are no CPU do the accesses themselves.
unsafe impl Observer for Router {
    fn load(&self, word: &AtomicU64, access: Access) -> u64 {
        Context::current(|context| context.load(word, access)).unwrap_or_else(|| word.load(access.order))
    }

    fn store(&self, word: &AtomicU64, value: u64, access: Access) {
        if Context::current(|context| context.store(word, value, access)).is_none() {
            word.store(value, access.order);
        }
    }

    fn update(&self, word: &AtomicU64, change: &mut dyn FnMut(u64) -> Option<u64>, access: Access) -> Result<u64, u64> {
        match Context::current(|context| context.update(word, change, access)) {
            Some(result) => result,
            None => word.fetch_update(access.order, Ordering::Acquire, change),
        }
    }

    fn try_lock(&self, word: &AtomicU64, access: Access) -> Option<u64> {
        Context::current(|context| context.try_lock(word, access)).unwrap_or_else(|| {
            let state = word.fetch_or(LOCKED, access.order);
            (state & LOCKED == 0).then_some(state)
        })
    }

    fn unlock(&self, word: &AtomicU64, value: u64, access: Access) {
        if Context::current(|context| context.unlock(word, value, access)).is_none() {
            word.store(value, access.order);
        }
    }

    fn release_fence(&self, site: &'static Location<'static>) {
        let fenced = Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, cpu| {
                model.trace(Event::Fence { order: trace::Order::Release });
                model.cells.fence(cpu);
                Ok(())
            });
        });
        if fenced.is_none() {
            std::sync::atomic::fence(Ordering::Release);
        }
    }

    fn page_taken(&self, page: Pa, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, _| model.page_taken(page.raw()));
        });
    }

    fn page_freed(&self, page: Pa, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.event(|model, _| model.page_freed(page.raw()));
        });
    }

    fn data_written(&self, start: Pa, size: u64, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, cpu| {
                model.trace(Event::DataWritten { pa: start.raw(), size });
                let moment = model.cells.event(cpu);
                model.lines.write(start.raw(), size, moment);
                Ok(())
            });
        });
    }

    fn root(&self, start: Pa, entries: Option<usize>, vttbr: u64, vtcr: u64, site: &'static Location<'static>) {
        Context::current(|context| {
            context.site.set(Some(site));
            context.silently(|model, _| model.root(start.raw(), entries, vttbr, vtcr));
        });
    }

    fn dropped(&self, what: &'static str) {
        let reported = Context::current(|context| -> () { context.report(Broken::new(Rule::Dropped, what)) });
        if reported.is_none() && !thread::panicking() {
            panic!("{what}");
        }
    }

    fn about_to(&self, site: &'static Location<'static>) {
        Context::current(|context| context.site.set(Some(site)));
    }
}

const _: () = assert!(PAGE == twofold_stage2::TablePage::SIZE);
