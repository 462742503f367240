// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines: guest programs on vCPUs, over a guest memory that answers their faults as the hypervisor does.
//!
//! A [`Vcpu`] is data: a program, registers and interrupts. [`Vm::run`] enters it on a [`Cpu`] of either mode, and
//! handles its exits until it ends, is kicked, or cannot go on. So a kick stops a vCPU. To move it, the caller runs it
//! elsewhere: on another thread, on another CPU, or in another virtual machine with the same memory.
//!
//! Invariants:
//!
//! * No lock of this module is held while a guest runs. The guest's memory holds its own locks while it handles a
//!   fault; a thread that waits for one calls `Platform::pause`.
//! * If another vCPU of the guest ran last on a CPU, its stage-1 entries are invalidated before a vCPU enters there.
//! * Every exit makes progress, or is returned to the caller.

mod cpu;
mod exit;
mod fast;
#[cfg(feature = "strict")]
mod strict;
mod vcpu;
mod write_faults;

use std::sync::atomic::{AtomicU32, Ordering};

use twofold_memory::{Error, Frames, GuestFault, GuestMemory};
use twofold_stage2::Platform;

use crate::fast::VcpuError;
use crate::program::{Abort, Program};
pub use cpu::{Cpu, InGuest};
pub(crate) use exit::stage2_fault;
pub use fast::FastCpu;
#[cfg(feature = "strict")]
pub use strict::RunAllError;
pub use vcpu::Vcpu;
pub use write_faults::WriteFaults;

/// A virtual machine: the state that its vCPUs share.
pub struct Vm<H: Platform> {
    memory: GuestMemory<H>,
    /// `VTTBR_EL2` and `VTCR_EL2`.
    registers: (u64, u64),
    /// The vCPU of this guest that ran last on each CPU.
    last: [AtomicU32; CPUS],
}

/// The reason why a vCPU returned from its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Left {
    /// Its program is over.
    Ended,
    /// Another thread kicked it. It resumes when it is run again, on any CPU.
    Kicked,
    /// A fault of the guest's own, or an external abort, which its program does not handle.
    Fault(Abort),
}

/// The reason why a vCPU cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The guest's memory cannot handle a fault. Run again, the vCPU repeats its access, which succeeds once there are
    /// frames.
    #[error("{fault:x?}: {error}")]
    Memory {
        /// The fault.
        fault: GuestFault,
        /// The reason why it cannot.
        error: Error,
    },
    /// The CPU cannot enter the guest.
    #[error(transparent)]
    Cpu(#[from] VcpuError),
}

impl<H: Platform> Vm<H> {
    /// The virtual machine of this memory. The caller ensures that no other guest has its VMID.
    pub fn new(memory: GuestMemory<H>) -> Self {
        let registers = (memory.stage2().vttbr(), memory.stage2().vtcr());
        Self { memory, registers, last: [const { AtomicU32::new(NO_VCPU) }; CPUS] }
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory<H> {
        &self.memory
    }

    /// Runs a vCPU on this CPU, from where it stopped; `call` answers its hypercalls.
    ///
    /// # Errors
    ///
    /// The reason why the vCPU cannot go on.
    pub fn run<C: Cpu<Host = H>, P: Program>(
        &self,
        cpu: &C,
        vcpu: &mut Vcpu<P>,
        call: impl FnMut([u64; 4]) -> u64,
    ) -> Result<Left, RunError> {
        let last = &self.last[cpu.number() % CPUS];
        // vCPUs of a guest share its VMID, but not their stage-1 registers (Arm ARM DDI 0487K.a, D8.16). Entries that
        // firmware or an earlier guest left are foreign too, so the first vCPU also invalidates.
        if last.swap(vcpu.number, Ordering::Relaxed) != vcpu.number {
            self.memory.stage2().invalidate_for_other_vcpu();
        }
        let mut guest = cpu.enter(self.registers, vcpu).inspect_err(|_| last.store(NO_VCPU, Ordering::Relaxed))?;
        let left = self.exits(cpu, &mut guest, vcpu, call);
        vcpu.state = *guest.state();
        drop(guest);
        cpu.leave();
        left
    }

    /// Ends the guest: unmaps everything and flushes its VMID, which another guest may get then. No vCPU may be
    /// running. In strict mode the caller has to be a CPU of the machine.
    ///
    /// Returns the guest's frames, which are free again; memory that slots were given is no longer used.
    pub fn destroy(self) -> Frames {
        self.memory.destroy(drop)
    }
}

/// The most CPUs that a machine of either mode has.
const CPUS: usize = 64;
/// The number that stands for no vCPU.
const NO_VCPU: u32 = 0;
