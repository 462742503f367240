// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store whose requests wait for another CPU, which completes them late, in any order, and some with a failure. The tests
//! of `migration` use it, too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use twofold_machine::strict::{CpuHandle, Hosted, Knowledge};
use twofold_memory::GuestMemory;
use twofold_memory::async_fault::{Arrival, Arrivals};
use twofold_memory::swap::{
    Completions, Failure, Notify, PageStore, Place, ReadRequest, StoreError, Waiter, WriteRequest,
};
use twofold_stage2::Ipa;

const PAGE: u64 = 4096;

/// How a store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// One request in this many fails.
    FailsOneIn(u64),
    /// It answers nothing, until the test has it end.
    Silent,
}

pub struct Store(Mutex<Inner>);

pub struct Inner {
    pub mood: Mood,
    /// Places that it has.
    room: u64,
    writes: Vec<(WriteRequest, Option<Knowledge>)>,
    reads: Vec<(ReadRequest, Option<Knowledge>)>,
    contents: BTreeMap<Place, Box<[u8; 4096]>>,
    places: u64,
    /// Places in use.
    pub live: u64,
    pub failed: u64,
    /// Writes that have failed since the last that did not.
    pub failed_in_a_row: u64,
    /// Pages that were written and read, and those that were written.
    pub moved: u64,
    pub written: u64,
}

/// Dropping a request panics. A test that fails reports its own failure instead.
impl Drop for Inner {
    fn drop(&mut self) {
        std::mem::forget((std::mem::take(&mut self.writes), std::mem::take(&mut self.reads)));
    }
}

impl Store {
    pub fn new(mood: Mood, room: u64) -> Self {
        let (writes, reads, contents) = Default::default();
        let (places, live, failed, failed_in_a_row, moved, written) = Default::default();
        let inner =
            Inner { mood, room, writes, reads, contents, places, live, failed, failed_in_a_row, moved, written };
        Self(Mutex::new(inner))
    }

    /// No event of the machine may happen while this is held.
    pub fn get(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Forgets all requests: a breach has ended the machine, and is what the test reports.
    pub fn abandon(&self) {
        let mut inner = self.get();
        std::mem::forget((std::mem::take(&mut inner.writes), std::mem::take(&mut inner.reads)));
    }

    pub fn in_flight(&self) -> usize {
        let inner = self.get();
        inner.writes.len() + inner.reads.len()
    }

    /// Completes a request, drawn at random. Returns whether there was one.
    pub fn complete_one(&self, cpu: &CpuHandle, memory: &GuestMemory<Hosted>) -> bool {
        let (writes, all) = {
            let inner = self.get();
            (inner.writes.len() as u64, (inner.writes.len() + inner.reads.len()) as u64)
        };
        if all == 0 {
            return false;
        }
        let index = cpu.draw(all);
        let fails = match self.get().mood {
            Mood::FailsOneIn(many) => cpu.draw(many) == 0,
            // It is at its end.
            Mood::Silent => true,
        };
        let result = if fails { Err(StoreError::Device { code: 5 }) } else { Ok(()) };
        {
            let mut inner = self.get();
            inner.failed += u64::from(fails);
            inner.moved += u64::from(!fails);
            if index < writes {
                inner.written += u64::from(!fails);
                inner.failed_in_a_row = if fails { inner.failed_in_a_row + 1 } else { 0 };
            }
        }
        let mut bytes = Box::new([0xdd; 4096]);
        if index < writes {
            let (request, known) = self.get().writes.remove(index as usize);
            known.iter().for_each(Knowledge::learn);
            cpu.reads(request.frame().pa(), PAGE);
            memory.copy_out(&request, &mut bytes);
            if result.is_ok() {
                self.get().contents.insert(request.place(), bytes);
            }
            memory.complete_write(request, result);
        } else {
            let (request, known) = self.get().reads.remove((index - writes) as usize);
            known.iter().for_each(Knowledge::learn);
            cpu.reuse(request.frame().pa(), PAGE);
            if result.is_ok() {
                bytes.clone_from(&self.get().contents[&request.place()]);
            }
            memory.copy_in(&request, &bytes);
            memory.complete_read(request, result);
        }
        true
    }
}

impl PageStore for Store {
    fn place(&self, _: Ipa) -> Option<Place> {
        let mut inner = self.get();
        if inner.live == inner.room {
            return None;
        }
        inner.places += 1;
        inner.live += 1;
        Some(Place::new(inner.places))
    }

    fn write(&self, _: &dyn Completions, request: WriteRequest) {
        let known = Knowledge::of_this_cpu();
        self.get().writes.push((request, known));
    }

    fn read(&self, _: &dyn Completions, request: ReadRequest) {
        let known = Knowledge::of_this_cpu();
        self.get().reads.push((request, known));
    }

    fn discard(&self, place: Place) {
        let mut inner = self.get();
        inner.live -= 1;
        inner.contents.remove(&place);
    }
}

/// Where arrivals go.
pub struct Reports {
    pub arrivals: Vec<Arc<Arrivals>>,
    /// Pages that others than vCPUs have waited for.
    pub others: AtomicU64,
    pub failed: AtomicU64,
}

impl Reports {
    pub fn new(vcpus: usize) -> Arc<Self> {
        let arrivals = (0..vcpus).map(|_| Arc::new(Arrivals::new())).collect();
        Arc::new(Self { arrivals, others: AtomicU64::new(0), failed: AtomicU64::new(0) })
    }
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        match waiter {
            // A vCPU's thread polls, so it needs no kick.
            Waiter::Vcpu { vcpu, ticket } => drop(self.arrivals[vcpu as usize].complete(ticket, arrival)),
            Waiter::Other(_) => drop(self.others.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn failed(&self, _: &Failure) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn frames_wanted(&self) {}
}
