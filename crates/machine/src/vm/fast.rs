// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual machines in the fast mode: a thread for each vCPU.

use std::sync::Arc;
use std::thread;

use super::{Cpu, InGuest, Left, RunError, Vcpu, Vm};
use crate::fast::{CpusError, FastMachine, FastPlatform, FastVcpu, VcpuError};
use crate::interrupts::{Interrupts, Woken};
use crate::program::{Abort, Ended, Exit, Program, State};

/// A CPU of a fast machine. The thread that runs a vCPU on it acts as this CPU.
#[derive(Clone, Debug)]
pub struct FastCpu {
    /// The machine.
    pub machine: Arc<FastMachine>,
    /// Its number there.
    pub number: usize,
}

impl Cpu for FastCpu {
    type Host = FastPlatform;
    type Entered<'a> = FastVcpu;

    fn number(&self) -> usize {
        self.number
    }

    fn enter<P>(&self, registers: (u64, u64), vcpu: &Vcpu<P>) -> Result<FastVcpu, VcpuError> {
        let mut guest = FastVcpu::new(&self.machine, self.number, registers, Arc::clone(vcpu.interrupts()))?;
        guest.set_state(*vcpu.state());
        Ok(guest)
    }

    /// A CPU without a vCPU walks no tables.
    fn leave(&self) {}

    fn wait(&self, interrupts: &Interrupts) -> Woken {
        interrupts.wait()
    }
}

impl InGuest for FastVcpu {
    fn run<P: Program>(&mut self, program: &mut P) -> Result<Ended, Exit> {
        self.run(program)
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

impl Vm<FastPlatform> {
    /// Runs each vCPU on a thread and a CPU of its own, until all have left. `call` answers hypercalls; its first
    /// argument is the vCPU's index in `vcpus`.
    ///
    /// # Errors
    ///
    /// There are more vCPUs than CPUs, or none.
    ///
    /// # Panics
    ///
    /// A program panics.
    pub fn run_all<P: Program>(
        &self,
        machine: &Arc<FastMachine>,
        vcpus: &mut [Vcpu<P>],
        call: impl Fn(usize, [u64; 4]) -> u64 + Sync,
    ) -> Result<Vec<Result<Left, RunError>>, CpusError> {
        let (asked, most) = (vcpus.len(), machine.cpus());
        if !(1..=most).contains(&asked) {
            return Err(CpusError { asked, available: most, most });
        }
        Ok(thread::scope(|scope| {
            let start = |(number, vcpu)| {
                let (cpu, call) = (FastCpu { machine: Arc::clone(machine), number }, &call);
                scope.spawn(move || self.run(&cpu, vcpu, |arguments| call(number, arguments)))
            };
            let threads: Vec<_> = vcpus.iter_mut().enumerate().map(start).collect();
            let end = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
            };
            threads.into_iter().map(end).collect()
        }))
    }
}
