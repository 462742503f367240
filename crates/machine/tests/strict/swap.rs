// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages leave and come back while vCPUs use them, a log runs, and a store completes late, in any order, and with
//! failures: every word is what was written, the log loses no write, no token is lost, no frame is reached after it was
//! freed, and the limit holds.
//!
//! `TWOFOLD_SWAP_PAGES` repeats the test with more seeds until that many pages have left and come back, and
//! `TWOFOLD_SWAP_SEED` begins with this seed. A failure prints its seed. One request in 20 fails, or one in as many as
//! `TWOFOLD_SWAP_FAILS` says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use twofold_machine::strict::{Bbm, Breach, CpuHandle, Hosted, Knowledge, Machine, Program};
use twofold_machine::vm::{Left, RunError, Vcpu, Vm};
use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt};
use twofold_memory::async_fault::{AbsentPage, Arrivals, Context, Host, Mode, Next, Ticket, VcpuFaults, Wait};
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::swap::{Clock, Generations, SwapOptions, Waiter};
use twofold_memory::{Answer, Backing, Error, Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};

use crate::store::{Mood, Reports, Store};
use crate::vm::programs::WorkingSet;
use crate::vm::scenarios::{MIB_2, PART, RAM, Room};
use crate::vm::{machine, room};
use crate::world::{MODERN, PAGE, PLAIN};

const VCPUS: u64 = 2;
/// Pages that the vCPUs use: half of them in one huge page, half in the next.
const TOUCHED: u64 = 61;
const START: Ipa = Ipa::new(RAM.raw() + MIB_2 - 32 * PAGE);
/// The least limit: the vCPUs use more.
const LIMIT: u64 = VCPUS * twofold_memory::swap::FRAMES_PER_VCPU;
/// One request in `FAILS` fails, unless the environment has another number.
const FAILS: u64 = 20;
/// Waiters that are no vCPUs.
const COPIER: u64 = 0;

struct VcpuHost<'a> {
    vcpu: u32,
    memory: &'a GuestMemory<Hosted>,
}

impl Host for VcpuHost<'_> {
    type Memory = GuestMemory<Hosted>;

    fn memory(&self) -> &Self::Memory {
        self.memory
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        self.memory.bring(absent.page, Waiter::Vcpu { vcpu: self.vcpu, ticket }).unwrap();
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.memory.forget(Waiter::Vcpu { vcpu: self.vcpu, ticket });
    }

    fn map(&mut self, fault: &GuestFault) {
        let answer = self.memory.fault(fault).unwrap();
        assert!(matches!(answer, Answer::Retry(_) | Answer::Absent), "{answer:?}");
    }

    fn raise(&mut self) {}
    fn lower(&mut self) {}

    fn can_take_interrupt(&mut self) -> bool {
        false
    }
}

/// Runs a vCPU to its end, with a halt for each absent page.
fn run_vcpu(vm: &Vm<Hosted>, cpu: &CpuHandle, number: u32, vcpu: &mut Vcpu<WorkingSet>, arrivals: &Arrivals) {
    let mut faults = VcpuFaults::new(Mode::Halt);
    let mut host = VcpuHost { vcpu: number, memory: vm.memory() };
    let interface = CpuInterface { enabled: [false, true], mask: 0xf0, running: 0xff, binary_point: [0, 1] };
    let ppi = Interrupt { group: Group::One, enabled: true, pending: false, active: false, priority: 0xa0 };
    loop {
        let fault = match vm.run(cpu, vcpu, |_| 0) {
            Ok(Left::Ended) => return,
            Err(RunError::Memory { fault, error: Error::Absent { .. } }) => fault,
            other => panic!("{other:?}"),
        };
        let absent = AbsentPage::of(&fault);
        let context = Context { pc: 0, pstate: 0, interface, ppi };
        let mut next = faults.fault(arrivals, &mut host, &absent, &context);
        while next != Next::Enter {
            match next {
                Next::Wait(Wait::Page | Wait::PageOrInterrupt) => cpu.pause(),
                // The store has failed once; it is mended at once.
                Next::Stop { .. } => faults.retry_failed(arrivals, &mut host),
                Next::Enter => {}
            }
            next = faults.before_entry(arrivals, &mut host);
        }
        check_limit(vm.memory());
    }
}

fn check_limit(memory: &GuestMemory<Hosted>) {
    let used = memory.frame_use();
    assert!(used.data <= used.limit, "{used:?}");
}

/// Reads the word of each vCPU in a page, wherever the page is.
fn read_page(cpu: &CpuHandle, memory: &GuestMemory<Hosted>, page: u64, reports: &Reports) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    loop {
        match memory.read(START + page * PAGE, &mut bytes) {
            Ok(()) => return bytes,
            Err(Error::Absent { page, .. }) => {
                let arrived = reports.others.load(Ordering::Relaxed);
                memory.bring(page, Waiter::Other(COPIER)).unwrap();
                while reports.others.load(Ordering::Relaxed) == arrived {
                    cpu.pause();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Copies all pages that a log reports, until `is_over` was seen before a round. Returns the copy.
fn copy(
    cpu: &CpuHandle,
    (memory, slot): (&GuestMemory<Hosted>, SlotId),
    (tracker, reports): (Tracker, &Reports),
    is_over: impl Fn() -> bool,
) -> BTreeMap<u64, Vec<u8>> {
    let log = memory.dirty_log(slot).unwrap();
    log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
    let first = (START - RAM) / PAGE;
    let mut copy: BTreeMap<u64, Vec<u8>> =
        (0..TOUCHED).map(|page| (page, read_page(cpu, memory, page, reports))).collect();
    let mut dirty = DirtyPages::new();
    loop {
        let is_last = is_over();
        log.get(&mut dirty).unwrap();
        if tracker != Tracker::WriteProtect {
            log.clear_these(&dirty).unwrap();
        }
        for page in dirty.pages().filter_map(|page| page.checked_sub(first)).filter(|page| *page < TOUCHED) {
            copy.insert(page, read_page(cpu, memory, page, reports));
        }
        if is_last {
            return copy;
        }
        (0..cpu.draw(100)).for_each(|_| cpu.pause());
    }
}

/// Rounds of the vCPUs, which execute pages in the third.
const ROUNDS: u64 = 3;

/// What differs between runs.
struct Plan {
    pages: Pages,
    tracker: Tracker,
    is_limited: bool,
    /// Pages leave by their age, or else in the order of their addresses.
    by_age: bool,
    fails: u64,
}

/// What one run did.
struct Done {
    brought: u64,
    failed: u64,
}

fn swapped(
    machine: &Machine,
    room: &Room<'_, Hosted>,
    &Plan { pages, tracker, is_limited, by_age, fails }: &Plan,
) -> Result<Done, Breach> {
    let store = Arc::new(Store::new(Mood::FailsOneIn(fails), u64::MAX));
    let reports = Reports::new(VCPUS as usize);
    let (vm, slot, donated) = machine.alone(|_| {
        let mut frames = Frames::new(room.features);
        frames.add(room.arena.donate_part(0, PART).unwrap());
        let donated = frames.free();
        let geometry = Geometry::new(Kib4, 40, &room.features).unwrap();
        let mut memory = GuestMemory::new(room.platform.clone(), geometry, Vmid::new(1), frames, pages).unwrap();
        let range = RAM..RAM + 4 * MIB_2;
        let slot = memory.add_slot(Slot { range, backing: Backing::Ram, writable: true }).unwrap();
        let options = SwapOptions { vcpus: VCPUS as u32, others: 1, headroom: 2 };
        memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&reports)), &options).unwrap();
        if is_limited {
            assert_eq!(memory.set_limit(LIMIT), Ok(0));
        }
        (Vm::new(memory), slot, donated)
    })?;
    let program = |vcpu| WorkingSet::new(START.raw(), TOUCHED, ROUNDS, (vcpu, VCPUS));
    let mut vcpus: Vec<_> = (0..VCPUS).map(|vcpu| room.vcpu(program(vcpu))).collect();
    // What each vCPU's CPU knew at its end: the copier's last round comes after that.
    let (ended, copied) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let copy_of = Mutex::new(BTreeMap::new());
    let is_over = || {
        let ended: Vec<Option<Knowledge>> = ended.lock().unwrap().clone();
        ended.iter().flatten().for_each(Knowledge::learn);
        ended.len() as u64 == VCPUS
    };
    let is_copied = || copied.load(Ordering::Relaxed) == 1;
    let written_out = AtomicU64::new(0);
    let is_written_out = || written_out.load(Ordering::Relaxed) == 1;
    let (vm_ref, ended_ref) = (&vm, &ended);
    let mut programs: Vec<Program<'_>> = Vec::new();
    for (number, (vcpu, arrivals)) in vcpus.iter_mut().zip(&reports.arrivals).enumerate() {
        programs.push(Box::new(move |cpu| {
            run_vcpu(vm_ref, cpu, number as u32, vcpu, arrivals);
            let known = Knowledge::of_this_cpu();
            ended_ref.lock().unwrap().push(known);
        }));
    }
    // The write-out task.
    programs.push(Box::new(|cpu| {
        let (memory, mut clock, mut ages) = (vm.memory(), Clock::new(), Generations::new());
        while !is_copied() {
            let wanted = memory.wants_frames();
            if wanted > 0 {
                let _ = if by_age { ages.make_room(memory, wanted) } else { clock.make_room(memory, wanted) };
            } else if by_age && cpu.draw(8) == 0 {
                ages.round(memory);
            } else {
                let _ = memory.write_out(START + cpu.draw(TOUCHED) * PAGE).unwrap();
            }
            check_limit(memory);
            (0..cpu.draw(40)).for_each(|_| cpu.pause());
        }
        written_out.fetch_add(1, Ordering::Relaxed);
    }));
    // The store's own CPU.
    programs.push(Box::new(|cpu| {
        // Until nothing more can come.
        while !is_written_out() || store.in_flight() > 0 {
            (0..cpu.draw(60)).for_each(|_| cpu.pause());
            store.complete_one(cpu, vm.memory());
        }
    }));
    programs.push(Box::new(|cpu| {
        let copied_pages = copy(cpu, (vm.memory(), slot), (tracker, &reports), is_over);
        *copy_of.lock().unwrap() = copied_pages;
        copied.fetch_add(1, Ordering::Relaxed);
    }));
    machine.run(programs).inspect_err(|_| store.abandon())?;
    machine.alone(|cpu| {
        let memory = vm.memory();
        let used = memory.frame_use();
        assert_eq!((used.leaving, used.arriving, used.waiting), (0, 0, 0));
        assert_eq!(used.free + used.data + used.tables, donated, "frames are lost");
        let _ = memory.set_limit(u64::MAX).unwrap();
        let copy = copy_of.into_inner().unwrap();
        for page in 0..TOUCHED {
            memory.bring(START + page * PAGE, Waiter::Other(COPIER)).unwrap();
            while store.complete_one(cpu, memory) {}
            // A read may have failed.
            while memory.read(START + page * PAGE, &mut [0]).is_err() {
                memory.bring(START + page * PAGE, Waiter::Other(COPIER)).unwrap();
                while store.complete_one(cpu, memory) {}
            }
            let bytes = read_page(cpu, memory, page, &reports);
            assert!(copy[&page] == bytes, "the log has lost a write to page {page}");
            for vcpu in 0..VCPUS {
                let set = WorkingSet::new(START.raw(), TOUCHED, ROUNDS, (vcpu, VCPUS));
                let at = (set.word(page, vcpu) % PAGE) as usize;
                let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!(word, WorkingSet::value(vcpu, page, ROUNDS - 1), "page {page}, vCPU {vcpu}");
            }
        }
        let frames = vm.destroy();
        assert_eq!(frames.free(), donated, "frames are lost");
        assert_eq!(store.get().live, 0, "places are lost");
        let inner = store.get();
        assert_eq!(reports.failed.load(Ordering::Relaxed), inner.failed, "each failure is reported");
        Done { brought: inner.moved - inner.written, failed: inner.failed }
    })
}

fn run(features: Features, seed: u64, fails: u64) -> Done {
    println!("TWOFOLD_SWAP_SEED={seed}");
    let machine = machine((features, Bbm::default()), VCPUS as usize + 3, seed, 1);
    let pages = if seed.is_multiple_of(2) { Pages::Small } else { Pages::Largest };
    let tracker = Tracker::ALL[seed as usize % 5];
    let plan =
        Plan { pages, tracker, is_limited: !seed.is_multiple_of(3), by_age: (seed / 2).is_multiple_of(2), fails };
    swapped(&machine, &room(&machine, features), &plan)
        .unwrap_or_else(|breach| panic!("seed {seed}, {tracker:?}: {breach}"))
}

#[test]
fn judge_pages_leave_and_come_back_while_vcpus_use_them() {
    let number = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let (pages, first) = (number("TWOFOLD_SWAP_PAGES").unwrap_or(0), number("TWOFOLD_SWAP_SEED").unwrap_or(1));
    let fails = number("TWOFOLD_SWAP_FAILS").unwrap_or(FAILS);
    let (mut brought, mut failed) = (0, 0);
    for seed in first.. {
        for features in [MODERN, PLAIN] {
            let done = run(features, seed, fails);
            brought += done.brought;
            failed += done.failed;
        }
        if seed >= first + 5 && brought >= pages {
            println!("{brought} pages left and came back, and {failed} requests failed, up to seed {seed}");
            break;
        }
    }
    // Each page that came back was one request or more. Half of the failures that these make likely are enough.
    assert!(brought > 500 && failed >= (brought / fails / 2).min(10), "{brought} pages, {failed} failures: no test");
}
