// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the thread that executes an instruction. To the engine, each thread is a CPU.
//!
//! Invariant: the state belongs to one machine, the last that the thread used. A switch to another machine loses
//! nothing: a TLBI and its DSB are in one call of the engine, and the engine loads `VTTBR_EL2` before each use.

use std::cell::Cell;

use super::patience::Patience;

/// The state of one thread.
pub(super) struct Thread {
    machine: Cell<u64>,
    vttbr: Cell<u64>,
    cpu: Cell<Option<usize>>,
    pending: Cell<u64>,
    /// Restarts whenever the thread does anything but wait.
    pub(super) patience: Cell<Patience>,
}

/// The number of the CPU whose vCPU the calling thread runs, in the machine that it used last; 0 if it never ran one.
pub fn this_cpu() -> usize {
    THIS.with(Thread::cpu).unwrap_or(0)
}

thread_local! {
    static THIS: Thread = const {
        Thread {
            machine: Cell::new(0),
            vttbr: Cell::new(0),
            cpu: Cell::new(None),
            pending: Cell::new(0),
            patience: Cell::new(Patience::NEW),
        }
    };
}

impl Thread {
    /// Calls `body` with the calling thread's state, as a CPU of the machine with this number.
    #[inline]
    pub(super) fn with<R>(machine: u64, body: impl FnOnce(&Self) -> R) -> R {
        THIS.with(|this| {
            if this.machine.get() != machine {
                this.machine.set(machine);
                this.vttbr.set(0);
                this.cpu.set(None);
                this.pending.set(0);
            }
            body(this)
        })
    }

    /// `VTTBR_EL2`.
    pub(super) fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    pub(super) fn load_vttbr(&self, value: u64) {
        self.vttbr.set(value);
    }

    /// The CPU whose vCPU the thread runs; `None` if it never ran one.
    pub(super) fn cpu(&self) -> Option<usize> {
        self.cpu.get()
    }

    /// From now on the thread runs a vCPU on this CPU.
    pub(super) fn set_cpu(&self, cpu: usize, vttbr: u64) {
        self.cpu.set(Some(cpu));
        self.vttbr.set(vttbr);
        self.goes_on();
    }

    /// Waits for another thread. The wait grows with the number of waits in a row.
    pub(super) fn wait(&self, yields: u32) {
        self.patience.set(self.patience.get().wait(yields));
    }

    /// Restarts the patience: the thread does something other than wait.
    pub(super) fn goes_on(&self) {
        self.patience.set(Patience::NEW);
    }

    /// Returns and clears the set of CPUs that the next DSB waits for, a bit for each.
    pub(super) fn take_pending(&self) -> u64 {
        self.pending.take()
    }

    /// Adds CPUs to the set that the next DSB waits for.
    pub(super) fn add_pending(&self, cpus: u64) {
        self.pending.set(self.pending.get() | cpus);
    }
}
