// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a virtual machine asks of a CPU, in whichever mode.

use twofold_stage2::Platform;

use crate::fast::VcpuError;
use crate::interrupts::{Interrupts, Woken};
use crate::program::{Abort, Ended, Exit, Instructions, Program, State};
use crate::vm::Vcpu;

/// A CPU of the machine, to run vCPUs on.
pub trait Cpu {
    /// The engine's platform there, of which each virtual machine has one.
    type Host: Platform + Clone;

    /// A vCPU in its guest.
    type Guest<'a>: InGuest
    where
        Self: 'a;

    /// Its number, from 0 on.
    fn number(&self) -> usize;

    /// Enters the guest that `VTTBR_EL2` and `VTCR_EL2` set up.
    ///
    /// # Errors
    ///
    /// The CPU has a vCPU already, or there is none; or the registers make no sense.
    fn enter<P>(&self, registers: (u64, u64), vcpu: &Vcpu<P>) -> Result<Self::Guest<'_>, VcpuError>;

    /// The CPU has no guest any more, and nothing walks the tables of the one it had.
    fn leave(&self);

    /// Waits until a line is pending, or somebody kicks; it takes the kick.
    fn wait(&self, interrupts: &Interrupts) -> Woken;
}

/// A vCPU that is in its guest on a CPU.
pub trait InGuest: Instructions {
    /// Goes on with the program.
    ///
    /// # Errors
    ///
    /// Why the vCPU left its guest.
    fn run<P: Program>(&mut self, program: &mut P) -> Result<Ended, Exit>;

    /// What goes along to another CPU.
    fn state(&self) -> &State;

    /// Answers the hypercall that it left for.
    fn answer(&mut self, value: u64);

    /// Raises an abort: the access that it left for ends with that.
    fn raise(&mut self, abort: Abort);

    /// Has it go on behind the cache maintenance that it left for.
    fn skip(&mut self);

    /// `AT S1E1R`: `PAR_EL1`.
    fn translate_stage1(&mut self, va: u64) -> u64;
}
