// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests' programs. Each keeps its position, so that it can leave at any instruction.

use twofold_machine::program::{Ended, Exit, Instructions, Program, Stage1Registers};
use twofold_stage2::fault::AccessKind;

pub const PAGE: u64 = 4096;

/// A list of operations, executed in order.
pub struct Script {
    operations: Vec<Op>,
    at: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Writes the word at an address.
    Store(u64, u64),
    /// Loads this word from an address.
    Load(u64, u64),
    /// Loads a word with these values of some bits from an address.
    LoadBits(u64, u64, u64),
    /// Fetches this word from an address.
    Fetch(u64, u64),
    /// Cleans the line at an address.
    Clean(u64),
    /// An access that ends with an abort of the guest's own, with this status.
    Abort(AccessKind, u64, u64),
    /// Calls the hypervisor, and expects this answer.
    Call([u64; 4], u64),
    /// Configures stage 1.
    Stage1(Stage1Registers),
    /// Invalidates the guest's TLB entries.
    Invalidate,
    /// Sets the timer to the counter plus this.
    Timer(u64),
    /// Waits for an interrupt, and expects these lines.
    Wait(u64),
}

impl Script {
    pub fn new(operations: &[Op]) -> Self {
        Self { operations: operations.to_vec(), at: 0 }
    }
}

impl Program for Script {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while let Some(operation) = self.operations.get(self.at) {
            operation.execute(cpu).inspect_err(|exit| {
                if let Exit::Stage1(abort) = exit {
                    println!("operation {}, {operation:x?}: {abort:?}", self.at);
                }
            })?;
            self.at += 1;
        }
        Ok(Ended)
    }
}

impl Op {
    fn execute(&self, cpu: &mut impl Instructions) -> Result<(), Exit> {
        match *self {
            Self::Store(va, value) => cpu.store(va, value)?,
            Self::Load(va, value) => assert_eq!(cpu.load(va)?, value, "{self:x?}"),
            Self::LoadBits(va, bits, value) => assert_eq!(cpu.load(va)? & bits, value, "{self:x?}"),
            Self::Fetch(va, value) => assert_eq!(cpu.fetch(va)?, value, "{self:x?}"),
            Self::Clean(va) => cpu.clean(va)?,
            Self::Abort(kind, va, status) => {
                let done = match kind {
                    AccessKind::Read => cpu.load(va),
                    AccessKind::Write => cpu.store(va, !0).map(|()| 0),
                    AccessKind::Execute => cpu.fetch(va),
                    AccessKind::Maintenance => cpu.clean(va).map(|()| 0),
                };
                match done {
                    Err(Exit::Stage1(abort)) => {
                        let (class, write) = if kind == AccessKind::Execute { (0x21, 0) } else { (0x25, 1 << 6) };
                        let write = if kind == AccessKind::Write { write } else { 0 };
                        let expected = class << 26 | 1 << 25 | write | status;
                        assert_eq!((abort.esr, abort.far), (expected, va), "{self:x?}");
                    }
                    Err(exit) => return Err(exit),
                    Ok(value) => panic!("{self:x?} returns {value:#x}"),
                }
            }
            Self::Call(arguments, answer) => assert_eq!(cpu.hypercall(arguments)?, answer, "{self:x?}"),
            Self::Stage1(registers) => *cpu.stage1() = registers,
            Self::Invalidate => cpu.invalidate_stage1(),
            Self::Timer(later) => {
                let now = cpu.counter();
                cpu.set_timer(now + later);
            }
            Self::Wait(lines) => {
                cpu.wait_for_interrupt()?;
                assert_eq!(cpu.take_interrupts(), lines, "{self:x?}");
            }
        }
        Ok(())
    }
}

/// Sums 1 to `end` in memory, with two instructions for each number, so that a repeated or lost addition changes the
/// sum. Calls the hypervisor before every `often` numbers.
pub struct Sum {
    total: u64,
    end: u64,
    often: u64,
    at: u64,
    called: u64,
    read: Option<u64>,
}

impl Sum {
    pub fn new(total: u64, end: u64, often: u64) -> Self {
        Self { total, end, often, at: 1, called: 0, read: None }
    }

    /// A program that checks the sum.
    pub fn check(&self) -> Script {
        Script::new(&[Op::Load(self.total, self.end * (self.end + 1) / 2)])
    }
}

impl Program for Sum {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.at <= self.end {
            if self.at % self.often == 1 && self.called < self.at {
                cpu.hypercall([self.at; 4])?;
                self.called = self.at;
            }
            let sum = match self.read {
                Some(sum) => sum,
                None => *self.read.insert(cpu.load(self.total)?),
            };
            cpu.store(self.total, sum + self.at)?;
            self.read = None;
            self.at += 1;
        }
        Ok(Ended)
    }
}

/// Uses pages that other vCPUs use too. Each vCPU has a word of its own in each page. In each round a vCPU reads all
/// words, and the words of the others have to be ones that these write there.
pub struct WorkingSet {
    pub start: u64,
    pub pages: u64,
    pub rounds: u64,
    pub vcpus: u64,
    pub vcpu: u64,
    at: u64,
    read: Option<u64>,
}

impl WorkingSet {
    /// The number of pages has none of the divisors 3, 5 and 7, so that each vCPU visits all of them.
    pub fn new(start: u64, pages: u64, rounds: u64, (vcpu, vcpus): (u64, u64)) -> Self {
        Self { start, pages, rounds, vcpus, vcpu, at: 0, read: None }
    }

    /// The value that a vCPU writes to a page.
    pub fn value(vcpu: u64, page: u64, round: u64) -> u64 {
        (round + 1) << 48 | page << 8 | vcpu
    }

    /// The address at which a vCPU writes in a page: words of several lines.
    pub fn word(&self, page: u64, vcpu: u64) -> u64 {
        self.start + page * PAGE + (page * 72 + vcpu * 8) % PAGE
    }

    fn step(&mut self, round: u64, page: u64, cpu: &mut impl Instructions) -> Result<(), Exit> {
        let mine = Self::value(self.vcpu, page, round);
        let Some(next) = self.read else {
            cpu.store(self.word(page, self.vcpu), mine)?;
            self.read = Some(0);
            return Ok(());
        };
        let at = self.word(page, next);
        // In every third round it executes what it wrote.
        let found = if round % 3 == 2 { cpu.fetch(at)? } else { cpu.load(at)? };
        if next == self.vcpu {
            assert_eq!(found, mine, "page {page} in round {round}");
        } else {
            let written = (0..self.rounds).any(|round| found == Self::value(next, page, round));
            assert!(written || found == 0, "page {page}: {found:#x} was never written by {next}");
        }
        self.read = Some(next + 1);
        Ok(())
    }
}

impl Program for WorkingSet {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.at < self.rounds * self.pages {
            let (round, turn) = (self.at / self.pages, self.at % self.pages);
            // Each vCPU has an order of its own. In these orders, some visit a page at the same time.
            let page = (turn * (2 * self.vcpu + 1) + round) % self.pages;
            while self.read != Some(self.vcpus) {
                self.step(round, page, cpu)?;
            }
            self.read = None;
            self.at += 1;
        }
        Ok(Ended)
    }
}
