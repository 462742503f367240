// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest programs that do passes over memory ([`twofold_workload::pass`]): once, or until they are stopped.
//!
//! Invariant: when an access has completed, it is counted and the generator advances. So a vCPU that leaves the guest
//! in the middle of a pass resumes at the same access.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use twofold_workload::pass::{Accesses, Pass};

use crate::program::{Ended, Exit, Instructions, Program};

/// Does passes in order, and ends.
#[derive(Clone, Debug)]
pub struct Passes {
    passes: Vec<Pass>,
    /// The index of the current pass.
    at: usize,
    /// The accesses left in the current pass; `None` where it has not begun.
    accesses: Option<Accesses>,
}

/// Repeats passes in order, until its [`Load`] is stopped.
#[derive(Clone, Debug)]
pub struct Repeat<'a> {
    passes: Passes,
    load: &'a Load,
}

/// Shared between one vCPU's [`Repeat`] and its controller while it runs. It fills cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Load {
    done: AtomicU64,
    stop: AtomicBool,
}

impl Passes {
    /// A program that does these passes.
    pub fn new(passes: impl Into<Vec<Pass>>) -> Self {
        Self { passes: passes.into(), at: 0, accesses: None }
    }

    /// The passes. A pass that is over holds the generator's state at its end.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Starts again at the first pass. Each pass continues from the generator's state that it ended with.
    pub fn again(&mut self) {
        (self.at, self.accesses) = (0, None);
    }

    /// Continues until all passes are done, or until `go_on`, which is called after each access, returns false.
    #[inline(always)]
    fn go_on<C: Instructions>(&mut self, cpu: &mut C, mut go_on: impl FnMut() -> bool) -> Result<Ended, Exit> {
        while let Some(pass) = self.passes.get_mut(self.at) {
            let mut accesses = self.accesses.take().unwrap_or_else(|| pass.accesses());
            loop {
                let mut ahead = accesses.clone();
                let Some(access) = ahead.next() else { break };
                let done =
                    if access.write { cpu.store(access.va, pass.value) } else { cpu.load(access.va).map(|_| ()) };
                if let Err(exit) = done {
                    self.accesses = Some(accesses);
                    return Err(exit);
                }
                accesses = ahead;
                if !go_on() {
                    self.accesses = Some(accesses);
                    return Ok(Ended);
                }
            }
            pass.random = accesses.random();
            self.at += 1;
        }
        Ok(Ended)
    }
}

impl Program for Passes {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        self.go_on(cpu, || true)
    }
}

impl<'a> Repeat<'a> {
    /// A program that repeats these passes. No other vCPU may use this `load`.
    pub fn new(passes: impl Into<Vec<Pass>>, load: &'a Load) -> Self {
        Self { passes: Passes::new(passes), load }
    }
}

impl Program for Repeat<'_> {
    /// Ends once the load is stopped. Run again after [`Load::start`], it resumes where it stopped.
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        let load = self.load;
        let mut done = load.done();
        while !load.is_stopped() {
            self.passes.go_on(cpu, || {
                done += 1;
                load.done.store(done, Ordering::Relaxed);
                !load.is_stopped()
            })?;
            if self.passes.at == self.passes.passes.len() {
                self.passes.again();
            }
        }
        Ok(Ended)
    }
}

impl Load {
    /// The number of accesses done since it was made. Any thread may read it at any time.
    #[inline]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends the program after the current access.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Lets the program resume when it is run again.
    pub fn start(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    #[inline(always)]
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
