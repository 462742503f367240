// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target that has fewer frames than the guest has pages, and a store of its own: pages that came leave to it while others
//! come, and come again in later rounds. No page differs, no frame and no place is lost, the limit holds, and no rule of
//! `docs/mmu-rules.md` is broken. A store that frees no frame refuses the guest by name, and the guest goes on at its
//! source.
//!
//! `TWOFOLD_MOVES` is the number of seeds, and `TWOFOLD_SEED` the first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use twofold_machine::strict::{CpuHandle, Hosted, Machine, Program};
use twofold_machine::vm::{Left, RunError, Vcpu, Vm};
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::swap::{Clock, FRAMES_PER_VCPU, Located, Peeked, SwapOptions, Waiter};
use twofold_memory::{Error, GuestMemory};
use twofold_migration::commit::{Owner, Side, State};
use twofold_migration::plan::Wanted;
use twofold_migration::precopy::{Cause, Postcopy, Precopy};
use twofold_migration::ram::GuestRam;
use twofold_migration::receive::{Receive, ReceiveError};
use twofold_migration::stream::{Compression, Writer};
use twofold_migration::{AnswerError, Answers, Cancel};
use twofold_stage2::Ipa;
use xxhash_rust::xxh3::xxh3_64;

use crate::guest::{PAGE, SLOT, address_of, capabilities, digests, hello, ids, machine, memory};
use crate::link::link;
use crate::program::Work;
use crate::sides::{Source, Target};
use crate::store::{Mood, Reports, Store};
use crate::{FIRST, Shared, Turns, boot, setting};

const VCPUS: usize = 2;
/// The least limit: a third of the guest's pages.
const LIMIT: u64 = VCPUS as u64 * FRAMES_PER_VCPU;
/// Bytes on their way: a target that waits has its source wait.
const ROOM: usize = 16 << 10;

/// The target, and the tasks beside the one that receives.
struct There {
    store: Arc<Store>,
    reports: Arc<Reports>,
    vm: OnceLock<Vm<Hosted>>,
    donated: AtomicU64,
    /// Whether the guest has come or was refused, and whether no more pages leave.
    over: AtomicBool,
    written_out: AtomicBool,
}

impl There {
    fn new(mood: Mood, room: u64) -> Self {
        let (vm, donated) = (OnceLock::new(), AtomicU64::new(0));
        let (over, written_out) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { store: Arc::new(Store::new(mood, room)), reports: Reports::new(VCPUS), vm, donated, over, written_out }
    }

    fn build(&self, machine: &Machine) -> GuestMemory<Hosted> {
        let mut memory = memory(machine, 1);
        let used = memory.frame_use();
        self.donated.store(used.free + used.tables, Ordering::Relaxed);
        let options = SwapOptions { vcpus: VCPUS as u32, others: 1, headroom: 2 };
        let (store, reports) = (Box::new(Arc::clone(&self.store)), Box::new(Arc::clone(&self.reports)));
        memory.attach_store(store, reports, &options).unwrap();
        assert_eq!(memory.set_limit(LIMIT), Ok(0));
        memory
    }

    /// The memory, once there is one.
    fn memory(&self, cpu: &CpuHandle) -> Option<&GuestMemory<Hosted>> {
        loop {
            if let Some(vm) = self.vm.get() {
                // What the CPU that built it has done is known here.
                cpu.meet();
                return Some(vm.memory());
            }
            if self.over.load(Ordering::Relaxed) {
                return None;
            }
            cpu.pause();
        }
    }

    /// The write-out task.
    fn write_out(&self, cpu: &CpuHandle) {
        let (memory, mut clock) = (self.memory(cpu), Clock::new());
        while let Some(memory) = memory.filter(|_| !self.over.load(Ordering::Relaxed)) {
            let wanted = memory.wants_frames();
            if wanted > 0 {
                let is_full = clock.make_room(memory, wanted).is_err();
                if is_full || self.store.get().failed_in_a_row > 8 {
                    memory.fail_waiting();
                }
            }
            check_limit(memory);
            cpu.pause();
        }
        self.written_out.store(true, Ordering::Relaxed);
    }

    /// The store's own CPU.
    fn complete(&self, cpu: &CpuHandle) {
        let Some(memory) = self.memory(cpu) else { return };
        while !self.written_out.load(Ordering::Relaxed) || self.store.in_flight() > 0 {
            (0..cpu.draw(10)).for_each(|_| cpu.pause());
            if self.store.get().mood != Mood::Silent || self.written_out.load(Ordering::Relaxed) {
                self.store.complete_one(cpu, memory);
            }
        }
    }

    /// The digest of each page, wherever it is.
    fn digests(&self, cpu: &CpuHandle, memory: &GuestMemory<Hosted>) -> Vec<u64> {
        let mut bytes = [0; PAGE as usize];
        let mut digest = |page| {
            let mut peek = memory.peek(Ipa::new(address_of(page))).unwrap();
            while peek.look(&mut bytes) != Peeked::Read {
                self.store.complete_one(cpu, memory);
            }
            xxh3_64(&bytes)
        };
        (0..SLOT.pages).map(&mut digest).collect()
    }

    /// A vCPU goes on by some writes, each checked.
    fn work(&self, cpu: &CpuHandle, vm: &Vm<Hosted>, vcpu: &mut Vcpu<Work>) {
        let (memory, mut clock) = (vm.memory(), Clock::new());
        // It was kicked more often than it ran.
        vcpu.interrupts().take_kick();
        vcpu.program_mut().budget = 100;
        loop {
            match vm.run(cpu, vcpu, |_| 0) {
                Ok(Left::Ended) => return,
                Err(RunError::Memory { error: Error::Absent { page, .. }, .. }) => {
                    memory.bring(page, Waiter::Other(0)).unwrap();
                    let _ = clock.make_room(memory, memory.wants_frames()).unwrap();
                    while self.store.complete_one(cpu, memory) {}
                }
                other => panic!("{other:?}"),
            }
            check_limit(memory);
        }
    }

    /// Nothing is lost.
    fn end(self) {
        let (donated, used) = (self.donated.into_inner(), self.vm.get().unwrap().memory().frame_use());
        assert_eq!((used.leaving, used.arriving, used.waiting), (0, 0, 0));
        assert_eq!(used.free + used.data + used.tables, donated, "frames are lost");
        assert_eq!(self.vm.into_inner().unwrap().destroy().free(), donated, "frames are lost");
        assert_eq!(self.store.get().live, 0, "places are lost");
        assert_eq!(self.reports.failed.load(Ordering::Relaxed), self.store.get().failed, "each failure is reported");
    }
}

fn check_limit(memory: &GuestMemory<Hosted>) {
    let used = memory.frame_use();
    assert!(used.data <= used.limit, "{used:?}");
}

/// What a move came to.
struct Done {
    /// The guest's writes, pages that were written to the target's store, and pages that are there at the end.
    wrote: u64,
    left: u64,
    absent: usize,
    rounds: u64,
    /// The reason that the source received, if the guest was refused.
    refused: Option<String>,
}

fn moves(tracker: Tracker, seed: u64, (mood, room): (Mood, u64)) -> Done {
    let what = format!("{tracker:?}, {mood:?}, TWOFOLD_SEED={seed}");
    let machine = machine(4 + VCPUS, seed);
    let vm = machine.alone(|_| boot(&machine)).unwrap_or_else(|breach| panic!("{what}: {breach}"));
    let shared = Shared::new(&vm, VCPUS);
    let there = There::new(mood, room);
    let ((sink, stream), (answer, answers)) = (link(&machine.platform(), ROOM), link(&machine.platform(), ROOM));
    let (mut sent, mut received, stopped) = (None, None, Mutex::new(Vec::new()));
    let mut programs: Vec<Program<'_>> = vec![
        Box::new(|cpu| {
            let runtime = Turns::new(&machine);
            let (downtime, fixed) = (Duration::from_nanos(1200), Duration::from_nanos(1000));
            let precopy = Precopy {
                ram: &GuestRam::new(vm.memory(), LogOptions::new(tracker), &ids(vm.memory())).unwrap(),
                hello: hello(),
                wanted: Wanted { downtime, fixed, rounds: 4, throttle: 0, forced: true },
                limit: None,
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
            let result = precopy.run(vec![sink], Some(&mut Answers::new(answers)), &mut side, &mut source);
            if result.is_err() {
                assert_eq!(side.state(), State::Running { owned: FIRST }, "{what}");
                goes_on(cpu, &shared);
            }
            sent = Some(result.map(|offered| offered.sent));
            shared.over.store(true, Ordering::Relaxed);
        }),
        Box::new(|_| {
            let runtime = Turns::new(&machine);
            let mut writer = Writer::new(answer, Compression::Off);
            let mut target = Target {
                build: Box::new(|| there.build(&machine)),
                peer: None,
                answer: Box::new(move |message| writer.message(message).unwrap()),
                vm: &there.vm,
            };
            let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &runtime };
            let side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
            received = Some(receive.run(vec![stream], &side, &mut target).map(|received| received.from));
            there.over.store(true, Ordering::Relaxed);
        }),
        Box::new(|cpu| there.write_out(cpu)),
        Box::new(|cpu| there.complete(cpu)),
    ];
    for number in 0..VCPUS {
        let shared = &shared;
        programs.push(Box::new(move |cpu| shared.run(cpu, number)));
    }
    let ran = machine.run(programs).inspect_err(|_| there.store.abandon());
    ran.unwrap_or_else(|breach| panic!("{what}: {breach}"));
    let mut vcpus = shared.into_vcpus();
    let (wrote, left) = (vcpus.iter().map(|vcpu| vcpu.program().done).sum(), there.store.get().written);
    let mut done = Done { wrote, left, absent: 0, rounds: 0, refused: None };
    let ended = machine.alone(|cpu| {
        let vm_there = there.vm.get().unwrap();
        match (sent.unwrap(), received.unwrap()) {
            (Ok(sent), Ok(from)) => {
                assert_eq!(from, FIRST);
                done.rounds = sent.rounds;
                let located = |page: &u64| vm_there.memory().locate(Ipa::new(address_of(*page))).unwrap();
                done.absent = (0..SLOT.pages).filter(|page| matches!(located(page), Located::Absent(_))).count();
                let (here, stopped) = (there.digests(cpu, vm_there.memory()), stopped.into_inner().unwrap());
                let differ: Vec<_> = (0..stopped.len()).filter(|&page| stopped[page] != here[page]).collect();
                assert!(differ.is_empty(), "{what}: pages {differ:?} differ");
                vcpus.iter_mut().for_each(|vcpu| there.work(cpu, vm_there, vcpu));
            }
            (Err(failed), Err(ReceiveError::Ram(error))) => {
                let Cause::Answer(AnswerError::Refused(why)) = failed.cause else { panic!("{what}: {failed}") };
                assert_eq!(why, error.to_string(), "{what}");
                done.refused = Some(why);
            }
            (sent, received) => panic!("{what}: {sent:?}, {received:?}"),
        }
        there.end();
        vm.destroy();
    });
    ended.unwrap_or_else(|breach| panic!("{what}: {breach}"));
    done
}

/// The guest writes on at its source.
fn goes_on(cpu: &CpuHandle, shared: &Shared<'_>) {
    shared.stop(cpu);
    let before = shared.wrote();
    shared.start();
    (0..2000).for_each(|_| cpu.pause());
    shared.stop(cpu);
    assert!(shared.wrote() > before, "the guest stands still at its source");
}

#[test]
fn judge_a_guest_comes_to_a_target_with_fewer_frames_than_pages() {
    let (first, seeds) = (setting("TWOFOLD_SEED", 1), setting("TWOFOLD_MOVES", 3));
    let (mut left, mut absent, mut wrote, mut rounds) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let done = moves(Tracker::ALL[seed as usize % 5], seed, (Mood::FailsOneIn(20), u64::MAX));
        assert_eq!(done.refused, None);
        (left, absent, wrote) = (left + done.left, absent + done.absent, wrote + done.wrote);
        rounds += done.rounds;
    }
    println!(
        "{seeds} moves in {rounds} rounds: {wrote} writes, {left} pages left, {absent} are in the store at the end"
    );
    assert!(left > 40 * seeds && absent as u64 > 20 * seeds && rounds > seeds && wrote > 5 * seeds, "this is no test");
}

#[test]
fn judge_a_store_that_frees_no_frame_refuses_the_guest() {
    let limit = format!("gets no frame: {LIMIT} of {LIMIT} frames hold data, ");
    for (mood, room, why) in [
        (Mood::FailsOneIn(1), u64::MAX, "none becomes free: the store could not write the page at "),
        (Mood::FailsOneIn(20), 7, "none becomes free"),
        (Mood::Silent, u64::MAX, "none has become free in "),
    ] {
        let refused = moves(Tracker::Manual, 1, (mood, room)).refused.expect("it is refused");
        println!("{mood:?}, room for {room}: {refused}");
        assert!(refused.contains(&limit) && refused.contains(why), "{refused}");
    }
}
