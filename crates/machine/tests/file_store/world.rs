// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory with a file store that a thread serves.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use twofold_machine::arena::{Arena, ArenaOptions};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::file_store::{FileStore, FileStoreOptions};
use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{
    Completions, Failure, Generations, NotBegun, Notify, Operation, Place, ReadRequest, StoreError, SwapOptions,
    Unasked, Waiter, WriteOutError, WriteRequest, WrittenOut,
};
use twofold_memory::{Backing, Error, Frames, GuestMemory, Pages, Slot};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Vmid};

pub const PAGE: u64 = 4096;
/// The test itself, as a waiter.
const OWN: u64 = 99;
pub const RAM: Ipa = Ipa::new(0x4000_0000);
const FEATURES: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true);

/// What has happened.
#[derive(Default)]
pub struct Reports {
    arrived: Mutex<HashMap<u64, Arrival>>,
    failures: Mutex<Vec<Failure>>,
    /// Signalled with `arrived` locked, for that and for `serving`.
    changed: Condvar,
    /// Threads that serve the store.
    serving: AtomicUsize,
    /// The write-out task has work.
    wanted: Mutex<bool>,
    woken: Condvar,
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        let Waiter::Other(number) = waiter else { panic!("{waiter:?}") };
        self.arrived.lock().unwrap().insert(number, arrival);
        self.changed.notify_all();
    }

    fn failed(&self, failure: &Failure) {
        self.failures.lock().unwrap().push(*failure);
    }

    fn frames_wanted(&self) {
        *self.wanted.lock().unwrap() = true;
        self.woken.notify_all();
    }
}

/// A guest of some pages.
pub struct World {
    pub machine: Arc<FastMachine>,
    pub memory: GuestMemory<FastPlatform>,
    pub store: Arc<FileStore>,
    pub reports: Arc<Reports>,
    ages: Mutex<Generations>,
}

/// The page could not be brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

impl World {
    pub fn new(pages: u64, file: File, options: &FileStoreOptions) -> Self {
        Self::with(pages, file, options, Pages::Small, 32)
    }

    pub fn with(pages: u64, file: File, options: &FileStoreOptions, mapped: Pages, headroom: u64) -> Self {
        let size = arena_size(pages);
        let arena = Arc::new(Arena::new(&ArenaOptions::new(size, twofold_machine::arena::Backing::Anonymous)).unwrap());
        let machine = FastMachine::new(Arc::clone(&arena), FEATURES, 2).unwrap();
        let mut frames = Frames::new(FEATURES);
        frames.add(arena.donate());
        let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
        let mut memory =
            GuestMemory::new(FastPlatform(Arc::clone(&machine)), geometry, Vmid::new(1), frames, mapped).unwrap();
        memory.add_slot(Slot { range: RAM..RAM + pages * PAGE, backing: Backing::Ram, writable: true }).unwrap();
        let (store, reports) = (Arc::new(FileStore::new(file, options).unwrap()), Arc::new(Reports::default()));
        let swap = SwapOptions { vcpus: 1, others: 4, headroom };
        memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&reports)), &swap).unwrap();
        Self { machine, memory, store, reports, ages: Mutex::new(Generations::new()) }
    }

    /// Calls `body` while threads serve the store, and closes it.
    pub fn run<R>(&self, threads: usize, body: impl FnOnce() -> R) -> R {
        struct Closes<'a>(&'a FileStore);
        impl Drop for Closes<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        std::thread::scope(|scope| {
            self.reports.serving.fetch_add(threads, Ordering::Relaxed);
            for _ in 0..threads {
                scope.spawn(|| {
                    self.store.serve(&self.memory);
                    let _arrived = self.reports.arrived.lock().unwrap();
                    self.reports.serving.fetch_sub(1, Ordering::Release);
                    self.reports.changed.notify_all();
                });
            }
            let _closes = Closes(&self.store);
            body()
        })
    }

    /// Does `access` until it has reached all of the page, and brings the page if it is absent.
    fn reach(&self, mut access: impl FnMut() -> Result<(), Error>) -> Result<(), Failed> {
        while let Err(error) = access() {
            let Error::Absent { page, .. } = error else { panic!("{error}") };
            self.bring(page)?;
        }
        Ok(())
    }

    fn bring(&self, page: Ipa) -> Result<(), Failed> {
        self.memory.bring(page, Waiter::Other(OWN)).unwrap();
        self.make_room();
        self.wait_for(OWN)
    }

    /// Brings a page, and waits for it, while a [`write_out_task`](Self::write_out_task) runs.
    pub fn bring_for(&self, number: u64, page: Ipa) -> Result<(), Failed> {
        self.memory.bring(page, Waiter::Other(number)).unwrap();
        self.wait_for(number)
    }

    fn wait_for(&self, number: u64) -> Result<(), Failed> {
        let mut arrived = self.reports.arrived.lock().unwrap();
        loop {
            match arrived.remove(&number) {
                Some(Arrival::Present) => return Ok(()),
                Some(Arrival::Failed) => return Err(Failed),
                None => {
                    assert!(self.is_served(), "nothing serves the store");
                    arrived = self.reports.changed.wait(arrived).unwrap();
                }
            }
        }
    }

    /// Makes room whenever frames are wanted, until all is over.
    pub fn write_out_task(&self, is_over: &AtomicBool) {
        loop {
            let mut wanted = self.reports.wanted.lock().unwrap();
            while !std::mem::take(&mut *wanted) {
                wanted = self.reports.woken.wait(wanted).unwrap();
            }
            drop(wanted);
            if is_over.load(Ordering::Acquire) {
                return;
            }
            self.make_room();
        }
    }

    /// Wakes the write-out task.
    pub fn wake(&self) {
        self.reports.frames_wanted();
    }

    /// What the write-out task does.
    pub fn make_room(&self) {
        let wanted = self.memory.wants_frames();
        if wanted > 0 && self.ages.lock().unwrap().make_room(&self.memory, wanted).is_err() {
            self.memory.fail_waiting();
        }
        let used = self.memory.frame_use();
        assert!(used.data <= used.limit, "{used:?}");
    }

    /// Writes a value and noise that depends on it.
    pub fn write(&self, page: u64, value: u64) -> Result<(), Failed> {
        self.put(page, &content(page, value))
    }

    pub fn put(&self, page: u64, bytes: &[u8]) -> Result<(), Failed> {
        self.reach(|| self.memory.write(ipa(page), bytes))
    }

    pub fn read(&self, page: u64) -> Result<Vec<u8>, Failed> {
        let mut bytes = vec![0; PAGE as usize];
        self.reach(|| self.memory.read(ipa(page), &mut bytes))?;
        Ok(bytes)
    }

    pub fn check(&self, page: u64, value: u64) {
        assert!(self.read(page) == Ok(content(page, value)), "page {page}");
    }

    /// Writes pages out, and waits until they have left or come back.
    pub fn leave(&self, mut pages: core::ops::Range<u64>) -> Result<(), WriteOutError> {
        let left = pages.try_for_each(|page| self.memory.write_out(ipa(page)).map(drop));
        loop {
            let is_served = self.is_served();
            if self.memory.frame_use().leaving == 0 {
                return left;
            }
            assert!(is_served, "nothing serves the store");
            std::thread::yield_now();
        }
    }

    /// Whether a thread serves the store: what is asked for would be waited for without end otherwise.
    fn is_served(&self) -> bool {
        self.reports.serving.load(Ordering::Acquire) > 0
    }

    /// A page begins to leave.
    pub fn begin_leaving(&self, page: u64) {
        assert_eq!(self.memory.write_out(ipa(page)), Ok(WrittenOut::Started));
    }

    pub fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut self.reports.failures.lock().unwrap())
    }

    pub fn failures(&self, operation: Operation) -> usize {
        self.reports.failures.lock().unwrap().iter().filter(|failure| failure.operation == operation).count()
    }
}

/// A guest's memory, with what a test does when a page has been written.
pub struct Watched<'a, F> {
    memory: &'a GuestMemory<FastPlatform>,
    written: Mutex<Vec<u64>>,
    then: F,
}

impl<'a, F: Fn(u64)> Watched<'a, F> {
    pub fn new(world: &'a World, then: F) -> Self {
        Self { memory: &world.memory, written: Mutex::default(), then }
    }

    /// The pages that were written, in their order.
    pub fn written(self) -> Vec<u64> {
        self.written.into_inner().unwrap()
    }
}

impl<F: Fn(u64)> Completions for Watched<'_, F> {
    fn copy_out(&self, request: &WriteRequest, bytes: &mut [u8; 4096]) {
        Completions::copy_out(self.memory, request, bytes);
    }

    fn copy_in(&self, request: &ReadRequest, bytes: &[u8; 4096]) {
        Completions::copy_in(self.memory, request, bytes);
    }

    fn begin_read(&self, page: Ipa, place: Place, content: Unasked) -> Result<ReadRequest, NotBegun> {
        self.memory.begin_read(page, place, content)
    }

    fn make_zero(&self, page: Ipa, place: Place) -> Result<(), NotBegun> {
        self.memory.make_zero(page, place)
    }

    fn complete_write(&self, request: WriteRequest, result: Result<(), StoreError>) {
        let page = (request.page() - RAM) / PAGE;
        self.memory.complete_write(request, result);
        self.written.lock().unwrap().push(page);
        (self.then)(page);
    }

    fn complete_read(&self, request: ReadRequest, result: Result<(), StoreError>) {
        self.memory.complete_read(request, result);
    }
}

fn arena_size(pages: u64) -> u64 {
    (pages * PAGE + (8 << 20)).next_multiple_of(2 << 20)
}

pub fn ipa(page: u64) -> Ipa {
    RAM + page * PAGE
}

/// The first quarter of a page does not compress; the rest does.
pub fn content(page: u64, value: u64) -> Vec<u8> {
    let mut mixed = page << 32 ^ value;
    let mut word = || {
        mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let once = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        once ^ once >> 27
    };
    let noise: Vec<u8> = (0..PAGE / 32).flat_map(|_| word().to_le_bytes()).collect();
    let mut bytes = vec![value as u8 | 1; PAGE as usize];
    bytes[..noise.len()].copy_from_slice(&noise);
    bytes
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) % end
    }
}
