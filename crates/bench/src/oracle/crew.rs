// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The writers of the guest's memory: a thread for each vCPU, and one for a device; and how all of them are held. With a
//! store there are also the threads that serve it, and one that has pages leave.
//!
//! Invariant: between [`Crew::hold`] and [`Crew::let_go`] no thread writes. Each vCPU is out of its guest and has
//! finished its exit, no write of the device is in progress, and the write-out thread is outside.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use twofold_machine::interrupts::Interrupts;
use twofold_machine::vm::{FastCpu, Left, RunError, Vcpu};
use twofold_memory::Error;
use twofold_oracle::Random;
use twofold_stage2::Ipa;

use super::guest::{self, JudgedGuest, PAGE, PAGES, VCPUS};
use super::store::{SERVERS, Shelf};
use super::writer::Writer;

/// The writers.
pub struct Crew {
    gate: Gate,
    interrupts: Vec<Arc<Interrupts>>,
}

/// Counts the threads that may be writing, or having pages leave.
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
    /// Runs all writers while `work` runs.
    pub fn with<R>(guest: &JudgedGuest, seed: u64, work: impl FnOnce(&Self) -> anyhow::Result<R>) -> anyhow::Result<R> {
        let state = State { phase: Phase::Run, inside: 0, failed: None };
        let gate = Gate { state: Mutex::new(state), bell: Condvar::new() };
        let interrupts = (0..VCPUS).map(|_| Arc::new(Interrupts::new())).collect();
        let crew = Self { gate, interrupts };
        thread::scope(|scope| {
            let _end = End(&crew, guest);
            for number in 0..VCPUS {
                let crew = &crew;
                scope.spawn(move || crew.run_vcpu(guest, number, seed));
            }
            scope.spawn(|| crew.run_device(guest, seed));
            if let Some(shelf) = &guest.shelf {
                scope.spawn(|| crew.run_write_out(guest, shelf, seed));
                for server in 0..SERVERS {
                    let random = Random::new(seed, FIRST_SERVER + server as u64);
                    scope.spawn(move || shelf.serve(guest.memory(), random));
                }
            }
            work(&crew)
        })
    }

    /// Stops all writers, and waits until none writes.
    ///
    /// # Errors
    ///
    /// An error is returned if a writer failed.
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

    /// Lets the writers continue.
    pub fn let_go(&self) {
        self.gate.set(Phase::Run);
    }

    fn run_vcpu(&self, guest: &JudgedGuest, number: usize, seed: u64) {
        // Every other vCPU has stage 1 on, so that its TLB entries combine both stages.
        let stage1 = (number % 2 == 1).then(guest::stage1);
        let random = Random::new(seed, FIRST_VCPU + number as u64);
        let program = Writer::new(number as u64, guest.start.raw(), stage1, random);
        let mut vcpu = Vcpu::new(program, Arc::clone(&self.interrupts[number]));
        let cpu = FastCpu { machine: Arc::clone(&guest.machine), number };
        while self.gate.enter() {
            let left = guest.vm.run(&cpu, &mut vcpu, between_stretches);
            self.gate.leave();
            self.check_limit(guest);
            match left {
                // A kick meant for the last hold may arrive late. It changes nothing.
                Ok(Left::Kicked) => {}
                Ok(left) => self.gate.fail(format!("{vcpu} left its guest: {left:?}")),
                Err(RunError::Memory { error: Error::Absent { page, .. }, .. }) => self.bring(guest, page, number),
                Err(error) => self.gate.fail(format!("{vcpu} cannot continue: {error}")),
            }
        }
    }

    /// Waits until a page is in memory. The writer is outside the gate, so that holding all writers does not wait for
    /// the store.
    fn bring(&self, guest: &JudgedGuest, page: Ipa, writer: usize) {
        let brought = guest.shelf.as_ref().map(|shelf| shelf.bring(guest.memory(), page, writer as u64));
        match brought {
            Some(Ok(())) => {}
            Some(Err(error)) => self.gate.fail(format!("{page} cannot be brought: {error}")),
            None => self.gate.fail(format!("{page} is absent, and there is no store")),
        }
    }

    fn check_limit(&self, guest: &JudgedGuest) {
        if guest.shelf.as_ref().is_some_and(|shelf| !shelf.is_within_limit(guest.memory())) {
            self.gate.fail(format!("more frames than the limit: {:?}", guest.memory().frame_use()));
        }
    }

    /// Has pages leave: as many as frames are wanted, and now and then one that could stay.
    fn run_write_out(&self, guest: &JudgedGuest, shelf: &Shelf, seed: u64) {
        let mut random = Random::new(seed, WRITE_OUT);
        while self.gate.enter() {
            shelf.relieve(guest.memory());
            shelf.send_away(guest.memory(), guest.start, &mut random);
            self.gate.leave();
            self.check_limit(guest);
            thread::sleep(BREAK);
        }
    }

    /// Writes as a device does, without the guest's tables, in pieces that may cross the ends of pages.
    fn run_device(&self, guest: &JudgedGuest, seed: u64) {
        let mut random = Random::new(seed, DEVICE);
        let mut bytes = vec![0; PIECE as usize];
        let mut left = 0..0;
        while self.gate.enter() {
            if left.is_empty() {
                let size = random.of_any_size(PIECE.ilog2().into());
                let at = random.below(PAGES * PAGE - size);
                bytes[..size as usize].fill_with(|| random.next_word() as u8);
                left = at..at + size;
            }
            let written = guest.memory().write(guest.start + left.start, &bytes[..(left.end - left.start) as usize]);
            self.gate.leave();
            self.check_limit(guest);
            match written {
                Ok(()) => left.start = left.end,
                Err(Error::Absent { page, done }) => {
                    left.start += done;
                    self.bring(guest, page, VCPUS);
                    continue;
                }
                Err(error) => self.gate.fail(format!("the device cannot write: {error}")),
            }
            // The device writes all over the memory. Without pauses, it would keep every page dirty.
            if random.once_in(4) {
                thread::sleep(BREAK);
            }
        }
    }
}

/// Streams of random numbers: the device's, the first vCPU's, and those of a store.
const DEVICE: u64 = 1;
const FIRST_VCPU: u64 = 2;
const WRITE_OUT: u64 = 100;
const FIRST_SERVER: u64 = 101;
/// A write of the device has fewer bytes than this.
const PIECE: u64 = 2 * PAGE;
const BREAK: Duration = Duration::from_micros(50);

/// Yields the CPU between two stretches. A thread preempted in the middle of an access would make every flush wait for
/// it.
fn between_stretches(_: [u64; 4]) -> u64 {
    thread::yield_now();
    0
}

/// Ends all writers when dropped, also if `work` fails.
struct End<'a>(&'a Crew, &'a JudgedGuest);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.gate.set(Phase::End);
        self.0.interrupts.iter().for_each(|interrupts| interrupts.kick());
        self.1.shelf.iter().for_each(Shelf::end);
    }
}

impl Gate {
    /// Waits until writing is allowed. Returns `false` if the run is over.
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
