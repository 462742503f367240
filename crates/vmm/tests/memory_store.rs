// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store in memory, with a guest whose pages leave to it and come back. The test is the clock, the other CPU, and
//! the heap that is full.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use twofold_machine::arena::{self, Arena, ArenaOptions};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{
    Failure, Located, Notify, Operation, PageStore, Place, StoreError, SwapOptions, Waiter, WriteOutError, WrittenOut,
};
use twofold_memory::{Answer, Backing, Frames, GuestFault, GuestMemory, HUGE_PAGE, Pages, Slot};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};
use twofold_vmm::memory_store::MemoryStore;

/// The host's heap. It refuses all allocations of a thread that says so.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the system's allocator, or a refusal.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_FULL.get() {
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

thread_local! {
    static IS_FULL: Cell<bool> = const { Cell::new(false) };
    static NOW: Cell<u64> = const { Cell::new(0) };
    static LOOKS: Cell<u64> = const { Cell::new(0) };
    /// What another CPU does while this one reads the clock.
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// The machine's time.
fn clock() -> u64 {
    LOOKS.set(LOOKS.get() + 1);
    let now = NOW.get();
    if let Some(action) = MEANWHILE.take() {
        action();
    }
    now
}

/// Does something with a heap that is full. An allocation that is not expected ends the process.
fn with_full_heap<R>(action: impl FnOnce() -> R) -> R {
    IS_FULL.set(true);
    let result = action();
    IS_FULL.set(false);
    result
}

/// The lists have room, so that a report takes nothing from the heap.
struct Reports {
    arrived: Mutex<Vec<(Waiter, Arrival)>>,
    failures: Mutex<Vec<Failure>>,
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        self.arrived.lock().unwrap().push((waiter, arrival));
    }

    fn failed(&self, failure: &Failure) {
        self.failures.lock().unwrap().push(*failure);
    }

    fn frames_wanted(&self) {}
}

const PAGE: u64 = 4096;
const RAM: Ipa = Ipa::new(0x4000_0000);
const FEATURES: Features =
    Features::NONE.with_vmid_bits(16).with_hardware_access_flag(true).with_forced_write_back(true);
/// The store's error if its queue is full.
const BUSY: StoreError = StoreError::Device { code: 16 };

/// A guest, and its store of 2 × 512 places.
struct World {
    memory: GuestMemory<FastPlatform>,
    store: Arc<MemoryStore<FastPlatform>>,
    reports: Arc<Reports>,
}

impl World {
    /// A guest of this many pages, and a queue for `most` transfers. The time is 100.
    fn new(pages: u64, most: usize) -> Rc<Self> {
        NOW.set(100);
        let own = 4 * HUGE_PAGE;
        let options = ArenaOptions::new(own + 2 * HUGE_PAGE, arena::Backing::Anonymous);
        let arena = Arc::new(Arena::new(&options).unwrap());
        let platform = || FastPlatform(FastMachine::new(Arc::clone(&arena), FEATURES, 1).unwrap());
        let mut frames = Frames::new(FEATURES);
        frames.add(arena.donate_part(0, own).unwrap());
        let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
        let mut memory = GuestMemory::new(platform(), geometry, Vmid::new(1), frames, Pages::Small).unwrap();
        memory.add_slot(Slot { range: RAM..ipa(pages), backing: Backing::Ram, writable: true }).unwrap();
        let (one, two) =
            arena.donate_part(own, 2 * HUGE_PAGE).unwrap().into_run().split_at(HUGE_PAGE).expect("two runs");
        let store = Arc::new(MemoryStore::new(platform(), vec![one, two], most, clock));
        let (arrived, failures) = (Mutex::new(Vec::with_capacity(16)), Mutex::new(Vec::with_capacity(16)));
        let reports = Arc::new(Reports { arrived, failures });
        let swap = SwapOptions { vcpus: 1, others: 8, headroom: 0 };
        memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&reports)), &swap).unwrap();
        (0..pages).for_each(|page| memory.write(ipa(page), &content(page)).unwrap());
        Rc::new(Self { memory, store, reports })
    }

    fn write_out(&self, page: u64) -> Result<WrittenOut, WriteOutError> {
        self.memory.write_out(ipa(page))
    }

    fn bring(&self, page: u64) {
        self.memory.bring(ipa(page), Waiter::Other(page)).unwrap();
    }

    fn located(&self, page: u64) -> Located {
        self.memory.locate(ipa(page)).unwrap()
    }

    fn is_absent(&self, page: u64) -> bool {
        matches!(self.located(page), Located::Absent(_))
    }

    fn is_arriving(&self, page: u64) -> bool {
        matches!(self.located(page), Located::Arriving(_))
    }

    /// Ends the next transfer at this time. Returns whether there was one.
    fn end_next_at(&self, now: u64) -> bool {
        NOW.set(now);
        self.store.end_next(&self.memory)
    }

    /// Ends all transfers, each at its time.
    fn end_all(&self) {
        while let Some(end) = self.store.next_end() {
            assert!(self.end_next_at(end));
        }
    }

    fn check_content(&self, page: u64) {
        let mut bytes = [0; PAGE as usize];
        self.memory.read(ipa(page), &mut bytes).unwrap();
        assert!(bytes == content(page), "page {page}");
    }

    fn take_arrived(&self) -> Vec<(Waiter, Arrival)> {
        self.reports.arrived.lock().unwrap().drain(..).collect()
    }

    fn take_failures(&self) -> Vec<Failure> {
        self.reports.failures.lock().unwrap().drain(..).collect()
    }
}

/// Dropping a request panics. A test that fails reports its own failure instead.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(Arc::clone(&self.store));
        }
    }
}

fn ipa(page: u64) -> Ipa {
    RAM + page * PAGE
}

/// What the guest has written to a page: each word has the page's number and its own.
fn content(page: u64) -> [u8; PAGE as usize] {
    std::array::from_fn(|byte| (((page + 1) << 16) + byte as u64 / 8).to_le_bytes()[byte % 8])
}

#[test]
fn each_of_all_places_keeps_its_page() {
    let world = World::new(1025, 1);
    for page in 0..1024 {
        assert_eq!(world.write_out(page), Ok(WrittenOut::Freed), "page {page}");
        assert_eq!(world.located(page), Located::Absent(world.store.home(ipa(page))), "page {page}");
    }
    assert_eq!(world.write_out(1024), Err(WriteOutError::StoreFull { page: ipa(1024) }));
    assert_eq!(world.store.taken(), 1024);
    for page in 0..1024 {
        world.bring(page);
        assert_eq!(world.take_arrived(), [(Waiter::Other(page), Arrival::Present)]);
    }
    (0..1025).for_each(|page| world.check_content(page));
}

#[test]
fn transfers_end_in_turn_and_not_before_their_time() {
    let world = World::new(3, 4);
    assert_eq!(world.store.set_delay(10), 0);
    let _ = world.write_out(0).unwrap();
    assert_eq!((world.located(0), world.store.next_end()), (Located::Leaving, Some(110)));
    NOW.set(105);
    let _ = world.write_out(1).unwrap();
    // This one would end first.
    assert_eq!(world.store.set_delay(2), 10);
    let _ = world.write_out(2).unwrap();
    assert_eq!(world.store.next_end(), Some(110));
    assert!(!world.end_next_at(109) && world.located(0) == Located::Leaving);
    assert!(world.end_next_at(110) && world.is_absent(0));
    assert_eq!(world.store.next_end(), Some(115));
    assert!(!world.end_next_at(114) && world.located(1) == Located::Leaving);
    assert!(world.end_next_at(115) && world.is_absent(1) && world.located(2) == Located::Leaving);
    assert_eq!(world.store.next_end(), Some(107));
    assert!(world.end_next_at(115) && world.is_absent(2));
    assert_eq!((world.store.next_end(), world.end_next_at(115)), (None, false));
    world.bring(1);
    assert_eq!((world.is_arriving(1), world.store.next_end()), (true, Some(117)));
    assert!(!world.end_next_at(116) && world.take_arrived().is_empty());
    assert!(world.end_next_at(117));
    assert_eq!(world.take_arrived(), [(Waiter::Other(1), Arrival::Present)]);
    world.check_content(1);
}

#[test]
fn only_a_transfer_without_a_delay_ends_at_once() {
    let world = World::new(2, 4);
    let _ = world.write_out(0).unwrap();
    assert!(world.is_absent(0) && world.store.next_end().is_none() && !world.store.takes_time());
    world.store.set_delay(1);
    assert!(world.store.takes_time());
    let _ = world.write_out(1).unwrap();
    assert_eq!((world.located(1), world.store.next_end()), (Located::Leaving, Some(101)));
    assert_eq!(world.store.set_delay(0), 1);
    world.bring(0);
    assert_eq!((world.located(0), world.located(1)), (Located::Present, Located::Leaving));
    world.end_all();
    assert!(world.is_absent(1));
}

/// A guest's access finds the page, without a request that something waits for.
#[test]
fn an_access_finds_a_page_only_without_a_delay() {
    let world = World::new(2, 4);
    let fault = |page: u64| {
        let (ipa, kind, access) = (ipa(page), FaultKind::Translation, AccessKind::Read);
        world.memory.fault(&GuestFault { ipa, kind, access }).unwrap()
    };
    (0..2).for_each(|page| assert_eq!(world.write_out(page), Ok(WrittenOut::Freed)));
    world.store.set_delay(1);
    assert_eq!((fault(0), world.is_absent(0)), (Answer::Absent, true));
    world.store.set_delay(0);
    assert!(matches!(fault(0), Answer::Retry(_)));
    world.check_content(0);
    world.memory.write(ipa(1) + 8, &content(1)[8..16]).unwrap();
    world.check_content(1);
    assert!(world.take_arrived().is_empty());
    assert_eq!(world.store.taken(), 1, "page 1 was written, so it has no copy");
}

#[test]
fn a_place_that_the_store_does_not_have_is_refused() {
    let world = World::new(1, 4);
    let frame = world.memory.frames().take(1).unwrap();
    assert!(world.store.read_at_once(Place::new(1023), &frame) && world.store.write_at_once(Place::new(1023), &frame));
    assert!(
        !world.store.read_at_once(Place::new(1024), &frame) && !world.store.write_at_once(Place::new(1024), &frame)
    );
    world.store.set_delay(1);
    assert!(!world.store.reads_at_once(Place::new(0)) && !world.store.write_at_once(Place::new(0), &frame));
    assert_eq!(world.memory.frames().give_run(frame), Ok(()));
}

#[test]
fn a_look_at_a_store_that_has_nothing_to_end_does_not_read_the_clock() {
    let world = World::new(1, 4);
    let before = LOOKS.get();
    assert!(!world.end_next_at(100));
    assert_eq!(LOOKS.get(), before);
}

#[test]
fn a_transfer_that_another_cpu_ends_meanwhile_ends_once() {
    for others in [0, 1] {
        let world = World::new(2, 4);
        world.store.set_delay(10);
        let _ = world.write_out(0).unwrap();
        NOW.set(105);
        (0..others).for_each(|_| assert_eq!(world.write_out(1), Ok(WrittenOut::Started)));
        let weak = Rc::downgrade(&world);
        MEANWHILE.set(Some(Box::new(move || {
            let other = weak.upgrade().expect("the world of this test");
            assert!(other.store.end_next(&other.memory));
        })));
        assert!(!world.end_next_at(110), "{others} others");
        assert!(world.is_absent(0));
        assert_eq!(world.store.next_end(), (others > 0).then_some(115));
        assert_eq!(world.located(1), if others > 0 { Located::Leaving } else { Located::Present });
        world.end_all();
    }
}

/// The queue has the room that it was made with, and no more.
#[test]
fn a_transfer_for_which_the_heap_has_no_room_fails_and_loses_nothing() {
    const MOST: u64 = 3;
    let world = World::new(2 * MOST + 2, MOST as usize);
    (0..=MOST).for_each(|page| assert_eq!(world.write_out(page), Ok(WrittenOut::Freed)));
    let Located::Absent(place) = world.located(MOST) else { panic!("{:?}", world.located(MOST)) };
    world.store.set_delay(10);
    with_full_heap(|| (0..=MOST).for_each(|page| world.bring(page)));
    assert!((0..MOST).all(|page| world.is_arriving(page)));
    let read = Failure { page: ipa(MOST), place, operation: Operation::Read, cause: BUSY };
    assert_eq!(world.take_failures(), [read]);
    assert_eq!(world.take_arrived(), [(Waiter::Other(MOST), Arrival::Failed)]);
    assert_eq!(world.located(MOST), Located::Absent(place));
    world.end_all();
    assert_eq!(world.take_arrived().len(), MOST as usize);

    NOW.set(100);
    let begun: [_; MOST as usize + 1] =
        with_full_heap(|| std::array::from_fn(|page| world.write_out(MOST + 1 + page as u64)));
    assert_eq!(begun, [Ok(WrittenOut::Started); MOST as usize + 1]);
    assert!((MOST + 1..2 * MOST + 1).all(|page| world.located(page) == Located::Leaving));
    assert_eq!(world.located(2 * MOST + 1), Located::Present);
    let failures: Vec<_> = world.take_failures().iter().map(|one| (one.page, one.operation, one.cause)).collect();
    assert_eq!(failures, [(ipa(2 * MOST + 1), Operation::Write, BUSY)]);
    world.end_all();

    let _ = world.store.set_delay(0);
    for page in 0..2 * MOST + 2 {
        world.bring(page);
        world.check_content(page);
    }
}
