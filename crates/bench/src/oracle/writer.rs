// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a vCPU does: it writes to its guest's RAM without pause, at random and in patterns, and reads and executes there now
//! and then.
//!
//! It stays with some pages for a while and goes on to others: so at any moment some pages are being written to, and others
//! were a moment ago. A write that is lost shows until its page is written again.

use twofold_machine::program::{Ended, Exit, Instructions, Program, Stage1Registers};

use super::guest::{PAGE, PAGES};
use super::random::Random;

/// A vCPU's program. It has no end. It calls the hypervisor between two stretches.
pub struct Writer {
    random: Random,
    /// Where RAM begins.
    start: u64,
    /// What is to be set up first, if anything is.
    stage1: Option<Stage1Registers>,
    stretch: Stretch,
    /// The next access.
    access: Access,
    /// What it writes: never the same again.
    value: u64,
}

/// So many accesses to the same pages.
struct Stretch {
    first: u64,
    pages: u64,
    pattern: Pattern,
    left: u64,
}

#[derive(Clone, Copy)]
enum Pattern {
    /// One after the other.
    Sequential,
    /// Each time another one.
    Random,
    /// One in each section of 64.
    Sparse,
}

#[derive(Clone, Copy)]
enum Access {
    Write(u64),
    Read(u64),
    Execute(u64),
}

impl Writer {
    /// A program for a vCPU, one of so many, of a guest whose RAM begins at `start`.
    pub fn new(vcpu: u64, start: u64, stage1: Option<Stage1Registers>, random: Random) -> Self {
        let stretch = Stretch { first: 0, pages: 1, pattern: Pattern::Random, left: 0 };
        Self { random, start, stage1, stretch, access: Access::Read(start), value: vcpu << 56 }
    }

    /// Chooses the next access.
    #[inline]
    fn choose(&mut self) {
        self.value += 1;
        let random = self.random.next();
        let Stretch { first, pages, pattern, left } = self.stretch;
        let page = first
            + match pattern {
                Pattern::Sequential => left % pages,
                Pattern::Random => random >> 32 & (pages - 1),
                Pattern::Sparse => left % pages * SECTION,
            };
        let va = self.start + page % PAGES * PAGE + (random & (PAGE - 8));
        self.access = match random >> 56 {
            0 => Access::Execute(va),
            1..16 => Access::Read(va),
            _ => Access::Write(va),
        };
    }
}

const SECTION: u64 = 64;

impl Stretch {
    fn new(random: &mut Random) -> Self {
        let pattern = [Pattern::Sequential, Pattern::Random, Pattern::Sparse][random.below(3) as usize];
        // A power of two; one page is as likely as 256.
        let pages = 1 << random.below(9);
        Self { first: random.below(PAGES), pages, pattern, left: random.of_any_size(11) }
    }
}

impl Program for Writer {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        if let Some(registers) = self.stage1.take() {
            *cpu.stage1() = registers;
        }
        loop {
            if self.stretch.left == 0 {
                cpu.hypercall([0; 4])?;
                self.stretch = Stretch::new(&mut self.random);
                self.choose();
            }
            match self.access {
                Access::Write(va) => cpu.store(va, self.value)?,
                Access::Read(va) => drop(cpu.load(va)?),
                Access::Execute(va) => drop(cpu.fetch(va)?),
            }
            self.stretch.left -= 1;
            self.choose();
        }
    }
}
