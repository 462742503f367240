// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a guest takes heap memory for the parts of its slots that it touches, not for their whole size; that its
//! fault returns an error if the heap has no memory for that; and that a fault takes nothing else from the heap, which
//! other guests may have filled.

#[path = "machine/mod.rs"]
mod machine;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use machine::guest::RunningGuest;
use machine::platform::{Event, PLAIN};
use machine::{HUGE_PAGE, PAGE};
use twofold_memory::async_fault::Arrival;
use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::swap::{
    Completions, Failure, Generations, Located, Notify, PageStore, PinnedFor, Place, ReadRequest, Relief, SwapOptions,
    Waiter, WriteRequest, WrittenOut,
};
use twofold_memory::{Answer, Backing, Done, Error, GuestFault, Pages};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::platform::Tlbi;
use twofold_stage2::{Ipa, Kib4, TableSource};

/// The host's heap. It refuses allocations above a size that each thread sets.
struct Heap;

thread_local! {
    static MOST: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the system's allocator, or a refusal.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > MOST.get() {
            return null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises; `alloc` got the memory from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[test]
fn a_slot_may_be_as_large_as_the_address_space() {
    // Enough for one word for each untouched 128 MiB, and for the test's own machine.
    MOST.set(16 << 20);
    let end = 1 << 48;
    let mut guest = RunningGuest::with_ipa_bits(PLAIN, Pages::Largest, 4, 48);
    guest.add_ram(Ipa::new(0), end);
    for ipa in [0, end / 2, end - 1] {
        guest.reach(Ipa::new(ipa), AccessKind::Write);
    }
}

#[test]
fn a_host_without_memory_is_an_error() {
    for ipa in [0, HUGE_PAGE * 1000 + 0x123] {
        let mut guest = RunningGuest::new(PLAIN, Pages::Small, 2);
        guest.add_ram(Ipa::new(0), 1 << 32);
        let (page, free) = (Ipa::new(ipa & !0xfff), guest.memory.frames().free());
        MOST.set(4096);
        let refused = guest.fault(Ipa::new(ipa), FaultKind::Translation, AccessKind::Read);
        let written = guest.memory.write(Ipa::new(ipa), &[1]);
        MOST.set(usize::MAX);
        assert_eq!((refused, written), (Err(Error::NoFrames { ipa: page }), Err(Error::NoFrames { ipa: page })));
        assert_eq!((guest.memory.frames().free(), guest.walk(page)), (free, None));
        guest.reach(Ipa::new(ipa), AccessKind::Read);
    }
}

/// An allocation that is not expected would end the process.
#[test]
fn faults_are_answered_with_a_full_heap() {
    let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 16);
    guest.add_ram(Ipa::new(0), 256 * HUGE_PAGE);
    let (memory, free) = (&guest.memory, guest.memory.frames().free());
    let touch = |huge_page: u64| {
        let ipa = Ipa::new(huge_page * HUGE_PAGE);
        memory.fault(&GuestFault { ipa, kind: FaultKind::Translation, access: AccessKind::Write })
    };
    // A slot keeps its huge pages in parts of 64, and allocates a part at its first touch.
    assert!(touch(0).is_ok());
    guest.machine.expect_events(1 << 16);
    MOST.set(0);
    for huge_page in 1..8 {
        let mapped = touch(huge_page);
        assert!(matches!(mapped, Ok(Answer::Retry(Done::Mapped { first_touch: true, .. }))));
    }
    // Another part, for which the heap has no room.
    let refused = touch(64);
    // Frames come and go, one by one and in runs.
    let mut frames = memory.frames();
    for _ in 0..1000 {
        let (page, run) = (TableSource::<Kib4>::take(&mut *frames).unwrap(), frames.take(16).unwrap());
        frames.give(page);
        assert_eq!(frames.give_run(run), Ok(()));
    }
    // Fragmented, as after a long run.
    let mut pages: [_; 64] = std::array::from_fn(|_| TableSource::<Kib4>::take(&mut *frames));
    pages.iter_mut().step_by(2).filter_map(Option::take).for_each(|page| frames.give(page));
    pages.into_iter().flatten().for_each(|page| frames.give(page));
    let large = frames.take(1024).unwrap();
    assert_eq!(frames.give_run(large), Ok(()));
    drop(frames);
    MOST.set(usize::MAX);
    assert_eq!(refused, Err(Error::NoFrames { ipa: Ipa::new(64 * HUGE_PAGE) }));
    assert!(touch(64).is_ok(), "there is room again");
    assert!(memory.frames().free() < free - 9 * HUGE_PAGE / PAGE);
}

/// A store that keeps its requests, in lists that have room.
struct Kept(Mutex<(Vec<WriteRequest>, Vec<ReadRequest>)>);

impl PageStore for Kept {
    fn place(&self, page: Ipa) -> Option<Place> {
        Some(Place::new(page.raw()))
    }

    fn write(&self, _: &dyn Completions, request: WriteRequest) {
        self.0.lock().unwrap().0.push(request);
    }

    fn read(&self, _: &dyn Completions, request: ReadRequest) {
        self.0.lock().unwrap().1.push(request);
    }

    fn discard(&self, _: Place) {}
}

struct Unheard;

impl Notify for Unheard {
    fn arrived(&self, _: Waiter, _: Arrival) {}
    fn failed(&self, _: &Failure) {}
    fn frames_wanted(&self) {}
}

/// Pages leave, and their states are allocated then. Faults on them, their arrival, and first touches by single frames
/// take nothing from the heap.
#[test]
fn faults_with_a_page_store_are_answered_with_a_full_heap() {
    let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Largest, 4);
    guest.add_ram(Ipa::new(0), 4 * HUGE_PAGE);
    let store = Arc::new(Kept(Mutex::new((Vec::with_capacity(64), Vec::with_capacity(64)))));
    let options = SwapOptions { vcpus: 1, others: 8, headroom: 0 };
    guest.memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Unheard), &options).unwrap();
    assert_eq!(guest.memory.set_limit(512 + 16), Ok(0));
    guest.memory.write(Ipa::new(0), &[1; 3 * PAGE as usize]).unwrap();
    guest.machine.expect_events(1 << 16);
    let memory = &guest.memory;
    let complete_writes = || {
        let requests = std::mem::take(&mut store.0.lock().unwrap().0);
        requests.into_iter().for_each(|request| memory.complete_write(request, Ok(())));
    };
    assert_eq!(memory.write_out(Ipa::new(0)), Ok(WrittenOut::Started));
    assert_eq!(memory.write_out(Ipa::new(PAGE)), Ok(WrittenOut::Started));
    complete_writes();
    let touch = |page: u64| {
        memory.fault(&GuestFault {
            ipa: Ipa::new(page * PAGE),
            kind: FaultKind::Translation,
            access: AccessKind::Write,
        })
    };
    MOST.set(0);
    let absent = touch(0);
    let asked = [memory.bring(Ipa::new(0), Waiter::Other(0)), memory.bring(Ipa::new(0), Waiter::Other(1))];
    let request = store.0.lock().unwrap().1.pop();
    if let Some(request) = request {
        memory.complete_read(request, Ok(()));
    }
    let present = touch(0);
    // 2 MiB are not allowed any more, so the next huge pages take single frames; then none is left.
    let singles: [_; 20] = std::array::from_fn(|page| touch(512 + 300 * (page as u64 % 3) + page as u64));
    let waits = memory.bring(Ipa::new(1000 * PAGE), Waiter::Other(2));
    let failed = memory.fail_waiting();
    MOST.set(usize::MAX);
    assert!(matches!(absent, Ok(Answer::Absent)), "{absent:?}");
    assert!(asked.iter().chain([&waits]).all(Result::is_ok));
    assert!(matches!(present, Ok(Answer::Retry(_))), "{present:?}");
    let touched = singles.iter().filter(|answer| matches!(answer, Ok(Answer::Retry(Done::Mapped { .. })))).count();
    assert_eq!((touched, failed), (17, 1), "{singles:?}");
    assert!(singles[17..].iter().all(|answer| matches!(answer, Ok(Answer::Absent))), "{singles:?}");
}

/// Pages whose ages find no room on the heap leave in the order of their addresses, and by age again when there is room.
#[test]
fn pages_leave_with_a_full_heap() {
    let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 4);
    guest.add_ram(Ipa::new(0), 4 * HUGE_PAGE);
    let store = Arc::new(Kept(Mutex::new((Vec::with_capacity(64), Vec::new()))));
    let options = SwapOptions { vcpus: 1, others: 8, headroom: 0 };
    guest.memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Unheard), &options).unwrap();
    guest.memory.write(Ipa::new(0), &[1; 60 * PAGE as usize]).unwrap();
    guest.machine.expect_events(1 << 16);
    let (memory, mut ages) = (&guest.memory, Generations::new());
    // Nothing at all, and all but what is kept of a slot's pages.
    for most in [0, 4096] {
        MOST.set(most);
        let relief = ages.make_room(memory, 10);
        MOST.set(usize::MAX);
        assert_eq!(relief, Ok(Relief { freed: 0, started: 10, ..Relief::default() }), "{most}");
        assert_eq!(ages.working_set(63).accessed, 0);
    }
    let left: Vec<_> = (0..60).filter(|page| memory.locate(Ipa::new(page * PAGE)) == Ok(Located::Leaving)).collect();
    assert_eq!(left, (0..20).collect::<Vec<_>>());
    let page = GuestFault { ipa: Ipa::new(20 * PAGE), kind: FaultKind::Translation, access: AccessKind::Write };
    let _ = memory.fault(&page).unwrap();
    let relief = ages.make_room(memory, 10).unwrap();
    assert_eq!((relief.started, ages.working_set(63).accessed), (10, 1));
    assert_eq!(memory.locate(page.ipa), Ok(Located::Present));
    let requests = std::mem::take(&mut store.0.lock().unwrap().0);
    requests.into_iter().for_each(|request| memory.complete_write(request, Ok(())));
}

/// The ages of some pages are known, and for others the heap has no memory: first the former leave, then as many of the
/// latter as are still wanted.
#[test]
fn pages_of_unknown_age_leave_last() {
    let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 4);
    let second = Ipa::new(1 << 30);
    guest.add_ram(Ipa::new(0), HUGE_PAGE);
    guest.add_ram(second, HUGE_PAGE);
    let store = Arc::new(Kept(Mutex::new((Vec::with_capacity(64), Vec::new()))));
    assert!(store.keeps_what_is_read(Place::new(0)), "as stores do by default");
    let options = SwapOptions { vcpus: 1, others: 8, headroom: 0 };
    guest.memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Unheard), &options).unwrap();
    guest.memory.write(Ipa::new(0), &[1; 10 * PAGE as usize]).unwrap();
    let (memory, mut ages) = (&guest.memory, Generations::new());
    ages.round(memory);
    guest.memory.write(second + 2 * PAGE, &[1; 20 * PAGE as usize]).unwrap();
    guest.machine.expect_events(1 << 16);
    MOST.set(4096);
    let relief = ages.make_room(memory, 512 + 2 + 5);
    MOST.set(usize::MAX);
    // All of the first huge page, and seven pages of the second, of which two are zero.
    assert_eq!(relief, Ok(Relief { freed: 502 + 2, started: 10 + 5, ..Relief::default() }));
    let requests = std::mem::take(&mut store.0.lock().unwrap().0);
    requests.into_iter().for_each(|request| memory.complete_write(request, Ok(())));
}

/// A pending interrupt ends the call among the pages whose ages are known.
#[test]
fn no_page_of_unknown_age_leaves_after_an_interrupt() {
    let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 4);
    let second = Ipa::new(1 << 30);
    guest.add_ram(Ipa::new(0), HUGE_PAGE);
    guest.add_ram(second, HUGE_PAGE);
    let store = Arc::new(Kept(Mutex::new((Vec::with_capacity(64), Vec::new()))));
    let options = SwapOptions { vcpus: 1, others: 8, headroom: 0 };
    guest.memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Unheard), &options).unwrap();
    guest.memory.write(Ipa::new(0), &[1; 10 * PAGE as usize]).unwrap();
    let (memory, mut ages) = (&guest.memory, Generations::new());
    ages.round(memory);
    guest.memory.write(second, &[1; 10 * PAGE as usize]).unwrap();
    for page in [Ipa::new(0), second] {
        assert_eq!(memory.write_out(page), Ok(WrittenOut::Started));
    }
    guest.machine.expect_events(1 << 16);
    guest.machine.set_interrupt_hook(|| true);
    MOST.set(4096);
    let relief = ages.make_room(memory, 5);
    MOST.set(usize::MAX);
    assert_eq!(relief, Ok(Relief { freed: 0, started: 1, is_interrupted: true }));
    let requests = std::mem::take(&mut store.0.lock().unwrap().0);
    requests.into_iter().for_each(|request| memory.complete_write(request, Ok(())));
}

/// Whatever the heap refuses of what is kept of a slot's pages, they leave.
#[test]
fn pages_of_a_large_slot_leave_with_a_full_heap() {
    for most in [0, 64, 128, 256, 512, 1024] {
        let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 4);
        // 64 parts.
        guest.add_ram(Ipa::new(0), 1 << 33);
        guest.add_ram(Ipa::new(1 << 34), HUGE_PAGE);
        let store = Arc::new(Kept(Mutex::new((Vec::with_capacity(64), Vec::new()))));
        let options = SwapOptions { vcpus: 1, others: 8, headroom: 0 };
        guest.memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Unheard), &options).unwrap();
        guest.memory.write(Ipa::new(0), &[1; 10 * PAGE as usize]).unwrap();
        guest.machine.expect_events(1 << 16);
        let (memory, mut ages) = (&guest.memory, Generations::new());
        MOST.set(most);
        let relief = ages.make_room(memory, 10);
        MOST.set(usize::MAX);
        assert_eq!(relief, Ok(Relief { freed: 0, started: 10, ..Relief::default() }), "{most}");
        let requests = std::mem::take(&mut store.0.lock().unwrap().0);
        requests.into_iter().for_each(|request| memory.complete_write(request, Ok(())));
    }
}

/// A page is not pinned if the heap has no room for the note.
#[test]
fn pinning_with_a_full_heap_is_an_error() {
    let mut guest = RunningGuest::new(PLAIN, Pages::Small, 4);
    guest.add_ram(Ipa::new(0), HUGE_PAGE);
    guest.memory.write(Ipa::new(0), &[1]).unwrap();
    MOST.set(0);
    let pinned = guest.memory.pin(Ipa::new(0)..Ipa::new(PAGE), PinnedFor::Reading).map(drop);
    MOST.set(usize::MAX);
    assert_eq!(pinned, Err(Error::NoFrames { ipa: Ipa::new(0) }));
}

/// Dirty pages stay dirty, and are reported when there is room again.
#[test]
fn a_log_that_cannot_be_listed_loses_nothing() {
    let features = PLAIN.with_forced_write_back(true);
    for tracker in [Tracker::WriteProtect, Tracker::Manual] {
        let mut guest = RunningGuest::new(features, Pages::Small, 16);
        let slot = guest.add(Ipa::new(0), HUGE_PAGE, Backing::Ram, true);
        let log = guest.memory.dirty_log(slot).unwrap();
        log.start(&LogOptions { all_dirty: false, ..LogOptions::new(tracker) }).unwrap();
        log.mark(Ipa::new(0)..Ipa::new(3 * PAGE));
        let mut dirty = DirtyPages::new();
        guest.machine.expect_events(1 << 10);
        MOST.set(0);
        let refused = log.get(&mut dirty);
        MOST.set(usize::MAX);
        assert_eq!((refused, dirty.count()), (Err(LogError::NoMemory), 0));
        assert_eq!(log.get(&mut dirty), Ok(()));
        assert!(dirty.pages().eq(0..3), "{tracker:?}");
    }
}

/// Memory runs out in the middle of a get that clears, since there are more dirty pages than a moment before. The pages
/// that it had taken by then are flushed, and are still in the log.
#[test]
fn a_get_that_fails_midway_flushes_and_loses_nothing() {
    let mut guest = RunningGuest::new(PLAIN.with_forced_write_back(true), Pages::Small, 16);
    let slot = guest.add(Ipa::new(0), 10 * HUGE_PAGE, Backing::Ram, true);
    let ipa = |page: u64| Ipa::new(page * PAGE);
    // Four words, for which a list has exactly the room. One is whole, and is protected last.
    let written = || [1, 64].into_iter().chain(128..192).chain([200]);
    // In a word that the search reads later.
    let more = 5000;
    for page in written().chain([more]) {
        guest.reach(ipa(page), AccessKind::Write);
    }
    let options = LogOptions { all_dirty: false, ..LogOptions::new(Tracker::WriteProtect) };
    guest.memory.dirty_log(slot).unwrap().start(&options).unwrap();
    for page in written() {
        guest.reach(ipa(page), AccessKind::Write);
    }
    let (machine, memory) = (guest.machine, Rc::new(guest.memory));
    machine.events();
    machine.expect_events(1 << 10);
    // The first lock is the log's. When the second is taken, for the first word, the list already has its room.
    let other = Rc::clone(&memory);
    machine.before_atomic(2, move || {
        other.dirty_log(slot).unwrap().mark(ipa(more)..ipa(more + 1));
        MOST.set(0);
    });
    let (log, mut dirty) = (memory.dirty_log(slot).unwrap(), DirtyPages::new());
    let refused = log.get(&mut dirty);
    MOST.set(usize::MAX);
    assert_eq!((refused, dirty.count()), (Err(LogError::NoMemory), 0));
    let ends = |event: &Event| matches!(event, Event::Tlbi(Tlbi::VmallE1Is | Tlbi::VmallS12E1Is, _));
    let flushes = machine.events().into_iter().filter(ends);
    assert_eq!(flushes.count(), 1, "the protected pages are flushed");
    let leaf = |page| machine.mmu().translate(&|pa| machine.read(pa), ipa(page)).unwrap();
    assert!(written().all(|page| !leaf(page).access().write));
    assert_eq!(log.get(&mut dirty), Ok(()));
    assert!(dirty.pages().eq(written().chain([more])), "{dirty:?}");
}
