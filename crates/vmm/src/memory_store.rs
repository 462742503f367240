// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page store in the machine's memory, whose transfers take a stated time.
//!
//! It stands for a device: what is asked of it ends later, in the order in which it was asked, and nothing waits
//! meanwhile. Pages are copied when a transfer ends, by whatever calls [`MemoryStore::end_next`], so a fault copies
//! nothing. If transfers take no time, they are done at once instead ([`PageStore::read_at_once`]).
//!
//! Invariant: a place is one page of the store's memory, and has one owner from [`place`](PageStore::place) to
//! [`discard`](PageStore::discard). A request is in the queue, or is being completed by one CPU, until it is complete; the
//! queue's lock is not held then.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use twofold_memory::HUGE_PAGE;
use twofold_memory::swap::{Completions, PageStore, Place, ReadRequest, StoreError, WriteRequest};
use twofold_stage2::{Ipa, Lock, Platform, Run};

use crate::places::Places;

/// A store of pages in memory.
pub struct MemoryStore<P: Platform> {
    platform: P,
    /// Each has [`PAGES`] places.
    memory: Vec<Run>,
    /// The machine's time.
    now: fn() -> u64,
    /// How long a transfer takes, in units of that time.
    delay: AtomicU64,
    state: Lock<State>,
    /// When the first transfer of the queue ends, or [`NEVER`]. It is written under the queue's lock, and read without it, so
    /// that a look at a store that has nothing to end costs a load.
    first: AtomicU64,
}

struct State {
    places: Places,
    transfers: VecDeque<Timed>,
}

/// A transfer, and when it ends.
struct Timed {
    end: u64,
    transfer: Transfer,
}

enum Transfer {
    Read(ReadRequest),
    Write(WriteRequest),
}

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Places in one run of memory, which has [`HUGE_PAGE`] bytes.
const PAGES: u64 = HUGE_PAGE / PAGE;
/// The time at which nothing ends.
const NEVER: u64 = u64::MAX;
/// The queue is full.
const BUSY: StoreError = StoreError::Device { code: 16 };

impl<P: Platform> MemoryStore<P> {
    /// An empty store in runs of 2 MiB. `most` is how many transfers are on their way at a time: those after them fail, if
    /// there is no memory on the heap for more. Transfers take no time at first.
    pub fn new(platform: P, memory: Vec<Run>, most: usize, now: fn() -> u64) -> Self {
        let places = Places::new(memory.len() as u64 * PAGES);
        let state = State { places, transfers: VecDeque::with_capacity(most) };
        Self { platform, memory, now, delay: AtomicU64::new(0), state: Lock::new(state), first: AtomicU64::new(NEVER) }
    }

    /// From now on each transfer takes this long. Returns how long it took before.
    pub fn set_delay(&self, delay: u64) -> u64 {
        self.delay.swap(delay, Ordering::Relaxed)
    }

    /// Whether transfers take any time.
    pub fn takes_time(&self) -> bool {
        self.delay.load(Ordering::Relaxed) > 0
    }

    /// The place where this page is, unless that had another owner when the page left.
    pub fn home(&self, page: Ipa) -> Place {
        self.state.lock(&self.platform).places.home(page)
    }

    /// When the next transfer ends; `None` if none is on its way.
    pub fn next_end(&self) -> Option<u64> {
        Some(self.first.load(Ordering::Acquire)).filter(|end| *end != NEVER)
    }

    /// How many places hold a page, or are about to.
    pub fn taken(&self) -> u64 {
        self.state.lock(&self.platform).places.taken()
    }

    /// Ends the transfer that is next, if its time has come: copies its page, and completes it. Returns whether there was
    /// one.
    pub fn end_next(&self, memory: &dyn Completions) -> bool {
        let Some(first) = self.next_end() else { return false };
        let now = (self.now)();
        if first > now {
            return false;
        }
        let mut state = self.state.lock(&self.platform);
        // Another CPU may have ended that one.
        let is_due = state.transfers.front().is_some_and(|timed| timed.end <= now);
        let next = if is_due { state.transfers.pop_front() } else { None };
        let Some(Timed { transfer, .. }) = next else { return false };
        self.first.store(state.transfers.front().map_or(NEVER, |timed| timed.end), Ordering::Release);
        drop(state);
        self.end(memory, transfer);
        true
    }

    #[inline(always)]
    fn begin(&self, memory: &dyn Completions, transfer: Transfer) {
        let delay = self.delay.load(Ordering::Relaxed);
        if delay == 0 {
            return self.end(memory, transfer);
        }
        let mut state = self.state.lock(&self.platform);
        if state.transfers.try_reserve(1).is_ok() {
            // The time is read under the lock, so that the queue is in the order of its times.
            let end = (self.now)().saturating_add(delay);
            if state.transfers.is_empty() {
                self.first.store(end, Ordering::Release);
            }
            state.transfers.push_back(Timed { end, transfer });
            return;
        }
        drop(state);
        match transfer {
            Transfer::Read(request) => memory.complete_read(request, Err(BUSY)),
            Transfer::Write(request) => memory.complete_write(request, Err(BUSY)),
        }
    }

    #[inline(always)]
    fn end(&self, memory: &dyn Completions, transfer: Transfer) {
        match transfer {
            Transfer::Read(request) => {
                let from = self.at(request.place());
                let copied = from.map(|from| request.frame().copy(&self.platform, 0, from, PAGE));
                memory.complete_read(request, copied.ok_or(StoreError::Damaged));
            }
            Transfer::Write(request) => {
                let to = self.at(request.place());
                let copied = to.map(|(to, offset)| to.copy(&self.platform, offset, (request.frame(), 0), PAGE));
                memory.complete_write(request, copied.ok_or(StoreError::Damaged));
            }
        }
    }

    /// Where a place is: a run, and an offset in it.
    fn at(&self, place: Place) -> Option<(&Run, u64)> {
        let run = self.memory.get((place.raw() / PAGES) as usize)?;
        Some((run, place.raw() % PAGES * PAGE))
    }
}

impl<P: Platform + Send + Sync> PageStore for MemoryStore<P> {
    fn place(&self, page: Ipa) -> Option<Place> {
        self.state.lock(&self.platform).places.take(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.begin(memory, Transfer::Write(request));
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.begin(memory, Transfer::Read(request));
    }

    fn reads_at_once(&self, _: Place) -> bool {
        !self.takes_time()
    }

    fn read_at_once(&self, place: Place, frame: &Run) -> bool {
        self.at(place).map(|from| frame.copy(&self.platform, 0, from, PAGE)).is_some()
    }

    fn write_at_once(&self, place: Place, frame: &Run) -> bool {
        let to = self.at(place).filter(|_| !self.takes_time());
        to.map(|(to, offset)| to.copy(&self.platform, offset, (frame, 0), PAGE)).is_some()
    }

    fn discard(&self, place: Place) {
        self.state.lock(&self.platform).places.give(place);
    }
}
