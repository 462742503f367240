// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What belongs to the thread that executes an instruction: as far as the engine is concerned each is a CPU.
//!
//! Invariant: what is kept is of one machine, the last that the thread had to do with. Nothing is lost when it turns to
//! another: an invalidation and its barrier are in one call of the engine's, and `VTTBR_EL2` is loaded by whoever needs
//! it.

use std::cell::Cell;

use super::patience::Patience;

/// This thread's own.
pub(super) struct Thread {
    machine: Cell<u64>,
    vttbr: Cell<u64>,
    cpu: Cell<Option<usize>>,
    told: Cell<u64>,
    /// What is left of it since it last did anything but wait.
    pub(super) patience: Cell<Patience>,
}

impl Thread {
    /// This thread, as a CPU of the machine with this number.
    #[inline]
    pub(super) fn with<R>(machine: u64, body: impl FnOnce(&Self) -> R) -> R {
        thread_local! {
            static THIS: Thread = const {
                Thread {
                    machine: Cell::new(0),
                    vttbr: Cell::new(0),
                    cpu: Cell::new(None),
                    told: Cell::new(0),
                    patience: Cell::new(Patience::NEW),
                }
            };
        }
        THIS.with(|this| {
            if this.machine.get() != machine {
                this.machine.set(machine);
                this.vttbr.set(0);
                this.cpu.set(None);
                this.told.set(0);
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

    /// The CPU whose vCPU it runs; `None` where it never ran one.
    pub(super) fn cpu(&self) -> Option<usize> {
        self.cpu.get()
    }

    /// Runs a vCPU from now on.
    pub(super) fn set_cpu(&self, cpu: usize, vttbr: u64) {
        self.cpu.set(Some(cpu));
        self.vttbr.set(vttbr);
        self.goes_on();
    }

    /// Waits for another thread, the longer the more often it did in a row.
    pub(super) fn wait(&self, yields: u32) {
        self.patience.set(self.patience.get().wait(yields));
    }

    /// It has not waited in vain, or not at all.
    pub(super) fn goes_on(&self) {
        self.patience.set(Patience::NEW);
    }

    /// The CPUs that its next barrier waits for, a bit for each.
    pub(super) fn take_told(&self) -> u64 {
        self.told.take()
    }

    /// Adds to them.
    pub(super) fn tell(&self, cpus: u64) {
        self.told.set(self.told.get() | cpus);
    }
}
