// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page store in virtual time: each transfer takes a stated latency, and none waits for another.
//!
//! Content is copied into the store when a write begins, and into the frame when a read ends. A latency of zero
//! completes transfers at once, inside the call.
//!
//! Invariant: every transfer is completed, also those whose machine is dropped before their time
//! ([`Swapped`](super::Swapped)). No lock is held while a transfer is completed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{Completions, Failure, Notify, PageStore, Place, ReadRequest, Waiter, WriteRequest};
use twofold_stage2::Ipa;

use super::time::Nanos;

/// A store of pages.
#[derive(Debug, Default)]
pub struct VirtualStore(Mutex<State>);

/// What a store did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
}

#[derive(Debug, Default)]
struct State {
    now: Nanos,
    latency: Nanos,
    pages: BTreeMap<Place, Box<[u8; PAGE]>>,
    places: u64,
    /// By the time at which they end, and their order.
    transfers: BTreeMap<(Nanos, u64), Transfer>,
    started: u64,
    /// What was notified and not taken.
    ended: VecDeque<(Waiter, Arrival)>,
    counts: StoreCounts,
}

/// A transfer that is on its way.
#[derive(Debug)]
pub(super) enum Transfer {
    Read(ReadRequest),
    Write(WriteRequest),
}

impl VirtualStore {
    /// An empty store without latency.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on each transfer takes this long.
    pub fn set_latency(&self, latency: Nanos) {
        self.lock().latency = latency;
    }

    /// What the store did so far.
    pub fn counts(&self) -> StoreCounts {
        self.lock().counts
    }

    /// What follows happens at this moment.
    pub(super) fn at(&self, now: Nanos) {
        self.lock().now = now;
    }

    /// When there is something to take: a notification, or the end of a transfer.
    pub(super) fn next(&self) -> Option<Nanos> {
        let state = self.lock();
        if state.ended.is_empty() { state.transfers.keys().next().map(|(at, _)| *at) } else { Some(state.now) }
    }

    /// Takes the transfer that ends first. The clock goes to its end.
    pub(super) fn take(&self) -> Option<Transfer> {
        let mut state = self.lock();
        let ((at, _), transfer) = state.transfers.pop_first()?;
        state.now = at;
        Some(transfer)
    }

    /// Does what a transfer is for.
    pub(super) fn complete(&self, memory: &dyn Completions, transfer: Transfer) {
        match transfer {
            Transfer::Read(request) => {
                let page = self.lock().pages.get(&request.place()).cloned();
                let content = page.ok_or(twofold_memory::swap::StoreError::Damaged);
                if let Ok(bytes) = &content {
                    memory.copy_in(&request, bytes);
                }
                memory.complete_read(request, content.map(|_| ()));
            }
            Transfer::Write(request) => memory.complete_write(request, Ok(())),
        }
    }

    /// Takes the notification that came first.
    pub(super) fn ended(&self) -> Option<(Waiter, Arrival)> {
        self.lock().ended.pop_front()
    }

    /// Takes the notification of this waiter.
    pub(super) fn ended_for(&self, waiter: Waiter) -> Option<Arrival> {
        let mut state = self.lock();
        let at = state.ended.iter().position(|(ended, _)| *ended == waiter)?;
        state.ended.remove(at).map(|(_, arrival)| arrival)
    }

    /// Begins a transfer. Returns it if it takes no time.
    fn begin(&self, transfer: Transfer) -> Option<Transfer> {
        let mut state = self.lock();
        if state.latency == Nanos::ZERO {
            return Some(transfer);
        }
        state.started += 1;
        let at = (state.now + state.latency, state.started);
        state.transfers.insert(at, transfer);
        None
    }

    /// The data behind the lock is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageStore for VirtualStore {
    fn place(&self, _: Ipa) -> Option<Place> {
        let mut state = self.lock();
        state.places += 1;
        Some(Place::new(state.places))
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        let mut bytes = Box::new([0; PAGE]);
        memory.copy_out(&request, &mut bytes);
        {
            let mut state = self.lock();
            state.pages.insert(request.place(), bytes);
            state.counts.writes += 1;
        }
        if let Some(transfer) = self.begin(Transfer::Write(request)) {
            self.complete(memory, transfer);
        }
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.lock().counts.reads += 1;
        if let Some(transfer) = self.begin(Transfer::Read(request)) {
            self.complete(memory, transfer);
        }
    }

    fn discard(&self, place: Place) {
        self.lock().pages.remove(&place);
    }
}

impl Notify for VirtualStore {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        self.lock().ended.push_back((waiter, arrival));
    }

    /// The waiters are notified, and this store fails only for a place that it does not have.
    fn failed(&self, _: &Failure) {}

    /// The machine looks after each of its calls ([`Swapped`](super::Swapped)).
    fn frames_wanted(&self) {}
}

const PAGE: usize = 4096;
