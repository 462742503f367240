// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page store on a disk of the machine. A place is a page of the disk.
//!
//! A page goes through a buffer, as all data of a guest's does (`virtio::host`): the device never has a frame. A read goes
//! before all writes that wait, because a vCPU waits for it. A request that the disk fails is asked again, [`TRIES`] times in
//! all, before the guest's memory hears of it.
//!
//! # Steps
//!
//! * **S1** A fault, or the write-out task, passes a request. It goes to the end of its queue.
//! * **S2** While there is a buffer, the first request takes it and goes to the disk. A page that is written is copied first.
//! * **S3** The disk's interrupt wakes the guest's task.
//! * **S4** The task takes what has ended: it copies a page that was read, frees the buffer, does S2, and completes the request
//!   without the lock.
//!
//! **Locking.** Under the store's lock the disk's is taken, and under that the scheduler's.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use spin::Mutex;
use twofold_memory::swap::{Completions, PageStore, Place, ReadRequest, StoreError, WriteRequest};
use twofold_stage2::Ipa;
use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_vmm::places::Places;
use twofold_vmm::scheduler::EntityId;

use crate::virtio::host::{Client, HostDisk, TRANSFERS, Transfer, Waker, Work};

/// A store on a disk of the machine.
pub struct DiskStore {
    platform: Arm64<IdentityMap>,
    disk: &'static dyn HostDisk,
    client: Client,
    state: Mutex<State>,
    /// Writes that have failed in a row. The task changes it.
    failed_writes: AtomicU32,
}

struct State {
    places: Places,
    reads: VecDeque<Flight>,
    writes: VecDeque<Flight>,
    /// What the disk has, by ticket.
    flying: [Option<Flight>; TRANSFERS],
    /// Buffers that the disk does not have.
    buffers: Vec<Box<[u8]>>,
}

/// A request, and how often the disk has failed it.
struct Flight {
    request: Request,
    failures: u32,
}

enum Request {
    Read(ReadRequest),
    Write(WriteRequest),
}

/// How often the disk is asked.
const TRIES: u32 = 5;
const PAGE: u64 = 4096;
const SECTORS: u64 = PAGE / 512;
/// The queue is full.
const BUSY: StoreError = StoreError::Device { code: 16 };
/// The disk has failed the request.
const IO: StoreError = StoreError::Device { code: 5 };

impl DiskStore {
    /// An empty store on this disk, with a place for each of `pages` pages. `most` is the number of requests that are on their
    /// way at a time: those after them fail, if there is no memory on the heap for more. `task` does step S4.
    pub(super) fn new(
        platform: Arm64<IdentityMap>,
        disk: &'static dyn HostDisk,
        pages: u64,
        most: usize,
        task: EntityId,
    ) -> Self {
        let state = State {
            places: Places::new(pages),
            reads: VecDeque::with_capacity(most),
            writes: VecDeque::with_capacity(most),
            flying: [const { None }; TRANSFERS],
            buffers: (0..TRANSFERS).map(|_| vec![0; PAGE as usize].into_boxed_slice()).collect(),
        };
        Self {
            platform,
            disk,
            client: disk.open(Waker::new(task)),
            state: Mutex::new(state),
            failed_writes: AtomicU32::new(0),
        }
    }

    /// S4, for one request. Returns whether there was one.
    pub(super) fn end_next(&self, memory: &dyn Completions) -> bool {
        let Some(ended) = self.disk.ended(self.client) else {
            // The disk may have room again.
            self.start(&mut self.state.lock());
            return false;
        };
        let Transfer { ticket, buffer, .. } = ended.transfer;
        let mut state = self.state.lock();
        let flight = state.flying.get_mut(ticket as usize).and_then(Option::take);
        if let Some(Flight { request: Request::Read(request), .. }) = &flight
            && ended.is_good
        {
            request.frame().write(&self.platform, 0, &buffer);
        }
        state.buffers.push(buffer);
        let flight = flight.and_then(|flight| self.again(&mut state, flight, ended.is_good));
        self.start(&mut state);
        drop(state);
        if let Some(flight) = flight {
            if let Request::Write(_) = flight.request {
                let in_a_row = if ended.is_good { 0 } else { self.failed_writes().saturating_add(1) };
                self.failed_writes.store(in_a_row, Ordering::Relaxed);
            }
            flight.end(memory, if ended.is_good { Ok(()) } else { Err(IO) });
        }
        true
    }

    /// The place where this page is, unless that had another owner when the page left.
    pub(super) fn home(&self, page: Ipa) -> Place {
        self.state.lock().places.home(page)
    }

    /// How many places hold a page, or are about to.
    pub(super) fn taken(&self) -> u64 {
        self.state.lock().places.taken()
    }

    /// Writes that have failed in a row.
    pub(super) fn failed_writes(&self) -> u32 {
        self.failed_writes.load(Ordering::Relaxed)
    }

    /// Those do not count any more.
    pub(super) fn forget_failed_writes(&self) {
        self.failed_writes.store(0, Ordering::Relaxed);
    }

    /// A request that the disk has failed is asked once more, or comes back.
    fn again(&self, state: &mut State, mut flight: Flight, is_good: bool) -> Option<Flight> {
        flight.failures += 1;
        if is_good || flight.failures == TRIES {
            return Some(flight);
        }
        // It was in this queue before, so there is room.
        flight.queue(state).push_front(flight);
        None
    }

    /// S1.
    fn begin(&self, memory: &dyn Completions, request: Request) {
        let flight = Flight { request, failures: 0 };
        let mut state = self.state.lock();
        let queue = flight.queue(&mut state);
        if queue.try_reserve(1).is_err() {
            drop(state);
            return flight.end(memory, Err(BUSY));
        }
        queue.push_back(flight);
        self.start(&mut state);
    }

    /// S2.
    fn start(&self, state: &mut State) {
        let State { reads, writes, flying, buffers, .. } = state;
        while let Some(ticket) = flying.iter().position(Option::is_none) {
            let Some(mut buffer) = buffers.pop() else { return };
            let Some(flight) = reads.pop_front().or_else(|| writes.pop_front()) else { return buffers.push(buffer) };
            let work = match &flight.request {
                Request::Read(request) => Work::Read(sector(request.place())),
                Request::Write(request) => {
                    request.frame().read(&self.platform, 0, &mut buffer);
                    Work::Write(sector(request.place()))
                }
            };
            let transfer = Transfer { ticket: ticket as u32, work, length: PAGE as usize, buffer };
            match self.disk.begin(self.client, transfer) {
                Ok(()) => flying[ticket] = Some(flight),
                Err(refused) => {
                    // The disk wakes the task when it has room.
                    buffers.push(refused.buffer);
                    return match flight.request {
                        Request::Read(_) => reads.push_front(flight),
                        Request::Write(_) => writes.push_front(flight),
                    };
                }
            }
        }
    }
}

impl Flight {
    fn queue<'a>(&self, state: &'a mut State) -> &'a mut VecDeque<Self> {
        match self.request {
            Request::Read(_) => &mut state.reads,
            Request::Write(_) => &mut state.writes,
        }
    }

    fn end(self, memory: &dyn Completions, result: Result<(), StoreError>) {
        match self.request {
            Request::Read(request) => memory.complete_read(request, result),
            Request::Write(request) => memory.complete_write(request, result),
        }
    }
}

impl PageStore for DiskStore {
    fn place(&self, page: Ipa) -> Option<Place> {
        self.state.lock().places.take(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.begin(memory, Request::Write(request));
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.begin(memory, Request::Read(request));
    }

    fn discard(&self, place: Place) {
        self.state.lock().places.give(place);
    }
}

fn sector(place: Place) -> u64 {
    place.raw() * SECTORS
}
