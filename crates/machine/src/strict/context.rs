// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role of a thread as a CPU of a machine: it waits for its turn, has events, and is unwound at a breach.
//!
//! Invariant: a thread that gives up its turn does not have the model locked.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::{Arc, PoisonError};
use std::thread;

use twofold_abi::trace::Event;
use twofold_stage2::Ipa;

use super::breach::{Breach, Executed, Rule};
use super::model::{Broken, Model, Outcome};
use super::shared::Shared;
use crate::turns::{Stop, Turns};

/// The CPU of a machine that a thread is.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) cpu: usize,
    turns: Arc<Turns>,
    /// The place of the next instruction in the source.
    pub(super) site: Cell<Option<&'static Location<'static>>>,
}

thread_local! {
    static CONTEXT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// The payload that unwinds a thread whose machine has stopped.
struct Stopped;

impl Context {
    pub(super) fn new(shared: Arc<Shared>, cpu: usize, turns: Arc<Turns>) -> Self {
        Self { shared, cpu, turns, site: Cell::new(None) }
    }

    /// Runs a program with this thread as the CPU.
    ///
    /// # Errors
    ///
    /// The program's panic payload, unless its machine has stopped.
    pub(super) fn run(self, program: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
        CONTEXT.set(Some(self));
        let ended = panic::catch_unwind(AssertUnwindSafe(program));
        CONTEXT.set(None);
        match ended {
            Err(payload) if !payload.is::<Stopped>() => Err(payload),
            _ => Ok(()),
        }
    }

    /// Calls `body` with the CPU that this thread is; `None` if it is none, or if its machine has stopped.
    pub(super) fn current<R>(body: impl FnOnce(&Self) -> R) -> Option<R> {
        if thread::panicking() {
            return None;
        }
        CONTEXT.with_borrow(|context| context.as_ref().map(body))
    }

    /// A point: another CPU may run here.
    pub(crate) fn point(&self) {
        if self.turns.point(self.cpu).is_err() {
            self.stop();
        }
    }

    /// A pass: another CPU has to run here.
    pub(crate) fn pass(&self) {
        match self.turns.pass(self.cpu) {
            Ok(()) => {}
            Err(Stop::Stuck { .. }) => {
                self.report(Broken::new(Rule::Livelock, "every CPU waits for another"));
            }
            Err(_) => self.stop(),
        }
    }

    /// Unwinds this thread, since another CPU's breach has stopped the machine. A report of R19 names what each CPU
    /// waits for, by the place in the source.
    fn stop(&self) -> ! {
        let mut breach = self.shared.breach.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(breach) = breach.as_mut().filter(|breach| breach.rule == Rule::Livelock) {
            let this = Executed { cpu: self.cpu, site: self.site.get() };
            breach.others = breach.others.iter().copied().chain([this]).collect();
        }
        drop(breach);
        panic::resume_unwind(Box::new(Stopped))
    }

    /// One event, at a point.
    pub(crate) fn event<R>(&self, body: impl FnOnce(&mut Model, usize) -> Outcome<R>) -> R {
        self.point();
        self.silently(body)
    }

    /// One event without a point, as a part of the previous event.
    pub(crate) fn silently<R>(&self, body: impl FnOnce(&mut Model, usize) -> Outcome<R>) -> R {
        let mut model = self.shared.lock();
        model.step += 1;
        model.trace.at(self.cpu, self.site.get());
        let outcome = body(&mut model, self.cpu);
        drop(model);
        match outcome {
            Ok(result) => result,
            Err(broken) => self.report(broken),
        }
    }

    /// An event for the trace only.
    pub(super) fn trace(&self, event: Event<'_>) {
        let mut model = self.shared.lock();
        model.trace.at(self.cpu, self.site.get());
        model.trace.event(event);
    }

    pub(crate) fn choose(&self, values: usize) -> usize {
        if self.turns.draw(2) == 0 { 0 } else { self.turns.draw(values as u64) as usize }
    }

    pub(crate) fn draw(&self, below: u64) -> u64 {
        self.turns.draw(below)
    }

    /// Notes progress: the CPUs do not wait for each other.
    pub(crate) fn progress(&self) {
        self.turns.progress();
    }

    #[allow(clippy::boxed_local, reason = "events return it in a box")]
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
            others: Box::default(),
        };
        drop(model);
        self.shared.breach.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(breach);
        self.turns.halt();
        panic::resume_unwind(Box::new(Stopped))
    }
}
