// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of a CPU that a virtual machine needs, in either mode.

use twofold_stage2::Platform;

use crate::fast::VcpuError;
use crate::interrupts::{Interrupts, Woken};
use crate::program::{Abort, Ended, Exit, Instructions, Program, State};
use crate::vm::Vcpu;

/// A CPU of the machine, to run vCPUs on.
pub trait Cpu {
    /// The engine's platform on this machine; each virtual machine has one.
    type Host: Platform + Clone;

    /// A vCPU in its guest.
    type Entered<'a>: InGuest
    where
        Self: 'a;

    /// The CPU's number, from 0 on.
    fn number(&self) -> usize;

    /// Enters the guest that `VTTBR_EL2` and `VTCR_EL2` set up.
    ///
    /// # Errors
    ///
    /// The CPU has a vCPU already or does not exist, or the registers have reserved or unmodelled values.
    fn enter<P>(&self, registers: (u64, u64), vcpu: &Vcpu<P>) -> Result<Self::Entered<'_>, VcpuError>;

    /// Leaves the guest: from now on the CPU walks no tables.
    fn leave(&self);

    /// Waits until an interrupt line is pending or the vCPU is kicked. It takes the kick.
    fn wait(&self, interrupts: &Interrupts) -> Woken;
}

/// A vCPU that is in its guest on a CPU.
pub trait InGuest: Instructions {
    /// Resumes the program.
    ///
    /// # Errors
    ///
    /// The reason why the vCPU left its guest.
    fn run<P: Program>(&mut self, program: &mut P) -> Result<Ended, Exit>;

    /// The state that moves with the vCPU to another CPU.
    fn state(&self) -> &State;

    /// Answers the hypercall that caused the exit.
    fn answer(&mut self, value: u64);

    /// Raises an abort: the access that caused the exit ends with it when it is repeated.
    fn raise(&mut self, abort: Abort);

    /// Skips the cache maintenance instruction that caused the exit.
    fn skip(&mut self);

    /// `AT S1E1R`: `PAR_EL1`.
    fn translate_stage1(&mut self, va: u64) -> u64;
}
