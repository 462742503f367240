// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stores that a guest can have, behind one name, and how many pages go to them and come back. A guest that comes by
//! post-copy has its source beside its own store, if it has one: a place says where it is.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use twofold_memory::swap::{Completions, NotBegun, PageStore, Place, ReadRequest, StoreError, Unasked, WriteRequest};
use twofold_migration::postcopy::is_at_peer;
use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_stage2::{Ipa, Run};
use twofold_vmm::memory_store::MemoryStore;

use super::disk_store::DiskStore;
use super::peer;
use crate::cpus;
use crate::granule::Memory;

/// A guest's store.
pub struct Store {
    /// `None`: no page leaves.
    kind: Option<Kind>,
    peer: Option<peer::Source>,
    counts: Counts,
    /// The CPU on which pages leave now ([`Store::while_pages_leave`]), or [`NOWHERE`].
    leaving_on: AtomicUsize,
}

/// Pages that the store was asked to write, to read, and to read ahead. A page that leaves without a write, because it is zero or its copy is
/// good, is in none of them.
#[derive(Default)]
struct Counts {
    written: AtomicU64,
    read: AtomicU64,
    ahead: AtomicU64,
    /// Those of `written` that the CPU was asked to write while it did something else, such as to handle a fault. Always 0.
    written_by_faults: AtomicU64,
}

const NOWHERE: usize = usize::MAX;

/// The kinds of stores.
pub enum Kind {
    /// In the machine's memory.
    Memory(MemoryStore<Arm64<IdentityMap>>),
    /// On a disk of the machine.
    Disk(Box<DiskStore>),
}

impl Store {
    /// An empty store.
    pub(super) fn new(kind: Option<Kind>, peer: Option<peer::Source>) -> Self {
        Self { kind, peer, counts: Counts::default(), leaving_on: AtomicUsize::new(NOWHERE) }
    }

    /// Its kind.
    pub(super) fn kind(&self) -> Option<&Kind> {
        self.kind.as_ref()
    }

    /// Where the pages are that have not come.
    pub(super) fn peer(&self) -> Option<&peer::Source> {
        self.peer.as_ref()
    }

    /// How many those are.
    pub(super) fn absent(&self) -> u64 {
        self.peer.as_ref().map_or(0, |peer| peer.asks().1)
    }

    /// The guest's task makes pages leave, on this CPU. There is one task, and nothing interrupts `leave`, so all that this CPU
    /// writes meanwhile is the task's.
    pub(super) fn while_pages_leave<T>(&self, leave: impl FnOnce() -> T) -> T {
        self.leaving_on.store(cpus::current(), Ordering::Relaxed);
        let result = leave();
        self.leaving_on.store(NOWHERE, Ordering::Relaxed);
        result
    }

    /// Pages that it was asked to write, to read, to read ahead, and to write by something other than the guest's task.
    pub(super) fn counts(&self) -> [u64; 4] {
        let Counts { written, read, ahead, written_by_faults } = &self.counts;
        [written, read, ahead, written_by_faults].map(|count| count.load(Ordering::Relaxed))
    }

    /// Whether a vCPU waits for what is read from here.
    pub(super) fn takes_time(&self) -> bool {
        match &self.kind {
            Some(Kind::Memory(store)) => store.takes_time(),
            Some(Kind::Disk(_)) => true,
            None => false,
        }
    }

    /// Begins to read a page that the guest has not asked for.
    ///
    /// # Errors
    ///
    /// [`NotBegun`]: it is not absent, or not at its home, or there is no frame for it.
    pub(super) fn read_ahead(&self, memory: &Memory, page: Ipa) -> Result<(), NotBegun> {
        let (store, home): (&dyn PageStore, _) = match &self.kind {
            Some(Kind::Memory(store)) => (store, store.home(page)),
            Some(Kind::Disk(store)) => (&**store, store.home(page)),
            None => return Err(NotBegun::Elsewhere),
        };
        let request = memory.begin_read(page, home, Unasked::Ahead)?;
        self.counts.ahead.fetch_add(1, Ordering::Relaxed);
        store.read(memory, request);
        Ok(())
    }

    /// Places that hold a page, or are about to.
    pub(super) fn taken(&self) -> u64 {
        match &self.kind {
            Some(Kind::Memory(store)) => store.taken(),
            Some(Kind::Disk(store)) => store.taken(),
            None => 0,
        }
    }

    /// When the next transfer ends; `None` if none is on its way, or a disk's interrupt says so.
    pub(super) fn next_end(&self) -> Option<u64> {
        match &self.kind {
            Some(Kind::Memory(store)) => store.next_end(),
            // The launcher brings what is at the source.
            Some(Kind::Disk(_)) | None => None,
        }
    }

    /// Ends a transfer that is done. Returns whether there was one.
    pub(super) fn end_next(&self, memory: &dyn Completions) -> bool {
        match &self.kind {
            Some(Kind::Memory(store)) => store.end_next(memory),
            Some(Kind::Disk(store)) => store.end_next(memory),
            None => false,
        }
    }

    /// Writes that have failed in a row.
    pub(super) fn failed_writes(&self) -> u32 {
        match &self.kind {
            Some(Kind::Disk(store)) => store.failed_writes(),
            Some(Kind::Memory(_)) | None => 0,
        }
    }

    /// Those do not count any more.
    pub(super) fn forget_failed_writes(&self) {
        if let Some(Kind::Disk(store)) = &self.kind {
            store.forget_failed_writes();
        }
    }

    fn count_write(&self) {
        self.counts.written.fetch_add(1, Ordering::Relaxed);
        if self.leaving_on.load(Ordering::Relaxed) != cpus::current() {
            self.counts.written_by_faults.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Where pages leave to.
    fn own(&self) -> Option<&dyn PageStore> {
        match &self.kind {
            Some(Kind::Memory(store)) => Some(store),
            Some(Kind::Disk(store)) => Some(&**store),
            None => None,
        }
    }

    /// The store that has this place.
    fn of(&self, place: Place) -> Option<&dyn PageStore> {
        if is_at_peer(place) { self.peer.as_ref().map(|peer| peer as &dyn PageStore) } else { self.own() }
    }
}

impl PageStore for Store {
    fn place(&self, page: Ipa) -> Option<Place> {
        self.own()?.place(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.count_write();
        match self.own() {
            Some(store) => store.write(memory, request),
            None => memory.complete_write(request, Err(StoreError::Ended)),
        }
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.counts.read.fetch_add(1, Ordering::Relaxed);
        match self.of(request.place()) {
            Some(store) => store.read(memory, request),
            None => memory.complete_read(request, Err(StoreError::Ended)),
        }
    }

    fn discard(&self, place: Place) {
        if let Some(store) = self.of(place) {
            store.discard(place);
        }
    }

    fn keeps_what_is_read(&self, place: Place) -> bool {
        self.of(place).is_some_and(|store| store.keeps_what_is_read(place))
    }

    fn reads_at_once(&self, place: Place) -> bool {
        self.of(place).is_some_and(|store| store.reads_at_once(place))
    }

    fn read_at_once(&self, place: Place, frame: &Run) -> bool {
        self.counts.read.fetch_add(1, Ordering::Relaxed);
        self.of(place).is_some_and(|store| store.read_at_once(place, frame))
    }

    fn write_at_once(&self, place: Place, frame: &Run) -> bool {
        let is_written = self.own().is_some_and(|store| store.write_at_once(place, frame));
        if is_written {
            self.count_write();
        }
        is_written
    }
}
