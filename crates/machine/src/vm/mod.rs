// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines: guest programs on vCPUs, over a guest memory that answers their faults as the hypervisor has it
//! answered.
//!
//! A [`Vcpu`] is data: a program, registers, interrupts. [`Vm::run`] enters it on a [`Cpu`] of either mode, and answers
//! its exits until it ends, is kicked, or cannot go on. So a vCPU is stopped by a kick, and moved by being run
//! elsewhere: on another thread, on another CPU, or in another virtual machine with the same memory in it.
//!
//! Invariants:
//!
//! * Nothing is locked while a guest runs. Its memory has its own locks, which are held while it answers; whoever waits for
//!   one gives way, as the platform has it (`Platform::pause`).
//! * No vCPU enters where another one of its guest ran last, before that one's stage-1 entries went.
//! * Every exit makes progress, or is handed to the caller.

mod cpu;
mod exit;
mod fast;
#[cfg(feature = "unforgiving")]
mod unforgiving;
mod vcpu;

use std::sync::atomic::{AtomicU32, Ordering};

use twofold_memory::{Error, Frames, GuestFault, GuestMemory};
use twofold_stage2::Platform;

use crate::fast::VcpuError;
use crate::program::{Abort, Program};
pub use cpu::{Cpu, InGuest};
pub use fast::FastCpu;
#[cfg(feature = "unforgiving")]
pub use unforgiving::RunAllError;
pub use vcpu::Vcpu;

/// A virtual machine: what its vCPUs share.
pub struct Vm<H: Platform> {
    memory: GuestMemory<H>,
    /// `VTTBR_EL2` and `VTCR_EL2`.
    registers: (u64, u64),
    /// The vCPU that ran last on each CPU, as far as this guest is concerned.
    last: [AtomicU32; CPUS],
}

/// Why a vCPU is back from its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Left {
    /// Its program is over.
    Ended,
    /// Somebody kicked it. It goes on when it is run again, wherever that is.
    Kicked,
    /// A fault of the guest's own, or an external abort, which its program did not take.
    Fault(Abort),
}

/// Why a vCPU cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A fault has no answer. Run again, the vCPU repeats its access: that succeeds where there are frames by then.
    #[error("{fault:x?}: {error}")]
    Memory {
        /// The fault.
        fault: GuestFault,
        /// What is missing.
        error: Error,
    },
    /// The CPU does not take it.
    #[error(transparent)]
    Cpu(#[from] VcpuError),
}

impl<H: Platform> Vm<H> {
    /// The virtual machine of this memory. Its VMID is the caller's to keep apart.
    pub fn new(memory: GuestMemory<H>) -> Self {
        let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
        Self { memory, registers, last: [const { AtomicU32::new(NOBODY) }; CPUS] }
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory<H> {
        &self.memory
    }

    /// Runs a vCPU on this CPU, from where it was left; `call` answers its hypercalls.
    ///
    /// # Errors
    ///
    /// Why it cannot go on.
    pub fn run<C: Cpu<Host = H>, P: Program>(
        &self,
        cpu: &C,
        vcpu: &mut Vcpu<P>,
        call: impl FnMut([u64; 4]) -> u64,
    ) -> Result<Left, RunError> {
        let last = &self.last[cpu.number() % CPUS];
        // They have the VMID in common, but not what their stage 1 says (Arm ARM D8.16). What firmware or an earlier guest
        // left is as foreign, so the first one invalidates too.
        if last.swap(vcpu.number, Ordering::Relaxed) != vcpu.number {
            self.memory.stage2().invalidate_for_other_vcpu();
        }
        let mut guest = cpu.enter(self.registers, vcpu).inspect_err(|_| last.store(NOBODY, Ordering::Relaxed))?;
        let left = self.exits(cpu, &mut guest, vcpu, call);
        vcpu.state = *guest.state();
        drop(guest);
        cpu.leave();
        left
    }

    /// The end of it: nothing is mapped any more, and nothing of its VMID is cached, which another guest may get. No vCPU
    /// may be running. To be called on a CPU of the machine where that is an unforgiving one.
    ///
    /// Its frames are free again; what slots were given is not used any more.
    pub fn destroy(self) -> Frames {
        self.memory.destroy(drop)
    }
}

/// As many as a machine of either mode has at most.
const CPUS: usize = 64;
/// The number of no vCPU.
const NOBODY: u32 = 0;
