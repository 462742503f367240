// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a guest stands still, on the host's clock: a vCPU on a thread writes at a rate while pre-copy sends its memory
//! through a socket.
//!
//! Nothing takes the guest. So the downtime has the stop, the last `get`, the last pages, and the end of the stream, and
//! not the commit between two hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_machine::vm::{FastCpu, Vcpu};
use twofold_memory::dirty::Tracker;
use twofold_migration::commit::{Embedder, Owner, Ownership, Request, Side, State};
use twofold_migration::plan::{Throttle, Wanted};
use twofold_migration::precopy::{Host, Postcopy, Precopy, Sent};
use twofold_migration::stream::{Compression, Hello};
use twofold_migration::{Answers, Cancel, Section};

use super::guest::{Guest, PAGE, START};
use super::link::Socket;
use crate::experiment::host_clock::Threads;

/// A guest that moves, once.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// The tracker.
    pub tracker: Tracker,
    /// Bytes a second that may be sent.
    pub link: u64,
    /// Pages that the guest writes, in percent of those that may be sent.
    pub load: u64,
    /// The downtime that is asked for.
    pub downtime: Duration,
}

impl Move {
    /// Moves the guest. It can be moved again: nothing took it.
    ///
    /// # Errors
    ///
    /// The migration fails, or a vCPU cannot go on.
    pub fn go(&self, guest: &Guest, seed: u64) -> anyhow::Result<Sent> {
        let (machine, vm) = guest.vm();
        let rate = self.link * self.load / 100 / PAGE as u64;
        let is_over = AtomicBool::new(false);
        let writes = Writes::new(guest.bytes() / PAGE as u64, rate, seed, &is_over);
        let interrupts = Arc::new(Interrupts::new());
        let mut vcpu = Vcpu::new(writes, Arc::clone(&interrupts));
        let cpu = FastCpu { machine: Arc::clone(machine), number: 0 };
        let from = Ownership { owner: Owner { host: 1, incarnation: 1 }, epoch: 1 };
        let mut side = Side::new(from.owner, State::Running { owned: from });
        let precopy = Precopy {
            ram: &guest.all(self.tracker)?,
            hello: Hello { memory: guest.bytes(), ..guest.hello(0)?.0 },
            wanted: Wanted { downtime: self.downtime, fixed: FIXED, rounds: 30, throttle: 800, forced: true },
            limit: Some(self.link),
            compression: Compression::Off,
            postcopy: Postcopy::Off,
            runtime: &Threads,
            cancel: &Cancel::new(),
        };
        let sink = Socket::new()?;
        thread::scope(|scope| {
            let runs = scope.spawn(|| vm.run(&cpu, &mut vcpu, |_| 0));
            let mut source = Source { is_over: &is_over, interrupts: &interrupts, runs: Some(runs), failed: None };
            let none: Option<&mut Answers<&[u8]>> = None;
            let offered = precopy.run(vec![sink], none, &mut side, &mut source);
            // If it failed, the vCPU still runs.
            source.stop();
            anyhow::ensure!(source.failed.is_none(), "{}", source.failed.unwrap_or_default());
            Ok(offered.context("the guest was not moved")?.sent)
        })
    }
}

/// Writes to pages at a rate: 80 % of the writes to the first fifth of the pages.
struct Writes<'a> {
    pages: u64,
    rate: u64,
    random: u64,
    done: u64,
    begin: Instant,
    is_over: &'a AtomicBool,
}

impl<'a> Writes<'a> {
    fn new(pages: u64, rate: u64, random: u64, is_over: &'a AtomicBool) -> Self {
        Self { pages, rate, random, done: 0, begin: Instant::now(), is_over }
    }

    /// Steele and others' SplitMix64, 2014.
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % end
    }
}

impl Program for Writes<'_> {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while !self.is_over.load(Ordering::Relaxed) {
            let due = (self.begin.elapsed().as_nanos() * u128::from(self.rate) / 1_000_000_000) as u64;
            if due <= self.done {
                // Short, so that a vCPU that is to stop does.
                thread::sleep(PAUSE);
                continue;
            }
            let before = self.random;
            let hot = self.pages / 5;
            let page = if self.below(100) < 80 { self.below(hot) } else { hot + self.below(self.pages - hot) };
            let stored = cpu.store(START + page * PAGE as u64 + 8, self.done);
            // The repeated instruction is the same one.
            stored.inspect_err(|_| self.random = before)?;
            self.done += 1;
        }
        Ok(Ended)
    }
}

/// The source's embedder.
struct Source<'s, 'a, R> {
    is_over: &'a AtomicBool,
    interrupts: &'a Interrupts,
    runs: Option<thread::ScopedJoinHandle<'s, R>>,
    failed: Option<String>,
}

impl<E: std::fmt::Display, L> Source<'_, '_, Result<L, E>> {
    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.interrupts.kick();
        match self.runs.take().map(thread::ScopedJoinHandle::join) {
            None | Some(Ok(Ok(_))) => {}
            Some(Ok(Err(error))) => self.failed = Some(error.to_string()),
            Some(Err(_)) => self.failed = Some("the vCPU's thread has ended".to_owned()),
        }
    }
}

impl<E: std::fmt::Display, L> Embedder for Source<'_, '_, Result<L, E>> {
    fn ask(&mut self, _: Request) -> Option<Ownership> {
        None
    }

    fn run(&mut self) {}

    fn boot(&mut self) {}

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl<E: std::fmt::Display, L> Host for Source<'_, '_, Result<L, E>> {
    fn stop(&mut self) {
        self.end();
    }

    fn throttle(&mut self, _: &Throttle) {}

    fn state(&mut self) -> Result<Vec<Section>, String> {
        Ok(Vec::new())
    }
}

/// What stopping a thread and ending the stream take, at most.
const FIXED: Duration = Duration::from_millis(1);
/// How long a vCPU sleeps when it is ahead of its rate.
const PAUSE: Duration = Duration::from_micros(100);
