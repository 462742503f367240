// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A store whose requests wait for another CPU, which completes them late, in any order, and one in twenty with a failure.

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

use crate::guest::PAGE;

#[derive(Default)]
pub struct Store(Mutex<Inner>);

#[derive(Default)]
pub struct Inner {
    writes: Vec<(WriteRequest, Option<Knowledge>)>,
    reads: Vec<(ReadRequest, Option<Knowledge>)>,
    contents: BTreeMap<Place, Box<[u8; 4096]>>,
    places: u64,
    /// Places in use.
    pub live: u64,
    pub failed: u64,
    /// Pages that were written and read.
    pub moved: u64,
}

/// Dropping a request panics. A test that fails reports its own failure instead.
impl Drop for Inner {
    fn drop(&mut self) {
        std::mem::forget((std::mem::take(&mut self.writes), std::mem::take(&mut self.reads)));
    }
}

impl Store {
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
        let result = if cpu.draw(20) == 0 { Err(StoreError::Device { code: 5 }) } else { Ok(()) };
        {
            let mut inner = self.get();
            inner.failed += u64::from(result.is_err());
            inner.moved += u64::from(result.is_ok());
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
    pub failed: AtomicU64,
}

impl Reports {
    pub fn new(vcpus: usize) -> Arc<Self> {
        let arrivals = (0..vcpus).map(|_| Arc::new(Arrivals::new())).collect();
        Arc::new(Self { arrivals, failed: AtomicU64::new(0) })
    }
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        // A vCPU's thread polls, so it needs no kick.
        if let Waiter::Vcpu { vcpu, ticket } = waiter {
            let _ = self.arrivals[vcpu as usize].complete(ticket, arrival);
        }
    }

    fn failed(&self, _: &Failure) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    fn frames_wanted(&self) {}
}
