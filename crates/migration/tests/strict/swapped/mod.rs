// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All at once, in strict mode: vCPUs write, pages leave to a store that is late and fails and come back, a dirty log runs,
//! and the guest moves, by pre-copy or with pages that come after. While those come, pages leave and come at the source.
//! At the end the target's memory is the stopped source's, where the guest has not written since; no token is lost, no
//! frame and no place; and at each exit the frames are within the limit.
//!
//! `TWOFOLD_SWAP_PAGES` repeats the test with more seeds until that many pages have left or come, and `TWOFOLD_SWAP_SEED`
//! begins with this seed. A failure prints its seed.

mod vcpus;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use twofold_machine::interrupts::Interrupts;
use twofold_machine::strict::{CpuHandle, Hosted, Machine, Program};
use twofold_machine::vm::{Vcpu, Vm};
use twofold_memory::GuestMemory;
use twofold_memory::async_fault::{Mode, VcpuFaults};
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Clock, FRAMES_PER_VCPU, Located, Peeked, SwapOptions};
use twofold_migration::commit::{Side, State};
use twofold_migration::plan::Wanted;
use twofold_migration::postcopy::{Incoming, Outgoing, Peer, ServeError, Served, Source, TargetState};
use twofold_migration::precopy::{Postcopy, Precopy};
use twofold_migration::ram::{Ahead, GuestRam, RamError};
use twofold_migration::receive::Receive;
use twofold_migration::snapshot::NO_ANSWERS;
use twofold_migration::stream::{Compression, Message, Writer};
use twofold_migration::{Answers, Asked, Cancel, PageSet};
use twofold_stage2::Ipa;
use xxhash_rust::xxh3::xxh3_64;

use crate::guest::{PAGE, SLOT, address_of, capabilities, hello, ids, machine, memory, word_pages};
use crate::link::{End, link};
use crate::program::Work;
use crate::sides::{Source as SourceHost, Target};
use crate::store::{Mood, Reports, Store};
use crate::{FIRST, Turns};
use vcpus::{Seat, Seats, check_limit};

const VCPUS: usize = 2;
/// The least limit: the vCPUs use more.
const LIMIT: u64 = VCPUS as u64 * FRAMES_PER_VCPU;

/// What a run is like.
#[derive(Clone, Copy, Debug)]
struct Plan {
    tracker: Tracker,
    mode: Mode,
    postcopy: Postcopy,
    is_limited: bool,
}

/// Each page's content, wherever it is. Another CPU completes what is asked for.
fn contents(cpu: &CpuHandle, memory: &GuestMemory<Hosted>) -> Vec<Content> {
    let mut bytes = [0; PAGE as usize];
    let mut content = |page| {
        let mut peek = memory.peek(Ipa::new(address_of(page))).unwrap();
        while peek.look(&mut bytes) != Peeked::Read {
            cpu.pause();
        }
        Content::of(page, &bytes)
    };
    (0..SLOT.pages).map(&mut content).collect()
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    /// A digest of all of it, and of what neither the guest's program nor the areas are in.
    all: u64,
    rest: u64,
    /// The words of the program's vCPUs.
    words: [u64; VCPUS],
}

impl Content {
    fn of(page: u64, bytes: &[u8; PAGE as usize]) -> Self {
        let (mut rest, mut words) = (*bytes, [0; VCPUS]);
        if page >= word_pages() {
            rest[1024..1024 + 64].fill(0);
            return Self { all: xxh3_64(bytes), rest: xxh3_64(&rest), words };
        }
        for (vcpu, word) in words.iter_mut().enumerate() {
            let at = (page * 72) as usize % PAGE as usize + 8 * vcpu;
            *word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            rest[at..at + 8].fill(0);
        }
        Self { all: xxh3_64(bytes), rest: xxh3_64(&rest), words }
    }
}

/// The source: its memory with a store, and the tasks beside its vCPUs.
struct Here<'m> {
    vm: Vm<Hosted>,
    store: &'m Store,
    /// Whether no more pages are to leave, and whether none do.
    over: AtomicBool,
    written_out: AtomicBool,
}

impl Here<'_> {
    /// The write-out task.
    fn write_out(&self, cpu: &CpuHandle) {
        let (memory, mut clock) = (self.vm.memory(), Clock::new());
        while !self.over.load(Ordering::Relaxed) {
            let wanted = memory.wants_frames();
            if wanted > 0 {
                let _ = clock.make_room(memory, wanted);
            } else {
                let _ = memory.write_out(Ipa::new(address_of(cpu.draw(SLOT.pages)))).unwrap();
            }
            check_limit(memory);
            (0..cpu.draw(40)).for_each(|_| cpu.pause());
        }
        self.written_out.store(true, Ordering::Relaxed);
    }

    /// The store's own CPU, until nothing more can come.
    fn complete(&self, cpu: &CpuHandle) {
        while !self.written_out.load(Ordering::Relaxed) || self.store.in_flight() > 0 {
            (0..cpu.draw(60)).for_each(|_| cpu.pause());
            self.store.complete_one(cpu, self.vm.memory());
        }
    }

    fn begin(&self) {
        self.over.store(false, Ordering::Relaxed);
        self.written_out.store(false, Ordering::Relaxed);
    }

    /// Nothing is lost. Ends the guest.
    fn end(self, reports: &Reports, donated: u64) {
        let used = self.vm.memory().frame_use();
        assert_eq!((used.leaving, used.arriving, used.waiting), (0, 0, 0));
        assert_eq!(used.free + used.data + used.tables, donated, "frames are lost");
        assert_eq!(self.vm.destroy().free(), donated, "frames are lost");
        let inner = self.store.get();
        assert_eq!(inner.live, 0, "places are lost");
        assert_eq!(reports.failed.load(Ordering::Relaxed), inner.failed, "each failure is reported");
    }
}

/// A guest with a store, and a content in each page.
fn boot<'m>(
    machine: &Machine,
    cpu: &CpuHandle,
    plan: &Plan,
    store: &'m Arc<Store>,
    reports: &Arc<Reports>,
) -> Here<'m> {
    let mut memory = memory(machine, 0);
    let options = SwapOptions { vcpus: VCPUS as u32, others: VCPUS as u32, headroom: 2 };
    memory.attach_store(Box::new(Arc::clone(store)), Box::new(Arc::clone(reports)), &options).unwrap();
    if plan.is_limited {
        assert_eq!(memory.set_limit(LIMIT), Ok(0));
    }
    let mut clock = Clock::new();
    for page in 0..word_pages() {
        let at = Ipa::new(address_of(page) + (page * 72 + 2048) % PAGE);
        // Each fourth page stays zero, where the guest does not write.
        while page % 4 > 0 && memory.write(at, &page.to_le_bytes().map(|byte| !byte)).is_err() {
            let _ = clock.make_room(&memory, 1).unwrap();
            while store.complete_one(cpu, &memory) {}
        }
    }
    let (over, written_out) = (AtomicBool::new(false), AtomicBool::new(false));
    Here { vm: Vm::new(memory), store, over, written_out }
}

/// What a run did.
#[derive(Default)]
struct Done {
    moved: u64,
    failed: u64,
    writes: u64,
    rounds: u64,
    absent: u64,
    waited: u64,
    waited_there: u64,
    announced: u64,
    wake_alls: u64,
}

fn moves(plan: Plan, seed: u64) -> Done {
    let what = format!("TWOFOLD_SWAP_SEED={seed}, {plan:?}");
    let machine = machine(3 + VCPUS, seed);
    let (store, reports) = (Arc::new(Store::new(Mood::FailsOneIn(20), u64::MAX)), Reports::new(VCPUS));
    let run = |programs: Vec<Program<'_>>| {
        machine.run(programs).inspect_err(|_| store.abandon()).unwrap_or_else(|breach| panic!("{what}: {breach}"));
    };
    let mut donated = 0;
    let here = machine.alone(|cpu| {
        let here = boot(&machine, cpu, &plan, &store, &reports);
        let used = here.vm.memory().frame_use();
        donated = used.free + used.data + used.tables;
        here
    });
    let here = here.unwrap_or_else(|breach| panic!("{what}: {breach}"));
    let seat = |number| {
        let vcpu = Vcpu::new(Work::new(number as u64, (24, 60)), Arc::new(Interrupts::without_time()));
        Seat::new(number, vcpu, plan.mode)
    };
    let mut seats: Vec<_> = (0..VCPUS as u32).map(seat).collect();
    if plan.mode == Mode::Pv {
        let enabled = machine.alone(|_| {
            let each = seats.iter_mut().zip(&reports.arrivals);
            each.for_each(|(seat, arrivals)| seat.enable(here.vm.memory(), arrivals));
        });
        enabled.unwrap_or_else(|breach| panic!("{what}: {breach}"));
    }
    let seats = Seats::new(&here.vm, seats, &reports);
    // One side is on it after the other.
    let ((sink, stream), runtime) = (link(&machine.platform(), usize::MAX), Turns::new(&machine));
    let (stopped, mut sent) = (Mutex::new(Vec::new()), None);
    run({
        let mut programs: Vec<Program<'_>> = vec![Box::new(|cpu| {
            let (downtime, fixed) = (Duration::from_nanos(1200), Duration::from_nanos(1000));
            let precopy = Precopy {
                ram: &GuestRam::new(here.vm.memory(), LogOptions::new(plan.tracker), &ids(here.vm.memory())).unwrap(),
                hello: hello(),
                wanted: Wanted { downtime, fixed, rounds: 3, throttle: 0, forced: plan.postcopy == Postcopy::Off },
                // So that the guest runs in the middle of rounds.
                limit: Some(1),
                compression: Compression::Off,
                postcopy: plan.postcopy,
                runtime: &runtime,
                cancel: &Cancel::new(),
            };
            let mut side = Side::new(FIRST.owner, State::Running { owned: FIRST });
            let stop = || {
                seats.stop(cpu);
                *stopped.lock().unwrap() = contents(cpu, here.vm.memory());
            };
            let mut source = SourceHost { stop: Box::new(stop) };
            let offered = precopy.run(vec![sink], NO_ANSWERS, &mut side, &mut source).unwrap();
            assert!(offered.broken.is_none(), "{offered:?}");
            sent = Some(offered);
            seats.over.store(true, Ordering::Relaxed);
            here.over.store(true, Ordering::Relaxed);
        })];
        programs.push(Box::new(|cpu| here.write_out(cpu)));
        programs.push(Box::new(|cpu| here.complete(cpu)));
        for number in 0..VCPUS {
            let seats = &seats;
            programs.push(Box::new(move |cpu| seats.run(cpu, number)));
        }
        programs
    });
    let (sent, stopped, mut seats) = (sent.unwrap(), stopped.into_inner().unwrap(), seats.into_seats());
    let mut done = Done { rounds: sent.sent.rounds, ..Done::default() };
    done.waited = seats.iter().map(|seat| seat.waited).sum();

    // The target takes it, and its guest starts.
    let reports_there = Reports::new(VCPUS);
    let peer = Arc::new(Peer::new(machine.platform(), &[SLOT], Box::new(|| ())));
    let (mut incoming, mut absent, donated_there) = (None, PageSet::none(&[SLOT]), AtomicU64::new(0));
    let there = machine.alone(|cpu| {
        let vm = OnceLock::new();
        let build = || {
            let mut memory = memory(&machine, 1);
            let used = memory.frame_use();
            donated_there.store(used.free + used.tables, Ordering::Relaxed);
            let options = SwapOptions { vcpus: VCPUS as u32, others: VCPUS as u32, headroom: 0 };
            memory.attach_store(Box::new(Arc::clone(&peer)), Box::new(Arc::clone(&reports_there)), &options).unwrap();
            memory
        };
        let (peer, answer) = (Some(Arc::clone(&peer)), Box::new(|_: &Message| ()));
        let mut target = Target { build: Box::new(build), peer, answer, vm: &vm };
        let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &runtime };
        let side = Side::new(twofold_migration::commit::Owner { host: 1, incarnation: 0 }, State::START);
        let received = receive.run(vec![stream], &side, &mut target).unwrap();
        assert_eq!(received.from, FIRST);
        if let Some((state, stream)) = received.postcopy {
            absent = state.absent().clone();
            incoming = Some(stream);
        }
        drop(target);
        let there = vm.into_inner().unwrap();
        let memory = there.memory();
        let here: Vec<u64> = (0..SLOT.pages).filter(|page| !absent.contains(0, *page)).collect();
        let mut bytes = [0; PAGE as usize];
        for page in here {
            memory.read(Ipa::new(address_of(page)), &mut bytes).unwrap();
            assert_eq!(Content::of(page, &bytes), stopped[page as usize], "{what}: page {page} differs");
        }
        for seat in &mut seats {
            // It was kicked more often than it ran.
            seat.vcpu.interrupts().take_kick();
            seat.faults = VcpuFaults::restore(plan.mode, memory, &seat.faults.snapshot()).unwrap();
        }
        let log = memory.dirty_log(ids(memory)[0].0).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(plan.tracker) }).unwrap();
        cpu.meet();
        there
    });
    let there = there.unwrap_or_else(|breach| panic!("{what}: {breach}"));
    let donated_there = donated_there.into_inner();
    done.absent = absent.count();
    assert_eq!(sent.postcopy.as_ref().map_or(0, |(source, _)| source.left()), done.absent);

    // The pages that are absent come, while the guest runs there, and pages leave and come at the source.
    let seats = Seats::new(&there, seats, &reports_there);
    here.begin();
    run({
        let (seats, here, there, peer) = (&seats, &here, &there, &peer);
        let postcopy = sent.postcopy.zip(incoming);
        let mut programs: Vec<Program<'_>> = vec![Box::new(move |cpu| {
            if let Some(((source, outgoing), incoming)) = postcopy {
                fetch(cpu, (here, source, outgoing), (there, peer, incoming));
            }
            // Each task is woken.
            while seats.out() > 0 {
                seats.kick();
                cpu.pause();
            }
            (0..500).for_each(|_| cpu.pause());
            seats.stop(cpu);
            seats.over.store(true, Ordering::Relaxed);
            here.over.store(true, Ordering::Relaxed);
        })];
        programs.push(Box::new(|cpu| here.write_out(cpu)));
        programs.push(Box::new(|cpu| here.complete(cpu)));
        for number in 0..VCPUS {
            programs.push(Box::new(move |cpu| seats.run(cpu, number)));
        }
        programs
    });
    let mut seats = seats.into_seats();
    let ended = machine.alone(|cpu| {
        if done.absent > 0 {
            assert_eq!(peer.state(), TargetState::Complete);
        }
        let memory = there.memory();
        for (seat, arrivals) in seats.iter_mut().zip(&reports_there.arrivals) {
            seat.take_all_tokens(memory, arrivals);
        }
        let log = memory.dirty_log(ids(memory)[0].0).unwrap();
        let mut dirty = DirtyPages::new();
        log.get(&mut dirty).unwrap();
        log.stop().unwrap();
        for (page, (here, then)) in contents(cpu, memory).iter().zip(&stopped).enumerate() {
            // The guest writes its words, and nothing else.
            assert_eq!(here.rest, then.rest, "{what}: page {page} differs");
            let wrote = |seat: &Seat| seat.vcpu.program().wrote.get(page).copied().unwrap_or(0);
            assert!(here.words.into_iter().eq(seats.iter().map(wrote)), "{what}: page {page}, {here:?}");
            if !dirty.contains(page as u64) {
                assert_eq!(here.all, then.all, "{what}: page {page} differs");
            }
        }
        for page in 0..SLOT.pages {
            let located = memory.locate(Ipa::new(address_of(page))).unwrap();
            assert!(matches!(located, Located::Present | Located::Zero), "page {page}: {located:?}");
        }
        let used = memory.frame_use();
        assert_eq!((used.leaving, used.arriving, used.waiting), (0, 0, 0));
        assert_eq!(used.free + used.data + used.tables, donated_there, "frames are lost");
        assert_eq!(there.destroy().free(), donated_there, "frames are lost");
        here.end(&reports, donated);
    });
    ended.unwrap_or_else(|breach| panic!("{what}: {breach}"));
    for seat in &seats {
        assert!(seat.out.is_empty(), "{what}: tokens {:?} are lost", seat.out);
        (done.announced, done.wake_alls) = (done.announced + seat.announced, done.wake_alls + seat.wake_alls);
        done.writes += seat.vcpu.program().done;
    }
    done.waited_there = seats.iter().map(|seat| seat.waited).sum::<u64>() - done.waited;
    let inner = store.get();
    (done.moved, done.failed) = (inner.moved, inner.failed);
    done
}

/// Both ends of the link after the guest has changed hands.
fn fetch(
    cpu: &CpuHandle,
    (here, mut source, mut outgoing): (&Here<'_>, Source, Outgoing<End>),
    (there, peer, mut incoming): (&Vm<Hosted>, &Peer<Hosted>, Incoming<End>),
) {
    let ram = GuestRam::new(here.vm.memory(), LogOptions::new(Tracker::Manual), &ids(here.vm.memory())).unwrap();
    let (answers, asked) = link(there.memory().stage2().platform(), usize::MAX);
    let (mut answers, mut asked) = (Writer::with_absent(answers, Compression::Off), Answers::new(asked));
    let mut ahead = Ahead::new();
    loop {
        // Time for the guest to run.
        (0..cpu.draw(60)).for_each(|_| cpu.pause());
        for _ in 0..peer.ask(&mut answers).unwrap() {
            let Asked::Pages { waits: true, slot, page, count } = asked.asked().unwrap() else {
                panic!("another question")
            };
            source.request(true, slot, page, count).unwrap();
        }
        match outgoing.send(&mut source, &ram, &mut ahead) {
            Ok(Served::Page(..)) => peer.receive(there.memory(), &mut incoming).unwrap(),
            Ok(Served::Later) | Err(ServeError::Ram(RamError::Store { .. })) => cpu.pause(),
            Ok(Served::All) => return assert_eq!(peer.state(), TargetState::Complete, "a page is lost"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn judge_a_guest_whose_pages_leave_and_come_while_it_moves() {
    let number = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let (pages, first) = (number("TWOFOLD_SWAP_PAGES").unwrap_or(0), number("TWOFOLD_SWAP_SEED").unwrap_or(1));
    let mut all = Done::default();
    for seed in first.. {
        let plan = Plan {
            tracker: Tracker::ALL[seed as usize % 5],
            mode: [Mode::Pv, Mode::Halt, Mode::Off][seed as usize % 3],
            postcopy: [Postcopy::AtOnce, Postcopy::IfNeeded, Postcopy::Off, Postcopy::IfNeeded][seed as usize % 4],
            is_limited: seed % 7 > 1,
        };
        println!("TWOFOLD_SWAP_SEED={seed}: {plan:?}");
        let done = moves(plan, seed);
        all.moved += done.moved;
        all.failed += done.failed;
        all.writes += done.writes;
        all.rounds += done.rounds;
        all.absent += done.absent;
        all.waited += done.waited;
        all.waited_there += done.waited_there;
        all.announced += done.announced;
        all.wake_alls += done.wake_alls;
        if seed >= first + 5 && all.moved >= pages {
            println!("up to seed {seed}: {} pages left or came, {} requests failed", all.moved, all.failed);
            println!("{} writes and {} rounds; {} pages came after the switch", all.writes, all.rounds, all.absent);
            println!("{} faults on absent pages here, {} there", all.waited, all.waited_there);
            println!("{} tokens announced, {} wake-alls", all.announced, all.wake_alls);
            break;
        }
    }
    assert!(all.moved > 500 && all.failed > 10 && all.rounds > 5, "this is no test");
    assert!(all.absent > 50 && all.waited > 20 && all.waited_there > 10 && all.announced > 5, "this is no test");
    assert!(all.wake_alls > 0, "this is no test");
}
