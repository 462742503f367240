// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests whose vCPUs run on threads while they move, over streams on threads.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use twofold_machine::interrupts::Interrupts;
use twofold_machine::vm::{FastCpu, Vcpu};
use twofold_memory::dirty::Tracker;
use twofold_migration::commit::{Embedder, Event, Owner, Ownership, Request, Side, State};
use twofold_migration::plan::{Throttle, Wanted};
use twofold_migration::precopy::{self, Postcopy, Precopy};
use twofold_migration::receive::Receive;
use twofold_migration::stream::Compression;
use twofold_migration::{Answers, Cancel, Runtime, Section};

use crate::guest::{Guest, Place, capabilities, hello, name, places};
use crate::link::{Arbiter, Sender, pipe};
use crate::moved::first;
use crate::program::Work;
use crate::setting;
use crate::sides::Target;

/// The host's clock and threads.
struct Threads(Instant);

impl Runtime for Threads {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }

    fn each<S: Send>(&self, streams: &mut [S], work: impl Fn(&mut S) + Sync) {
        let work = &work;
        thread::scope(|scope| {
            for stream in streams {
                scope.spawn(move || work(stream));
            }
        });
    }
}

/// A guest's vCPUs on threads.
struct Running<'g> {
    guest: &'g Guest,
    vcpus: Vec<Mutex<Vcpu<Work>>>,
    interrupts: Vec<Arc<Interrupts>>,
    /// Whether vCPUs are to run, how many do, and whether all is over.
    gate: Mutex<(bool, usize, bool)>,
    bell: Condvar,
}

impl<'g> Running<'g> {
    fn new(guest: &'g Guest) -> Self {
        let vcpus = std::mem::take(&mut *guest.vcpus.lock().unwrap());
        let interrupts = vcpus.iter().map(|vcpu| Arc::clone(vcpu.interrupts())).collect();
        let vcpus = vcpus.into_iter().map(Mutex::new).collect();
        Self { guest, vcpus, interrupts, gate: Mutex::new((true, 0, false)), bell: Condvar::new() }
    }

    /// Runs a vCPU whenever it is to run.
    fn run(&self, number: usize) {
        let cpu = FastCpu { machine: Arc::clone(&self.guest.machine), number };
        loop {
            let mut gate = self.gate.lock().unwrap();
            while !gate.0 && !gate.2 {
                gate = self.bell.wait(gate).unwrap();
            }
            if gate.2 {
                return;
            }
            gate.1 += 1;
            drop(gate);
            self.bell.notify_all();
            {
                let mut vcpu = self.vcpus[number].lock().unwrap();
                vcpu.program_mut().budget = u64::MAX;
                let left = self.guest.vm.run(&cpu, &mut vcpu, |_| 0);
                assert!(left.is_ok(), "{left:?}");
                vcpu.program_mut().budget = 0;
            }
            self.gate.lock().unwrap().1 -= 1;
            self.bell.notify_all();
        }
    }

    /// Waits until all vCPUs run.
    fn wait(&self) {
        let mut gate = self.gate.lock().unwrap();
        while gate.1 < self.vcpus.len() {
            gate = self.bell.wait(gate).unwrap();
        }
    }

    fn stop(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.0 = false;
        self.interrupts.iter().for_each(|interrupts| interrupts.kick());
        while gate.1 > 0 {
            gate = self.bell.wait(gate).unwrap();
        }
    }

    fn end(&self) {
        self.stop();
        self.gate.lock().unwrap().2 = true;
        self.bell.notify_all();
    }
}

/// The source's embedder.
struct Source<'w, 'g> {
    running: &'w Running<'g>,
    arbiter: &'w Arbiter,
    stopped: Vec<u64>,
}

impl Embedder for Source<'_, '_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        self.arbiter.ask(0, request)
    }

    fn run(&mut self) {
        panic!("nothing fails here");
    }

    fn boot(&mut self) {
        panic!("the source has not crashed");
    }

    fn release(&mut self) {}

    fn announce(&mut self, _: Ownership) {}
}

impl precopy::Host for Source<'_, '_> {
    fn stop(&mut self) {
        self.running.stop();
        self.stopped = self.running.guest.digests();
    }

    fn throttle(&mut self, _: &Throttle) {}

    fn state(&mut self) -> Result<Vec<Section>, String> {
        let vcpus = self.running.vcpus.iter().enumerate();
        let section = |(instance, vcpu): (usize, &Mutex<Vcpu<Work>>)| Section {
            name: name("vcpu"),
            instance: instance as u32,
            version: 1,
            bytes: vcpu.lock().unwrap().program().to_bytes(),
        };
        Ok(vcpus.map(section).collect())
    }
}

/// Moves a guest whose vCPUs run; returns the guest at the target, and the writes during the move.
fn moved(tracker: Tracker, guest: &Guest, to: &mut Place, streams: usize) -> (Guest, u64) {
    let (arbiter, threads) = (Arbiter::new(first()), Threads(Instant::now()));
    let before = guest.done();
    let running = Running::new(guest);
    let (sinks, sources): (Vec<Sender>, Vec<_>) = (0..streams).map(|_| pipe(None)).unzip();
    let (answer, answers) = pipe(None);
    let mut here = Side::new(first().owner, State::Running { owned: first() });
    thread::scope(|scope| {
        let receives = scope.spawn(|| {
            let mut side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
            let mut target = Target::new(to, Some(answer), &arbiter);
            let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &threads };
            let received = receive.run(sources, &side, &mut target).unwrap();
            assert!(matches!(received.take(&mut side, &mut target).0, State::Running { .. }));
            (target.guest.unwrap(), target.digests.unwrap())
        });
        (0..running.vcpus.len()).for_each(|vcpu| {
            drop(scope.spawn({
                let running = &running;
                move || running.run(vcpu)
            }))
        });
        running.wait();
        let (downtime, fixed) = (Duration::from_millis(2), Duration::from_millis(1));
        let precopy = Precopy {
            ram: &guest.ram(tracker),
            hello: hello(running.vcpus.len() as u32),
            wanted: Wanted { downtime, fixed, rounds: 4, throttle: 0, forced: true },
            limit: Some(200_000_000),
            compression: Compression::Lz4,
            postcopy: Postcopy::Off,
            runtime: &threads,
            cancel: &Cancel::new(),
        };
        let mut source = Source { running: &running, arbiter: &arbiter, stopped: Vec::new() };
        let mut answers = Answers::new(answers);
        let offered = precopy.run(sinks, Some(&mut answers), &mut here, &mut source).unwrap();
        assert_eq!(offered.broken, None);
        let taken = answers.taken().unwrap();
        assert!(matches!(here.raise(Event::Record(taken), &mut source), State::Idle { .. }));
        running.end();
        let (came, first) = receives.join().unwrap();
        let differ: Vec<_> = (0..first.len()).filter(|&page| first[page] != source.stopped[page]).collect();
        assert!(differ.is_empty(), "{tracker:?}: pages {differ:?} differ");
        let written = came.done() - before;
        (came, written)
    })
}

#[test]
fn guests_on_threads_move_back_and_forth_with_each_tracker() {
    let moves = setting("TWOFOLD_MOVES", 4);
    for tracker in Tracker::ALL {
        let [mut here, mut there] = places();
        let mut guest = here.boot(2, (40, 80));
        let mut all = 0;
        for number in 0..moves {
            let (came, written) = moved(tracker, &guest, &mut there, 1 + number as usize % 3);
            here.end(std::mem::replace(&mut guest, came));
            std::mem::swap(&mut here, &mut there);
            all += written;
        }
        // How many depends on the host.
        assert!(all > 0, "{tracker:?}: the guest wrote nothing in {moves} moves");
    }
}
