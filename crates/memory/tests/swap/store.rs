// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store that is held to its contract: it completes at once, later in any order, with failures, or never, and checks
//! each place that it is given.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard};

use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{
    Completions, Failure, Notify, PageStore, Place, ReadRequest, StoreError, Waiter, WriteRequest,
};
use twofold_stage2::{Ipa, Run};

use crate::machine::{Machine, PAGE};

pub const BROKEN: StoreError = StoreError::Device { code: 5 };

/// Bytes of a page.
pub type Bytes = Box<[u8; 4096]>;

#[derive(Default)]
pub struct Store(Mutex<Inner>);

#[derive(Default)]
pub struct Inner {
    /// Whether requests wait until the test completes them.
    pub waits: bool,
    /// Whether a place is empty once it was read.
    pub once: bool,
    /// Whether pages are transferred without requests.
    pub at_once: bool,
    /// Requests fail that are completed at once.
    pub fails: bool,
    /// How many places there are.
    pub capacity: usize,
    /// Places that hold a page, or are about to.
    pub live: BTreeSet<Place>,
    contents: BTreeMap<Place, Bytes>,
    pub writes: Vec<WriteRequest>,
    pub reads: Vec<ReadRequest>,
    /// Requests so far.
    pub written: usize,
    pub read: usize,
    /// Pages that were read and written without requests.
    pub read_at_once: usize,
    pub written_at_once: usize,
    /// Reads that are answered within each other now, and the most that were.
    nested: usize,
    pub most_nested: usize,
    places: u64,
}

/// Dropping a request panics. A test that fails reports its own failure instead.
impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget((std::mem::take(&mut self.writes), std::mem::take(&mut self.reads)));
        }
    }
}

impl Store {
    pub fn new() -> Arc<Self> {
        let store = Arc::new(Self::default());
        store.get().capacity = usize::MAX;
        store
    }

    pub fn get(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Requests to write, so far.
    pub fn written(&self) -> usize {
        self.get().written
    }

    /// Requests to read, so far.
    pub fn reads_so_far(&self) -> usize {
        self.get().read
    }

    /// Places in use.
    pub fn live(&self) -> usize {
        self.get().live.len()
    }

    /// Requests to write that wait.
    pub fn writing(&self) -> usize {
        self.get().writes.len()
    }

    /// Requests to read that wait.
    pub fn reading(&self) -> usize {
        self.get().reads.len()
    }

    /// A place that holds this page, for the target of a post-copy migration.
    pub fn hold(&self, bytes: Bytes) -> Place {
        let mut inner = self.get();
        inner.places += 1;
        let place = Place::new(inner.places);
        inner.live.insert(place);
        inner.contents.insert(place, bytes);
        place
    }

    /// Completes the write with this index.
    pub fn finish_write(&self, memory: &dyn Completions, index: usize, result: Result<(), StoreError>) {
        let request = self.get().writes.remove(index);
        self.end_write(memory, request, result);
    }

    /// Completes the read with this index.
    pub fn finish_read(&self, memory: &dyn Completions, index: usize, result: Result<(), StoreError>) {
        let request = self.get().reads.remove(index);
        self.end_read(memory, request, result);
    }

    fn end_write(&self, memory: &dyn Completions, request: WriteRequest, result: Result<(), StoreError>) {
        let mut bytes = Box::new([0; 4096]);
        memory.copy_out(&request, &mut bytes);
        if result.is_ok() {
            self.get().contents.insert(request.place(), bytes);
        }
        memory.complete_write(request, result);
    }

    fn end_read(&self, memory: &dyn Completions, request: ReadRequest, result: Result<(), StoreError>) {
        // A read that fails has destroyed the frame's old content, too.
        let bytes = match result {
            Ok(()) => self.get().contents[&request.place()].clone(),
            Err(_) => Box::new([0xee; 4096]),
        };
        memory.copy_in(&request, &bytes);
        memory.complete_read(request, result);
    }
}

impl PageStore for Store {
    fn place(&self, _: Ipa) -> Option<Place> {
        let mut inner = self.get();
        if inner.live.len() >= inner.capacity {
            return None;
        }
        inner.places += 1;
        let place = Place::new(inner.places);
        inner.live.insert(place);
        Some(place)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        let mut inner = self.get();
        assert!(inner.live.contains(&request.place()) && !inner.contents.contains_key(&request.place()));
        inner.written += 1;
        if inner.waits {
            return inner.writes.push(request);
        }
        let result = if inner.fails { Err(BROKEN) } else { Ok(()) };
        drop(inner);
        self.end_write(memory, request, result);
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        let mut inner = self.get();
        assert!(inner.contents.contains_key(&request.place()), "{:?} holds no page", request.place());
        inner.read += 1;
        if inner.waits {
            return inner.reads.push(request);
        }
        let result = if inner.fails { Err(BROKEN) } else { Ok(()) };
        inner.nested += 1;
        inner.most_nested = inner.most_nested.max(inner.nested);
        drop(inner);
        self.end_read(memory, request, result);
        self.get().nested -= 1;
    }

    fn discard(&self, place: Place) {
        let mut inner = self.get();
        assert!(inner.live.remove(&place), "{place:?} is discarded, and is not in use");
        assert!(!inner.reads.iter().any(|request| request.place() == place), "{place:?} is being read");
        inner.contents.remove(&place);
    }

    fn keeps_what_is_read(&self, _: Place) -> bool {
        !self.get().once
    }

    fn reads_at_once(&self, place: Place) -> bool {
        let inner = self.get();
        assert!(inner.contents.contains_key(&place), "{place:?} holds no page");
        inner.at_once && !inner.once
    }

    fn read_at_once(&self, place: Place, frame: &Run) -> bool {
        let mut inner = self.get();
        assert!(inner.at_once && frame.size() == PAGE);
        // A read that fails has destroyed the frame's old content, too.
        let bytes = if inner.fails { Box::new([0xee; 4096]) } else { inner.contents[&place].clone() };
        machine().bank(frame.pa()).store(frame.pa(), &*bytes);
        inner.read_at_once += usize::from(!inner.fails);
        !inner.fails
    }

    fn write_at_once(&self, place: Place, frame: &Run) -> bool {
        let meanwhile = MEANWHILE.take();
        meanwhile.into_iter().for_each(|action| action());
        let mut inner = self.get();
        assert!(inner.live.contains(&place) && !inner.contents.contains_key(&place));
        if !inner.at_once || inner.fails {
            return false;
        }
        let bytes = machine().bank(frame.pa()).load(frame.pa(), PAGE);
        inner.contents.insert(place, bytes.into_boxed_slice().try_into().unwrap());
        inner.written_at_once += 1;
        true
    }
}

/// The machine whose frames are read and written without requests: that of the last [`Rig`](crate::rig::Rig) of the thread.
pub fn transfers_on(machine: &Rc<Machine>) {
    MACHINE.set(Rc::downgrade(machine));
}

/// Another CPU does this while the next page is written, or asked to be.
pub fn while_a_page_is_written(action: impl FnOnce() + 'static) {
    MEANWHILE.set(Some(Box::new(action)));
}

fn machine() -> Rc<Machine> {
    MACHINE.with_borrow(Weak::upgrade).expect("the rig is gone")
}

thread_local! {
    static MACHINE: RefCell<Weak<Machine>> = const { RefCell::new(Weak::new()) };
    static MEANWHILE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// What was reported.
#[derive(Default)]
pub struct Reports(Mutex<Reported>);

#[derive(Default)]
pub struct Reported {
    pub arrived: Vec<(Waiter, Arrival)>,
    pub failures: Vec<Failure>,
    pub wanted: usize,
}

impl Reports {
    pub fn get(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap()
    }

    /// What has arrived since the last call.
    pub fn arrived(&self) -> Vec<(Waiter, Arrival)> {
        std::mem::take(&mut self.get().arrived)
    }

    /// What has failed since the last call.
    pub fn failures(&self) -> Vec<Failure> {
        std::mem::take(&mut self.get().failures)
    }
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        self.get().arrived.push((waiter, arrival));
    }

    fn failed(&self, failure: &Failure) {
        self.get().failures.push(*failure);
    }

    fn frames_wanted(&self) {
        self.get().wanted += 1;
    }
}
