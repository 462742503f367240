// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest programs: plain Rust code whose instructions are method calls.
//!
//! Invariant: a program keeps all its state in itself, and an instruction that did not complete has not changed that
//! state. So a vCPU may leave its guest at any instruction, move to another CPU, and resume where it was.

use core::fmt;

/// A guest's program on one vCPU.
pub trait Program: Send {
    /// Resumes where the last run ended. `?` on an instruction returns its exit; the next run repeats that instruction.
    ///
    /// # Errors
    ///
    /// The reason why the vCPU left the guest.
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit>;
}

/// The program is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// A guest's instructions. Words are 64 bits, and aligned.
pub trait Instructions {
    /// `LDR`: the word at `va`.
    fn load(&mut self, va: u64) -> Result<u64, Exit>;

    /// `STR`: writes the word at `va`.
    fn store(&mut self, va: u64, value: u64) -> Result<(), Exit>;

    /// Fetches the instruction word at `va`, to execute it.
    fn fetch(&mut self, va: u64) -> Result<u64, Exit>;

    /// `DC CIVAC`: cleans and invalidates the line at `va`.
    fn clean(&mut self, va: u64) -> Result<(), Exit>;

    /// `HVC`: calls the hypervisor. The first run exits; when the instruction is repeated, it returns the answer.
    fn hypercall(&mut self, arguments: [u64; 4]) -> Result<u64, Exit>;

    /// `WFI`: waits until an interrupt is pending.
    fn wait_for_interrupt(&mut self) -> Result<(), Exit>;

    /// Takes the pending interrupts: a bit for each line.
    fn take_interrupts(&mut self) -> u64;

    /// `MRS CNTVCT_EL0`: the virtual counter.
    fn counter(&mut self) -> u64;

    /// `MSR CNTV_CVAL_EL0`: raises [`Line::TIMER`](crate::interrupts::Line::TIMER) once the counter reaches `deadline`.
    fn set_timer(&mut self, deadline: u64);

    /// The guest's own registers for stage 1.
    fn stage1(&mut self) -> &mut Stage1Registers;

    /// The guest's own TLB invalidation (`TLBI VMALLE1IS; DSB ISH; ISB` at EL1: the stage-1 entries of this VMID).
    fn invalidate_stage1(&mut self);
}

/// The registers that configure a guest's stage 1. All zero: the MMU is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the register of that name")]
pub struct Stage1Registers {
    pub sctlr: u64,
    pub tcr: u64,
    pub ttbr0: u64,
    pub ttbr1: u64,
    pub mair: u64,
}

/// The state of a vCPU besides its program, which moves with it to another CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The guest's own registers for stage 1.
    pub stage1: Stage1Registers,
    /// The hypervisor's answer to the last call, until the repeated instruction returns it.
    pub answer: Option<u64>,
    /// An abort that the hypervisor raised in the guest. The repeated access ends with it, as [`Exit::Stage1`].
    pub abort: Option<Abort>,
    /// The hypervisor skips the cache maintenance instruction that caused the exit: its next run does nothing.
    pub skipped: bool,
}

/// The reason why a vCPU left its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A stage-2 fault, as the syndrome registers describe it.
    Abort(Abort),
    /// A stage-1 fault, or an external abort: the guest's own.
    Stage1(Abort),
    /// `HVC`.
    Hypercall([u64; 4]),
    /// `WFI`, and no interrupt is pending.
    WaitForInterrupt,
    /// An interrupt for the hypervisor: another thread asked this vCPU to leave its guest.
    Kicked,
}

/// The syndrome registers after an abort.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the register of that name")]
pub struct Abort {
    pub esr: u64,
    pub far: u64,
    pub hpfar: u64,
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Abort {{ esr: {:#x}, far: {:#x}, hpfar: {:#x} }}", self.esr, self.far, self.hpfar)
    }
}
