// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest on the strict machine that moves while its vCPUs write on other CPUs: no rule of `docs/mmu-rules.md` is broken,
//! and no page differs, with each tracker.
//!
//! `cargo test -p twofold-migration --features strict --test strict`. `TWOFOLD_MOVES` is the number of seeds.

mod guest;
mod limited;
mod link;
#[path = "../moves/program.rs"]
#[allow(dead_code, reason = "vCPUs move as they are here")]
mod program;
mod sides;
#[path = "../../../machine/tests/strict/store.rs"]
#[allow(dead_code, reason = "a device waits for pages in the tests of machine alone")]
mod store;
mod swapped;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use twofold_machine::interrupts::Interrupts;
use twofold_machine::strict::{CpuHandle, Hosted, Machine, Program};
use twofold_machine::vm::{Vcpu, Vm};
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_migration::commit::{Owner, Ownership, Side, State};
use twofold_migration::plan::Wanted;
use twofold_migration::precopy::{Postcopy, Precopy};
use twofold_migration::ram::GuestRam;
use twofold_migration::receive::Receive;
use twofold_migration::snapshot::NO_ANSWERS;
use twofold_migration::stream::{Compression, Message};
use twofold_migration::{Cancel, Runtime};
use twofold_stage2::{Ipa, Platform as _};

use guest::{PAGE, address_of, capabilities, digests, hello, machine, memory, word_pages};
use program::Work;
use sides::{Source, Target};

/// A generator of random numbers (Steele and others' SplitMix64, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What the CPUs share.
pub struct Shared<'m> {
    vm: &'m Vm<Hosted>,
    vcpus: Vec<Mutex<Vcpu<Work>>>,
    interrupts: Vec<Arc<Interrupts>>,
    runs: AtomicBool,
    over: AtomicBool,
    inside: AtomicU64,
}

impl<'m> Shared<'m> {
    /// vCPUs that write, each on a CPU that runs it.
    fn new(vm: &'m Vm<Hosted>, vcpus: usize) -> Self {
        let vcpu = |number| Vcpu::new(Work::new(number, (12, 80)), Arc::new(Interrupts::without_time()));
        let vcpus: Vec<_> = (0..vcpus as u64).map(vcpu).collect();
        let interrupts = vcpus.iter().map(|vcpu| Arc::clone(vcpu.interrupts())).collect();
        let vcpus = vcpus.into_iter().map(Mutex::new).collect();
        let (runs, over, inside) = (AtomicBool::new(true), AtomicBool::new(false), AtomicU64::new(0));
        Self { vm, vcpus, interrupts, runs, over, inside }
    }

    /// Runs a vCPU on a CPU whenever it is to run.
    fn run(&self, cpu: &CpuHandle, number: usize) {
        while !self.over.load(Ordering::Relaxed) {
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.runs.load(Ordering::SeqCst) {
                let mut vcpu = self.vcpus[number].lock().unwrap();
                vcpu.program_mut().budget = u64::MAX;
                let left = self.vm.run(cpu, &mut vcpu, |_| 0);
                assert!(left.is_ok(), "{left:?}");
                vcpu.program_mut().budget = 0;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            cpu.pause();
        }
    }

    /// Stops all vCPUs, from another CPU.
    pub fn stop(&self, cpu: &CpuHandle) {
        self.runs.store(false, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            self.interrupts.iter().for_each(|interrupts| interrupts.kick());
            cpu.pause();
        }
        // What the other CPUs have done is known here: they have left the guest.
        cpu.meet();
    }

    /// Lets the vCPUs run again.
    fn start(&self) {
        self.runs.store(true, Ordering::SeqCst);
    }

    /// The writes of all vCPUs, which stand still.
    fn wrote(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.lock().unwrap().program().done).sum()
    }

    fn into_vcpus(self) -> Vec<Vcpu<Work>> {
        self.vcpus.into_iter().map(|vcpu| vcpu.into_inner().unwrap()).collect()
    }
}

/// Time passes as the clock is read. Other CPUs run while this one waits.
struct Turns(Hosted, AtomicU64);

impl Turns {
    fn new(machine: &Machine) -> Self {
        Self(machine.platform(), AtomicU64::new(0))
    }
}

impl Runtime for Turns {
    fn now(&self) -> Duration {
        Duration::from_micros(self.1.fetch_add(1, Ordering::Relaxed))
    }

    fn wait(&self, _: Duration) {
        self.0.pause(0);
    }
}

const FIRST: Ownership = Ownership { owner: Owner { host: 0, incarnation: 1 }, epoch: 5 };

/// A guest without a page of zeroes, where it does not write.
fn boot(machine: &Machine) -> Vm<Hosted> {
    let memory = memory(machine, 0);
    for page in 0..word_pages() {
        let at = address_of(page) + (page * 72 + 2048) % PAGE;
        memory.write(Ipa::new(at), &page.to_le_bytes().map(|byte| !byte)).unwrap();
    }
    Vm::new(memory)
}

/// Moves a guest; returns the number of writes while it moved, and the rounds.
fn moves(tracker: Tracker, seed: u64) -> (u64, u64) {
    const VCPUS: usize = 2;
    let machine = machine(1 + VCPUS, seed);
    let vm = machine.alone(|_| boot(&machine)).unwrap_or_else(|breach| panic!("{breach}"));
    let shared = Shared::new(&vm, VCPUS);
    let (mut stream, stopped, mut rounds) = (Vec::new(), Mutex::new(Vec::new()), 0);
    let mut programs: Vec<Program<'_>> = vec![Box::new(|cpu| {
        let runtime = Turns::new(&machine);
        let (downtime, fixed) = (Duration::from_nanos(1200), Duration::from_nanos(1000));
        let precopy = Precopy {
            ram: &GuestRam::new(vm.memory(), LogOptions::new(tracker), &guest::ids(vm.memory())).unwrap(),
            hello: hello(),
            wanted: Wanted { downtime, fixed, rounds: 4, throttle: 0, forced: true },
            // So that the guest runs in the middle of rounds.
            limit: Some(1),
            compression: Compression::Off,
            postcopy: Postcopy::Off,
            runtime: &runtime,
            cancel: &Cancel::new(),
        };
        let mut side = Side::new(FIRST.owner, State::Running { owned: FIRST });
        let stop = || {
            shared.stop(cpu);
            *stopped.lock().unwrap() = digests(vm.memory());
        };
        let mut source = Source { stop: Box::new(stop) };
        let offered = precopy.run(vec![&mut stream], NO_ANSWERS, &mut side, &mut source).unwrap();
        assert!(offered.broken.is_none(), "{offered:?}");
        rounds = offered.sent.rounds;
        shared.over.store(true, Ordering::Relaxed);
    })];
    for number in 0..VCPUS {
        let shared = &shared;
        programs.push(Box::new(move |cpu| shared.run(cpu, number)));
    }
    machine.run(programs).unwrap_or_else(|breach| panic!("{tracker:?}, TWOFOLD_SEED={seed}: {breach}"));
    let (vcpus, stopped) = (shared.into_vcpus(), stopped.into_inner().unwrap());
    let done = vcpus.iter().map(|vcpu| vcpu.program().done).sum();
    let arrived = machine.alone(|cpu| {
        let runtime = Turns::new(&machine);
        let (there, answer) = (OnceLock::new(), Box::new(|_: &Message| ()));
        let mut target = Target { build: Box::new(|| memory(&machine, 1)), peer: None, answer, vm: &there };
        let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &runtime };
        let side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
        let received = receive.run(vec![&stream[..]], &side, &mut target).unwrap();
        assert_eq!(received.from, FIRST);
        drop(target);
        let there = there.into_inner().unwrap();
        let digests = digests(there.memory());
        // The guest goes on there, and checks what it wrote.
        for mut vcpu in vcpus {
            // It was kicked more often than it ran.
            vcpu.interrupts().take_kick();
            vcpu.program_mut().budget = 100;
            assert_eq!(there.run(cpu, &mut vcpu, |_| 0), Ok(twofold_machine::vm::Left::Ended));
        }
        there.destroy();
        vm.destroy();
        digests
    });
    let arrived = arrived.unwrap_or_else(|breach| panic!("{tracker:?}, TWOFOLD_SEED={seed}: {breach}"));
    let differ: Vec<_> = (0..stopped.len()).filter(|&page| stopped[page] != arrived[page]).collect();
    assert!(differ.is_empty(), "{tracker:?}, TWOFOLD_SEED={seed}: pages {differ:?} differ");
    (done, rounds)
}

/// A number of the environment, or the quick one.
fn setting(name: &str, quick: u64) -> u64 {
    std::env::var(name).ok().and_then(|count| count.parse().ok()).unwrap_or(quick)
}

#[test]
fn judge_a_guest_that_moves_breaks_no_rule() {
    let (first, moves_of_each) = (setting("TWOFOLD_SEED", 1), setting("TWOFOLD_MOVES", 3));
    for tracker in Tracker::ALL {
        let moved: Vec<_> = (first..first + moves_of_each).map(|seed| moves(tracker, seed)).collect();
        let (wrote, rounds) = moved.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        println!("{}: {wrote} writes and {rounds} rounds in {moves_of_each} moves", tracker.name());
        assert!(wrote > 5 * moves_of_each && rounds > moves_of_each, "{tracker:?}: {wrote} writes, {rounds} rounds");
    }
}
