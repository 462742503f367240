// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest on the strict machine that moves while its vCPUs write on other CPUs: no rule of `docs/mmu-rules.md` is broken,
//! and no page differs, with each tracker.
//!
//! `cargo test -p twofold-migration --features strict --test strict`. `TWOFOLD_MOVES` is the number of seeds.

mod guest;
#[path = "../moves/program.rs"]
#[allow(dead_code, reason = "vCPUs move as they are here")]
mod program;
mod sides;
mod swapped;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use twofold_machine::interrupts::Interrupts;
use twofold_machine::strict::{CpuHandle, Hosted, Program};
use twofold_machine::vm::{Vcpu, Vm};
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_migration::commit::{Owner, Ownership, Side, State};
use twofold_migration::plan::Wanted;
use twofold_migration::precopy::{Postcopy, Precopy};
use twofold_migration::ram::GuestRam;
use twofold_migration::receive::Receive;
use twofold_migration::snapshot::NO_ANSWERS;
use twofold_migration::stream::Compression;
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

impl Shared<'_> {
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
}

/// Time passes as the clock is read. Other CPUs run while this one waits.
struct Turns(Hosted, AtomicU64);

impl Runtime for Turns {
    fn now(&self) -> Duration {
        Duration::from_micros(self.1.fetch_add(1, Ordering::Relaxed))
    }

    fn wait(&self, _: Duration) {
        self.0.pause(0);
    }
}

const FIRST: Ownership = Ownership { owner: Owner { host: 0, incarnation: 1 }, epoch: 5 };

/// Moves a guest; returns the number of writes while it moved, and the rounds.
fn moves(tracker: Tracker, seed: u64) -> (u64, u64) {
    const VCPUS: usize = 2;
    let machine = machine(1 + VCPUS, seed);
    let vm = machine.alone(|_| {
        let memory = memory(&machine, 0);
        // No page is zero, where the guest does not write.
        for page in 0..word_pages() {
            let at = address_of(page) + (page * 72 + 2048) % PAGE;
            memory.write(Ipa::new(at), &page.to_le_bytes().map(|byte| !byte)).unwrap();
        }
        Vm::new(memory)
    });
    let vm = vm.unwrap_or_else(|breach| panic!("{breach}"));
    let vcpu = |number| Vcpu::new(Work::new(number, (12, 80)), Arc::new(Interrupts::without_time()));
    let vcpus: Vec<_> = (0..VCPUS as u64).map(vcpu).collect();
    let shared = Shared {
        vm: &vm,
        interrupts: vcpus.iter().map(|vcpu| Arc::clone(vcpu.interrupts())).collect(),
        vcpus: vcpus.into_iter().map(Mutex::new).collect(),
        runs: AtomicBool::new(true),
        over: AtomicBool::new(false),
        inside: AtomicU64::new(0),
    };
    let (mut stream, mut stopped, mut rounds) = (Vec::new(), Vec::new(), 0);
    let mut programs: Vec<Program<'_>> = vec![Box::new(|cpu| {
        let runtime = Turns(machine.platform(), AtomicU64::new(0));
        let (downtime, fixed) = (Duration::from_nanos(1200), Duration::from_nanos(1000));
        let precopy = Precopy {
            ram: &GuestRam::new(vm.memory(), LogOptions::new(tracker), &guest::ids(&vm)).unwrap(),
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
        let mut source = Source { shared: &shared, cpu, stopped: Vec::new() };
        let offered = precopy.run(vec![&mut stream], NO_ANSWERS, &mut side, &mut source).unwrap();
        assert!(offered.broken.is_none(), "{offered:?}");
        rounds = offered.sent.rounds;
        stopped = source.stopped;
        shared.over.store(true, Ordering::Relaxed);
    })];
    for number in 0..VCPUS {
        let shared = &shared;
        programs.push(Box::new(move |cpu| shared.run(cpu, number)));
    }
    machine.run(programs).unwrap_or_else(|breach| panic!("{tracker:?}, TWOFOLD_SEED={seed}: {breach}"));
    let vcpus: Vec<_> = shared.vcpus.into_iter().map(|vcpu| vcpu.into_inner().unwrap()).collect();
    let done = vcpus.iter().map(|vcpu| vcpu.program().done).sum();
    let arrived = machine.alone(|cpu| {
        let runtime = Turns(machine.platform(), AtomicU64::new(0));
        let mut target = Target { machine: &machine, vm: None };
        let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &runtime };
        let side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
        let received = receive.run(vec![&stream[..]], &side, &mut target).unwrap();
        assert_eq!(received.from, FIRST);
        let there = target.vm.unwrap();
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

#[test]
fn judge_a_guest_that_moves_breaks_no_rule() {
    let setting = |name: &str, quick| std::env::var(name).ok().and_then(|count| count.parse().ok()).unwrap_or(quick);
    let (first, moves_of_each) = (setting("TWOFOLD_SEED", 1), setting("TWOFOLD_MOVES", 3));
    for tracker in Tracker::ALL {
        let moved: Vec<_> = (first..first + moves_of_each).map(|seed| moves(tracker, seed)).collect();
        let (wrote, rounds) = moved.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        println!("{}: {wrote} writes and {rounds} rounds in {moves_of_each} moves", tracker.name());
        assert!(wrote > 5 * moves_of_each && rounds > moves_of_each, "{tracker:?}: {wrote} writes, {rounds} rounds");
    }
}
