// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU's program: it writes to its guest's RAM without pause, in several ways, and reads and executes there now and
//! then.
//!
//! It stays with some pages for a while and then moves to others. So at any moment some pages are being written, and
//! others have just been written. A lost write stays visible until its page is written again.

use twofold_machine::program::{Ended, Exit, Instructions, Program, Stage1Registers};
use twofold_oracle::Random;

use super::guest::{PAGE, PAGES};

/// A vCPU's program. It has no end. It calls the hypervisor between two stretches.
pub struct Writer {
    random: Random,
    /// The address at which RAM begins.
    start: u64,
    /// The stage-1 registers to set first, if any.
    stage1: Option<Stage1Registers>,
    stretch: Stretch,
    /// The next access.
    access: Access,
    /// The next value to write; it never repeats.
    value: u64,
}

/// A number of accesses to the same pages.
struct Stretch {
    first: u64,
    pages: u64,
    order: Order,
    left: u64,
}

#[derive(Clone, Copy)]
enum Order {
    /// One page after the other.
    Sequential,
    /// A random page each time.
    Random,
    /// One page in each 64.
    Sparse,
}

#[derive(Clone, Copy)]
enum Access {
    Write(u64),
    Read(u64),
    Execute(u64),
}

impl Writer {
    /// Makes the program of a vCPU, of a guest whose RAM begins at `start`.
    pub fn new(vcpu: u64, start: u64, stage1: Option<Stage1Registers>, random: Random) -> Self {
        let stretch = Stretch { first: 0, pages: 1, order: Order::Random, left: 0 };
        Self { random, start, stage1, stretch, access: Access::Read(start), value: vcpu << 56 }
    }

    /// Chooses the next access.
    #[inline]
    fn choose(&mut self) {
        self.value += 1;
        let random = self.random.next_word();
        let Stretch { first, pages, order, left } = self.stretch;
        let page = first
            + match order {
                Order::Sequential => left % pages,
                Order::Random => random >> 32 & (pages - 1),
                Order::Sparse => left % pages * WORD_PAGES,
            };
        let va = self.start + page % PAGES * PAGE + (random & (PAGE - 8));
        self.access = match random >> 56 {
            0 => Access::Execute(va),
            1..16 => Access::Read(va),
            _ => Access::Write(va),
        };
    }
}

const WORD_PAGES: u64 = 64;

impl Stretch {
    fn new(random: &mut Random) -> Self {
        let order = [Order::Sequential, Order::Random, Order::Sparse][random.below(3) as usize];
        // A power of two; 1 and 256 pages are equally likely.
        let pages = 1 << random.below(9);
        Self { first: random.below(PAGES), pages, order, left: random.of_any_size(11) }
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
