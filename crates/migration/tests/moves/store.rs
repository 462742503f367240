// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page store whose answers take time of the test's clock, fail, or do not come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use twofold_machine::fast::FastPlatform;
use twofold_memory::GuestMemory;
use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{
    Completions, Failure, Notify, PageStore, Place, ReadRequest, StoreError, Waiter, WriteRequest,
};
use twofold_stage2::Ipa;

use crate::Random;

/// How a store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Answers,
    /// Each request of this many fails.
    Fails(u64),
    Silent,
}

pub struct Store(Mutex<Inner>);

pub struct Inner {
    pub mood: Mood,
    /// How long an answer takes, at most.
    pub delay: u64,
    now: u64,
    random: Random,
    requests: Vec<(u64, Request)>,
    contents: BTreeMap<Place, Box<[u8; 4096]>>,
    /// Places in use.
    pub live: BTreeSet<Place>,
    places: u64,
    pub written: u64,
    pub read: u64,
    pub failed: u64,
}

enum Request {
    Write(WriteRequest),
    Read(ReadRequest),
}

/// Dropping a request panics. A test that fails reports its own failure instead.
impl Drop for Inner {
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.requests));
    }
}

impl Store {
    pub fn new(delay: u64, seed: u64) -> Arc<Self> {
        let (now, places, written, read, failed) = Default::default();
        let (requests, contents, live) = Default::default();
        let (mood, random) = (Mood::Answers, Random(seed));
        Arc::new(Self(Mutex::new(Inner {
            mood,
            delay,
            now,
            random,
            requests,
            contents,
            live,
            places,
            written,
            read,
            failed,
        })))
    }

    pub fn get(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Completes what is due at this time.
    pub fn tick(&self, memory: &GuestMemory<FastPlatform>, now: u64) {
        self.get().now = now;
        loop {
            let due = {
                let inner = &mut *self.get();
                let due = inner.requests.iter().position(|(due, _)| *due <= now);
                due.filter(|_| inner.mood != Mood::Silent).map(|index| inner.requests.swap_remove(index).1)
            };
            let Some(request) = due else { return };
            self.complete(memory, request);
        }
    }

    /// Completes everything now, unless the store is silent.
    pub fn finish(&self, memory: &GuestMemory<FastPlatform>) {
        loop {
            let request = {
                let inner = &mut *self.get();
                if inner.mood == Mood::Silent { None } else { inner.requests.pop() }
            };
            let Some((_, request)) = request else { return };
            self.complete(memory, request);
        }
    }

    /// Pages that were read and written so far.
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.get();
        (inner.read, inner.written)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.get().requests.len()
    }

    fn complete(&self, memory: &GuestMemory<FastPlatform>, request: Request) {
        let mut inner = self.get();
        let fails = match inner.mood {
            Mood::Fails(each) => inner.random.below(each) == 0,
            _ => false,
        };
        inner.failed += u64::from(fails);
        let result = if fails { Err(StoreError::Device { code: 5 }) } else { Ok(()) };
        let mut bytes = Box::new([0xdd; 4096]);
        match request {
            Request::Write(request) => {
                inner.written += 1;
                drop(inner);
                memory.copy_out(&request, &mut bytes);
                if result.is_ok() {
                    self.get().contents.insert(request.place(), bytes);
                }
                memory.complete_write(request, result);
            }
            Request::Read(request) => {
                inner.read += 1;
                if result.is_ok() {
                    bytes = inner.contents[&request.place()].clone();
                }
                drop(inner);
                memory.copy_in(&request, &bytes);
                memory.complete_read(request, result);
            }
        }
    }

    fn add(&self, request: Request) {
        let inner = &mut *self.get();
        let due = inner.now + inner.random.below(inner.delay + 1);
        inner.requests.push((due, request));
    }
}

impl PageStore for Store {
    fn place(&self, _: Ipa) -> Option<Place> {
        let mut inner = self.get();
        inner.places += 1;
        let place = Place::new(inner.places);
        inner.live.insert(place);
        Some(place)
    }

    fn write(&self, _: &dyn Completions, request: WriteRequest) {
        self.add(Request::Write(request));
    }

    fn read(&self, _: &dyn Completions, request: ReadRequest) {
        assert!(self.get().live.contains(&request.place()), "{:?} is not in use", request.place());
        self.add(Request::Read(request));
    }

    fn discard(&self, place: Place) {
        let mut inner = self.get();
        assert!(inner.live.remove(&place), "{place:?} is discarded, and is not in use");
        inner.contents.remove(&place);
    }
}

/// What was reported.
#[derive(Default)]
pub struct Reports {
    pub arrived: Mutex<Vec<(Waiter, Arrival)>>,
    pub failed: AtomicU64,
}

impl Reports {
    pub fn take(&self) -> Vec<(Waiter, Arrival)> {
        std::mem::take(&mut self.arrived.lock().unwrap())
    }
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        self.arrived.lock().unwrap().push((waiter, arrival));
    }

    fn failed(&self, _: &Failure) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn frames_wanted(&self) {}
}
