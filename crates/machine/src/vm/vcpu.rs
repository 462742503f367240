// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU, wherever it runs: its program, registers and interrupts.
//!
//! Invariant: while a vCPU does not run, all its state is here, so its owner may run it on any CPU.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{NO_VCPU, WriteFaults};
use crate::interrupts::Interrupts;
use crate::program::{Stage1Registers, State};

/// A vCPU with its program.
#[derive(Debug)]
pub struct Vcpu<P> {
    pub(super) program: P,
    pub(super) state: State,
    pub(super) number: u32,
    interrupts: Arc<Interrupts>,
    pub(super) write_faults: Arc<WriteFaults>,
}

impl<P> Vcpu<P> {
    /// A vCPU at the start of its program, with its stage 1 off. Strict mode has no time
    /// ([`Interrupts::without_time`]).
    pub fn new(program: P, interrupts: Arc<Interrupts>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(NO_VCPU + 1);
        let (state, write_faults) = Default::default();
        Self { program, state, number: NEXT.fetch_add(1, Ordering::Relaxed), interrupts, write_faults }
    }

    /// The vCPU with its stage 1 set up by these registers when it starts.
    #[must_use]
    pub fn with_stage1(mut self, registers: Stage1Registers) -> Self {
        self.state.stage1 = registers;
        self
    }

    /// Its number, which no other vCPU of this process has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The program, in its current state.
    pub fn program(&self) -> &P {
        &self.program
    }

    /// The program, so that it can be changed before the next run.
    pub fn program_mut(&mut self) -> &mut P {
        &mut self.program
    }

    /// The vCPU's registers, and what the hypervisor has left for it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The vCPU's interrupts, for threads that raise one or kick the vCPU.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// The vCPU's write faults, for threads that count them.
    pub fn write_faults(&self) -> &Arc<WriteFaults> {
        &self.write_faults
    }
}

impl<P> fmt::Display for Vcpu<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vCPU {}", self.number)
    }
}
