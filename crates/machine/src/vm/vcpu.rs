// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU, wherever it is: its program, its registers, and what reaches it from outside.
//!
//! Invariant: all of it is here whenever it is not running, so whoever has it may run it on any CPU.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::NOBODY;
use crate::interrupts::Interrupts;
use crate::program::{Stage1Registers, State};

/// A vCPU with its program.
#[derive(Debug)]
pub struct Vcpu<P> {
    pub(super) program: P,
    pub(super) state: State,
    pub(super) number: u32,
    interrupts: Arc<Interrupts>,
}

impl<P> Vcpu<P> {
    /// A vCPU that is about to begin its program, with its stage 1 off. In the unforgiving mode there is no time
    /// ([`Interrupts::without_time`]).
    pub fn new(program: P, interrupts: Arc<Interrupts>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(NOBODY + 1);
        Self { program, state: State::default(), number: NEXT.fetch_add(1, Ordering::Relaxed), interrupts }
    }

    /// The same with its stage 1 set up as whoever loads the guest wants it to begin.
    #[must_use]
    pub fn with_stage1(mut self, registers: Stage1Registers) -> Self {
        self.state.stage1 = registers;
        self
    }

    /// Its number, which no other vCPU of this process has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its program, as far as it got.
    pub fn program(&self) -> &P {
        &self.program
    }

    /// The same, to have it do something else when it is run again.
    pub fn program_mut(&mut self) -> &mut P {
        &mut self.program
    }

    /// Its registers, and what the hypervisor has left in them.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What reaches it from outside, for whoever raises interrupts, or wants it out of its guest.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }
}

impl<P> fmt::Display for Vcpu<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vCPU {}", self.number)
    }
}
