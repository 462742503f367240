// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest programs: plain Rust over what a guest's instructions do.
//!
//! Invariant: a program keeps all its state in itself, and an instruction that did not complete has changed none of it, so a
//! vCPU may leave its guest at any instruction, be moved, and go on where it was.

use core::fmt;

/// A guest's program on one vCPU.
pub trait Program: Send {
    /// Goes on from where the last run ended. `?` on an instruction hands its exit on; the next run repeats that
    /// instruction.
    ///
    /// # Errors
    ///
    /// Why the vCPU left the guest.
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit>;
}

/// The program is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// What a guest's instructions do. Words are of 64 bits, and aligned.
pub trait Instructions {
    /// `LDR`: the word at `va`.
    fn load(&mut self, va: u64) -> Result<u64, Exit>;

    /// `STR`: writes the word at `va`.
    fn store(&mut self, va: u64, value: u64) -> Result<(), Exit>;

    /// Fetches the instruction word at `va`, to execute it.
    fn fetch(&mut self, va: u64) -> Result<u64, Exit>;

    /// `DC CIVAC`: cleans and invalidates the line at `va`.
    fn clean(&mut self, va: u64) -> Result<(), Exit>;

    /// `HVC`: asks the hypervisor. The exit comes once; the next run of the same instruction tells the answer.
    fn hypercall(&mut self, arguments: [u64; 4]) -> Result<u64, Exit>;

    /// `WFI`: waits until an interrupt is pending.
    fn wait_for_interrupt(&mut self) -> Result<(), Exit>;

    /// Takes the interrupts that are pending: a bit for each line.
    fn take_interrupts(&mut self) -> u64;

    /// `MRS CNTVCT_EL0`: the virtual counter.
    fn counter(&mut self) -> u64;

    /// `MSR CNTV_CVAL_EL0`: raises [`Line::TIMER`](crate::interrupts::Line::TIMER) once the counter is there.
    fn set_timer(&mut self, deadline: u64);

    /// The guest's own registers for stage 1.
    fn stage1(&mut self) -> &mut Stage1Registers;

    /// A guest's TLB invalidation of its own (`TLBI VMALLE1IS; DSB ISH; ISB`, at its level: entries of this VMID, stage 1).
    fn invalidate_stage1(&mut self);
}

/// The registers that a guest sets its stage 1 up by. All zero: the MMU is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the register of that name")]
pub struct Stage1Registers {
    pub sctlr: u64,
    pub tcr: u64,
    pub ttbr0: u64,
    pub ttbr1: u64,
    pub mair: u64,
}

/// What a vCPU is beside its program, and goes along with it to another CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The guest's own registers for stage 1.
    pub stage1: Stage1Registers,
    /// What the hypervisor answered to the last call, until the guest is told.
    pub answer: Option<u64>,
    /// An abort that the hypervisor raised in the guest, which the access that is repeated ends with, as
    /// [`Exit::Stage1`].
    pub abort: Option<Abort>,
    /// The hypervisor has the guest go on behind the cache maintenance that it left for: the next run of it does nothing.
    pub skipped: bool,
}

/// Why a vCPU left its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A stage-2 fault, as the hypervisor's registers tell of it.
    Abort(Abort),
    /// A stage-1 fault, or an external abort: the guest's own.
    Stage1(Abort),
    /// `HVC`.
    Hypercall([u64; 4]),
    /// `WFI`, and no interrupt is pending.
    WaitForInterrupt,
    /// An interrupt for the hypervisor: somebody wants this vCPU out.
    Kicked,
}

/// What the syndrome registers say after an abort.
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
