// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who writes to the guest's memory: a thread for each vCPU, and one for a device; and how all of them are held.
//!
//! Invariant: between [`Crew::hold`] and [`Crew::let_go`] nobody writes: each vCPU is out of its guest and done with the exit
//! that it was in, and no write of the device's is under way.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::vm::{FastCpu, Left, Vcpu};

use super::guest::{self, Guest, PAGE, PAGES, VCPUS};
use super::random::Random;
use super::writer::Writer;

/// Those who write.
pub struct Crew {
    gate: Gate,
    interrupts: Vec<Arc<Interrupts>>,
}

/// Who is inside writes.
struct Gate {
    state: Mutex<State>,
    bell: Condvar,
}

struct State {
    phase: Phase,
    inside: usize,
    failed: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Run,
    Hold,
    End,
}

impl Crew {
    /// Has all of them write while `work` is done.
    pub fn with<R>(guest: &Guest, seed: u64, work: impl FnOnce(&Self) -> anyhow::Result<R>) -> anyhow::Result<R> {
        let state = State { phase: Phase::Run, inside: 0, failed: None };
        let gate = Gate { state: Mutex::new(state), bell: Condvar::new() };
        let interrupts = (0..VCPUS).map(|_| Arc::new(Interrupts::new())).collect();
        let crew = Self { gate, interrupts };
        thread::scope(|scope| {
            let _end = End(&crew);
            for number in 0..VCPUS {
                let crew = &crew;
                scope.spawn(move || crew.run_vcpu(guest, number, seed));
            }
            scope.spawn(|| crew.run_device(guest, seed));
            work(&crew)
        })
    }

    /// Waits until nobody writes.
    ///
    /// # Errors
    ///
    /// A vCPU cannot go on.
    pub fn hold(&self) -> anyhow::Result<()> {
        let mut state = self.gate.lock();
        if state.failed.is_none() {
            state.phase = Phase::Hold;
        }
        self.interrupts.iter().for_each(|interrupts| interrupts.kick());
        while state.inside > 0 {
            state = self.gate.wait(state);
        }
        match &state.failed {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Has them go on.
    pub fn let_go(&self) {
        self.gate.set(Phase::Run);
    }

    fn run_vcpu(&self, guest: &Guest, number: usize, seed: u64) {
        // Every other one has its stage 1 on: its TLB's entries are of another kind.
        let stage1 = (number % 2 == 1).then(guest::stage1);
        let random = Random::new(seed, FIRST_VCPU + number as u64);
        let program = Writer::new(number as u64, guest.start.raw(), stage1, random);
        let mut vcpu = Vcpu::new(program, Arc::clone(&self.interrupts[number]));
        let cpu = FastCpu { machine: Arc::clone(&guest.machine), number };
        while self.gate.enter() {
            let left = guest.vm.run(&cpu, &mut vcpu, between_stretches);
            self.gate.leave();
            match left {
                // A kick that came too late for the last hold is as good as none.
                Ok(Left::Kicked) => {}
                Ok(left) => self.gate.fail(format!("{vcpu} left its guest: {left:?}")),
                Err(error) => self.gate.fail(format!("{vcpu} cannot go on: {error}")),
            }
        }
    }

    /// Writes past the guest's tables, in pieces that may reach over the ends of pages.
    fn run_device(&self, guest: &Guest, seed: u64) {
        let mut random = Random::new(seed, DEVICE);
        let mut bytes = vec![0; PIECE as usize];
        while self.gate.enter() {
            let size = random.of_any_size(PIECE.ilog2().into());
            let at = random.below(PAGES * PAGE - size);
            bytes[..size as usize].fill_with(|| random.next() as u8);
            let written = guest.memory().write(guest.start + at, &bytes[..size as usize]);
            self.gate.leave();
            if let Err(error) = written {
                self.gate.fail(format!("the device cannot write: {error}"));
            }
            // It has no pages that it stays with: were it always at it, all would be dirty all the time.
            if random.once_in(4) {
                thread::sleep(BREAK);
            }
        }
    }
}

/// Streams of random numbers.
const DEVICE: u64 = 1;
const FIRST_VCPU: u64 = 2;
/// The bytes of a write of the device's are fewer.
const PIECE: u64 = 2 * PAGE;
const BREAK: Duration = Duration::from_micros(50);

/// A thread that has to give up its CPU should do that here: in the middle of an access, whoever flushes waits for it.
fn between_stretches(_: [u64; 4]) -> u64 {
    thread::yield_now();
    0
}

/// Ends all of them, also where whoever works with them fails.
struct End<'a>(&'a Crew);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.gate.set(Phase::End);
        self.0.interrupts.iter().for_each(|interrupts| interrupts.kick());
    }
}

impl Gate {
    /// Waits until there is to be written. `false`: never again.
    fn enter(&self) -> bool {
        let mut state = self.lock();
        while state.phase == Phase::Hold {
            state = self.wait(state);
        }
        if state.phase == Phase::Run {
            state.inside += 1;
        }
        state.phase == Phase::Run
    }

    fn leave(&self) {
        self.lock().inside -= 1;
        self.bell.notify_all();
    }

    fn set(&self, phase: Phase) {
        let mut state = self.lock();
        if state.phase != Phase::End {
            state.phase = phase;
        }
        self.bell.notify_all();
    }

    fn fail(&self, why: String) {
        let mut state = self.lock();
        state.phase = Phase::End;
        state.failed.get_or_insert(why);
        self.bell.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.bell.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("vcpus", &self.interrupts.len()).finish_non_exhaustive()
    }
}
