// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clocks: one for the migration's thread, and one in each vCPU.
//!
//! The migration's thread and the vCPUs run beside each other. Here one thread does everything, in this order:
//!
//! * V1: the migration's thread does something (a `get`, a `clear`, some bytes on the link), and its clock passes by what
//!   that costs.
//! * V2: each vCPU runs until its clock has come as far. Bytes on the link let [`SLACK`] pass before that; a call of the
//!   dirty log is preceded and followed by V2.
//! * V3: once the guest is stopped, vCPUs stand still.
//!
//! So a write of a vCPU may come up to [`SLACK`] of virtual time later than a read of the page by the migration. That is
//! one of the orders in which they can happen, and the dirty log has to find the write then, as always.
//!
//! Invariant: the migration's clock is the sum of what it was charged for ([`Spent`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use embedded_io::{ErrorKind, ErrorType, Write};
use twofold_machine::vm::{RunError, Vcpu, Vm};
use twofold_migration::Runtime;

use super::events::{CountedCpu, CountedPlatform, Counters, Events};
use super::load::Work;
use super::prices::{Picos, Prices};

/// What the migration's thread was charged for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Bytes on the link.
    pub link: Picos,
    /// Starting the log.
    pub start: Picos,
    /// Getting dirty pages.
    pub get: Picos,
    /// Clearing pages.
    pub clear: Picos,
    /// Stopping the guest, its state, and the commit.
    pub stop: Picos,
    /// Waiting for the bandwidth limit.
    pub wait: Picos,
    /// What the calls of the log had the engine execute.
    pub events: Events,
}

impl Spent {
    /// All of it.
    pub fn sum(&self) -> Picos {
        [self.link, self.start, self.get, self.clear, self.stop, self.wait].into_iter().sum()
    }
}

/// What time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Bytes on the link.
    Link,
    /// Starting the log.
    Start,
    /// Getting dirty pages.
    Get,
    /// Clearing pages.
    Clear,
    /// Stopping the guest, its state, and the commit.
    Stop,
    /// Waiting.
    Wait,
}

/// All clocks, and the guest that runs by them.
pub struct Clocks<'g> {
    vm: &'g Vm<CountedPlatform>,
    cpus: &'g [CountedCpu],
    counters: Arc<Counters>,
    /// The prices.
    pub prices: Prices,
    /// The link's time for a byte.
    byte: Picos,
    state: Mutex<State<'g>>,
}

struct State<'g> {
    now: Picos,
    /// How far vCPUs have run.
    run_to: Picos,
    stopped: Option<Picos>,
    spent: Spent,
    vcpus: Vec<Vcpu<Work<'g>>>,
    /// Why a vCPU cannot go on.
    failed: Option<RunError>,
}

/// What is left of the clocks at the end.
pub struct Stopped<'g> {
    /// When the guest stood still.
    pub stopped: Option<Picos>,
    /// What the migration's thread was charged for.
    pub spent: Spent,
    /// The vCPUs.
    pub vcpus: Vec<Vcpu<Work<'g>>>,
    /// Why a vCPU could not go on.
    pub failed: Option<RunError>,
}

impl<'g> Clocks<'g> {
    /// Clocks at zero, for these vCPUs, each on the CPU with its index.
    pub fn new(
        (vm, cpus): (&'g Vm<CountedPlatform>, &'g [CountedCpu]),
        counters: Arc<Counters>,
        prices: Prices,
        byte: Picos,
        vcpus: Vec<Vcpu<Work<'g>>>,
    ) -> Self {
        let (now, spent) = (Picos::ZERO, Spent::default());
        let state = State { now, run_to: now, stopped: None, spent, vcpus, failed: None };
        Self { vm, cpus, counters, prices, byte, state: Mutex::new(state) }
    }

    /// Does something of the dirty log's, and charges for what the engine executed (V1, V2).
    pub fn charge<R>(&self, cost: Cost, act: impl FnOnce() -> R) -> R {
        self.run_vcpus();
        let result = act();
        let events = self.counters.take();
        self.state().spent.events += events;
        self.pass(cost, self.prices.of(&events));
        self.run_vcpus();
        result
    }

    /// Does something that is free, such as reading a page: the link's time has it.
    pub fn free<R>(&self, act: impl FnOnce() -> R) -> R {
        let result = act();
        self.counters.take();
        result
    }

    /// Lets the migration's clock pass.
    pub fn pass(&self, cost: Cost, time: Picos) {
        let mut state = self.state();
        state.now += time;
        let Spent { link, start, get, clear, stop, wait, .. } = &mut state.spent;
        *match cost {
            Cost::Link => link,
            Cost::Start => start,
            Cost::Get => get,
            Cost::Clear => clear,
            Cost::Stop => stop,
            Cost::Wait => wait,
        } += time;
    }

    /// Stops the guest. Its vCPUs run until their exits are complete.
    pub fn stop(&self) {
        self.pass(Cost::Stop, self.prices.stop);
        self.run_vcpus();
        let mut state = self.state();
        state.stopped = Some(state.now);
    }

    /// Lets a stopped guest go on.
    pub fn resume(&self) {
        self.state().stopped = None;
    }

    /// Slows all vCPUs down, in per mille.
    pub fn throttle(&self, slowed: u16) {
        self.run_vcpus();
        self.state().vcpus.iter_mut().for_each(|vcpu| vcpu.program_mut().slowed = slowed);
    }

    /// Ends the clocks.
    pub fn into_stopped(self) -> Stopped<'g> {
        let State { stopped, spent, vcpus, failed, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        Stopped { stopped, spent, vcpus, failed }
    }

    /// V2, unless the guest is stopped.
    fn run_vcpus(&self) {
        let mut state = self.state();
        let State { now, run_to, stopped, vcpus, failed, .. } = &mut *state;
        if stopped.is_some() || failed.is_some() {
            return;
        }
        *run_to = *now;
        for (cpu, vcpu) in self.cpus.iter().zip(vcpus) {
            vcpu.program_mut().until = *now;
            // A program ends when its clock has come as far. Nothing else makes it leave: it has no interrupts, and all
            // of its memory is RAM.
            if let Err(error) = self.vm.run(cpu, vcpu, |_| 0) {
                *failed = Some(error);
            }
            // The entry's own flush, when a vCPU first runs on its CPU, is no part of the migration.
            self.counters.take();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<'g>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runtime for Clocks<'_> {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.state().now.get() / 1000)
    }

    fn wait(&self, time: Duration) {
        self.pass(Cost::Wait, Picos::nanos(time.as_nanos() as u64));
        self.run_vcpus();
    }
}

/// The link: its bytes take time, and go nowhere.
pub struct Link<'c, 'g>(pub &'c Clocks<'g>);

impl ErrorType for Link<'_, '_> {
    type Error = ErrorKind;
}

impl Write for Link<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.pass(Cost::Link, self.0.byte * bytes.len() as u64);
        let is_due = {
            let state = self.0.state();
            state.now - state.run_to >= SLACK
        };
        if is_due {
            self.0.run_vcpus();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.0.run_vcpus();
        Ok(())
    }
}

/// How far vCPUs may be behind while bytes are sent: about five pages.
const SLACK: Picos = Picos::nanos(20_000);
