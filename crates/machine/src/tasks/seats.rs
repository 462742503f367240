// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPUs under the vCPUs: each vCPU has a seat on one of them, and accesses memory through that CPU's MMU.
//!
//! Invariant: a CPU runs one vCPU at a time. When another one takes its seat, the stage-1 entries of the guest are
//! invalidated, as in [`Vm::run`](crate::vm::Vm::run).
//!
//! In fast mode there is a CPU for each vCPU, and nothing is ever invalidated for a change of seats. In strict mode the
//! vCPUs share the one CPU that the calling thread is.

use std::sync::Arc;

use twofold_memory::GuestMemory;

use super::task::Access;
use crate::fast::VcpuError;
use crate::interrupts::Interrupts;
use crate::program::{Ended, Exit, Instructions, Program};
use crate::vm::{Cpu, InGuest, Vcpu};

/// The vCPUs on their CPUs.
pub(super) struct Seats<'m, C: Cpu> {
    memory: &'m GuestMemory<C::Host>,
    cpus: &'m [C],
    vcpus: Vec<Vcpu<()>>,
    seated: Vec<Option<(usize, C::Entered<'m>)>>,
}

impl<'m, C: Cpu> Seats<'m, C> {
    /// Seats for this many vCPUs. The interrupts of the hosted machine stay unused: these vCPUs have virtual time.
    pub fn new(cpus: &'m [C], memory: &'m GuestMemory<C::Host>, vcpus: usize) -> Self {
        let vcpus = (0..vcpus).map(|_| Vcpu::new((), Arc::new(Interrupts::without_time()))).collect();
        Self { memory, cpus, vcpus, seated: cpus.iter().map(|_| None).collect() }
    }

    /// Makes an access as a vCPU. Returns the word that it loaded.
    ///
    /// # Errors
    ///
    /// The CPU cannot enter the guest.
    pub fn access(&mut self, vcpu: usize, access: Access) -> Result<Result<u64, Exit>, VcpuError> {
        let guest = self.seat(vcpu)?;
        let mut one = One { access, loaded: 0 };
        Ok(guest.run(&mut one).map(|Ended| one.loaded))
    }

    /// The vCPU in its guest.
    ///
    /// # Errors
    ///
    /// The CPU cannot enter the guest.
    pub fn seat(&mut self, vcpu: usize) -> Result<&mut C::Entered<'m>, VcpuError> {
        let at = vcpu % self.cpus.len();
        if self.seated[at].as_ref().is_none_or(|(seated, _)| *seated != vcpu) {
            let cpu = &self.cpus[at];
            if self.seated[at].take().is_some() {
                cpu.leave();
            }
            let stage2 = self.memory.stage2();
            stage2.invalidate_for_other_vcpu();
            let entered = cpu.enter((stage2.vttbr(), stage2.vtcr()), &self.vcpus[vcpu])?;
            self.seated[at] = Some((vcpu, entered));
        }
        match &mut self.seated[at] {
            Some((_, entered)) => Ok(entered),
            None => Err(VcpuError::NoCpu { index: at, cpus: self.cpus.len() }),
        }
    }
}

/// No CPU walks tables for these vCPUs any more.
impl<C: Cpu> Drop for Seats<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The strict machine has stopped at a breach, and executes no more instructions.
            return;
        }
        for (cpu, seated) in self.cpus.iter().zip(&mut self.seated) {
            if seated.take().is_some() {
                cpu.leave();
            }
        }
    }
}

/// A program of one access.
struct One {
    access: Access,
    loaded: u64,
}

impl Program for One {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        match self.access {
            Access::No => {}
            Access::Load { at } => self.loaded = cpu.load(at)?,
            Access::Store { at, value } => cpu.store(at, value)?,
            Access::Add { at, value } => {
                let word = cpu.load(at)?;
                cpu.store(at, word.wrapping_add(value))?;
            }
        }
        Ok(Ended)
    }
}
