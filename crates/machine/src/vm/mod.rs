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
//! * The one lock, around the guest's memory, is held for one fault, and never while a guest runs. The unforgiving mode
//!   knows of it as of any lock ([`Host`]): whoever waits for it gives way.
//! * No vCPU enters where another one of its guest ran last, before that one's stage-1 entries went.
//! * Every exit makes progress, or is handed to the caller.

mod cpu;
mod exit;
mod fast;
mod lock;
#[cfg(feature = "unforgiving")]
mod unforgiving;
mod vcpu;

use std::sync::atomic::{AtomicU32, Ordering};

use twofold_memory::{Error, GuestFault, GuestMemory};
use twofold_stage2::{Ipa, TablePage, TableSource, Unwatched};

use crate::fast::VcpuError;
use crate::program::{Abort, Program};
pub use cpu::{Cpu, InGuest};
pub use fast::FastCpu;
use lock::Lock;
pub use lock::{Host, Locked};
#[cfg(feature = "unforgiving")]
pub use unforgiving::RunAllError;
pub use vcpu::Vcpu;

/// A virtual machine: what its vCPUs share.
pub struct Vm<H: Host> {
    memory: Lock<H, GuestMemory<H>>,
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

impl<H: Host> Vm<H> {
    /// The virtual machine of this memory. Its VMID is the caller's to keep apart.
    pub fn new(memory: GuestMemory<H>) -> Self {
        let tables = memory.stage2();
        let (host, registers) = (tables.platform().clone(), (tables.vttbr(), tables.vtcr()));
        Self { memory: Lock::new(host, memory), registers, last: [const { AtomicU32::new(NOBODY) }; CPUS] }
    }

    /// The guest's memory, locked. Whoever holds it on a CPU of the unforgiving mode may wait for nobody else.
    pub fn memory(&self) -> Locked<'_, H, GuestMemory<H>> {
        self.memory.lock()
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
            self.memory().stage2().invalidate_for_other_vcpu();
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
    /// # Errors
    ///
    /// The tables cannot be emptied.
    pub fn destroy(self) -> Result<GuestMemory<H>, Error> {
        let mut memory = self.memory.into_inner();
        let mut pages = Returned::default();
        let all = Ipa::new(0)..memory.stage2().geometry().end();
        memory.stage2().unmap(all, &mut pages, Unwatched)?.complete().free(&mut pages);
        memory.stage2().invalidate_all();
        pages.0.into_iter().for_each(|page| memory.frames_mut().give(page));
        Ok(memory)
    }
}

/// The pages of what was the tree: nothing of it is split, so none is taken.
#[derive(Default)]
struct Returned(Vec<TablePage>);

impl TableSource for Returned {
    fn take(&mut self) -> Option<TablePage> {
        None
    }

    fn give(&mut self, page: TablePage) {
        self.0.push(page);
    }
}

/// As many as a machine of either mode has at most.
const CPUS: usize = 64;
/// The number of no vCPU.
const NOBODY: u32 = 0;
