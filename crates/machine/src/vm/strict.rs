// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines in strict mode: vCPUs on CPUs that take turns.

use std::sync::Arc;

use super::{Cpu, InGuest, Left, RunError, Vcpu, Vm};
use crate::fast::{CpusError, VcpuError};
use crate::interrupts::{Interrupts, Woken};
use crate::program::{Abort, Ended, Exit, Program, State};
use crate::strict::{self, Breach, CpuHandle, Hosted, Machine, StrictVcpu};

/// The reason why not all vCPUs ran until they left.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunAllError {
    /// There are more vCPUs than CPUs, or none.
    #[error(transparent)]
    Vcpus(#[from] CpusError),
    /// A rule was broken.
    #[error(transparent)]
    Breach(#[from] Breach),
}

impl Cpu for CpuHandle {
    type Host = Hosted;
    type Entered<'a> = StrictVcpu<'a>;

    fn number(&self) -> usize {
        self.number()
    }

    fn enter<P>(&self, (vttbr, vtcr): (u64, u64), vcpu: &Vcpu<P>) -> Result<StrictVcpu<'_>, VcpuError> {
        Ok(self.enter(vttbr, vtcr, vcpu.number()).with(*vcpu.state(), Arc::clone(vcpu.interrupts())))
    }

    /// Clears `VTTBR_EL2`: while it names the tables, this CPU walks them.
    fn leave(&self) {
        self.load(0);
    }

    fn wait(&self, interrupts: &Interrupts) -> Woken {
        loop {
            if interrupts.take_kick() {
                return Woken::Kicked;
            }
            if interrupts.pending() != 0 {
                return Woken::Pending;
            }
            self.pause();
        }
    }
}

impl InGuest for StrictVcpu<'_> {
    fn run<P: Program>(&mut self, program: &mut P) -> Result<Ended, Exit> {
        program.run(self)
    }

    fn state(&self) -> &State {
        self.state()
    }

    fn answer(&mut self, value: u64) {
        self.answer(value);
    }

    fn raise(&mut self, abort: Abort) {
        self.raise(abort);
    }

    fn skip(&mut self) {
        self.skip();
    }

    fn translate_stage1(&mut self, va: u64) -> u64 {
        self.translate_stage1(va)
    }
}

impl Vm<Hosted> {
    /// Runs each vCPU on a CPU of its own, until all have left. `call` answers hypercalls; its first argument is the
    /// vCPU's index in `vcpus`.
    ///
    /// # Errors
    ///
    /// There are more vCPUs than CPUs, or none; or a rule was broken.
    ///
    /// # Panics
    ///
    /// A program panics.
    pub fn run_all<P: Program>(
        &self,
        machine: &Machine,
        vcpus: &mut [Vcpu<P>],
        call: impl Fn(usize, [u64; 4]) -> u64 + Sync,
    ) -> Result<Vec<Result<Left, RunError>>, RunAllError> {
        let (asked, most) = (vcpus.len(), machine.cpus());
        if !(1..=most).contains(&asked) {
            return Err(CpusError { asked, available: most, most }.into());
        }
        let (mut left, call) = (vec![None; asked], &call);
        let mut programs: Vec<strict::Program<'_>> = Vec::new();
        for (number, (vcpu, left)) in vcpus.iter_mut().zip(&mut left).enumerate() {
            let run = move |cpu: &CpuHandle| *left = Some(self.run(cpu, vcpu, |arguments| call(number, arguments)));
            programs.push(Box::new(run));
        }
        machine.run(programs)?;
        Ok(left.into_iter().flatten().collect())
    }
}
