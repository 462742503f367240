// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stores that a guest can have, behind one name, and how many pages go to them and come back.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use twofold_memory::swap::{Completions, PageStore, Place, ReadRequest, WriteRequest};
use twofold_stage2::Ipa;
use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_vmm::memory_store::MemoryStore;

use super::disk_store::DiskStore;
use crate::cpus;

/// A guest's store.
pub struct Store {
    kind: Kind,
    counts: Counts,
    /// The CPU on which pages leave now ([`Store::while_pages_leave`]), or [`NOWHERE`].
    leaving_on: AtomicUsize,
}

/// Pages that the store was asked to write, and to read. A page that leaves without a write, because it is zero or its copy is
/// good, is in neither.
#[derive(Default)]
struct Counts {
    written: AtomicU64,
    read: AtomicU64,
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
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, counts: Counts::default(), leaving_on: AtomicUsize::new(NOWHERE) }
    }

    /// Its kind.
    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The guest's task makes pages leave, on this CPU. There is one task, and nothing interrupts `leave`, so all that this CPU
    /// writes meanwhile is the task's.
    pub(super) fn while_pages_leave<T>(&self, leave: impl FnOnce() -> T) -> T {
        self.leaving_on.store(cpus::current(), Ordering::Relaxed);
        let result = leave();
        self.leaving_on.store(NOWHERE, Ordering::Relaxed);
        result
    }

    /// Pages that it was asked to write, to read, and to write by something other than the guest's task.
    pub(super) fn counts(&self) -> [u64; 3] {
        [&self.counts.written, &self.counts.read, &self.counts.written_by_faults]
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// Places that hold a page, or are about to.
    pub(super) fn taken(&self) -> u64 {
        match &self.kind {
            Kind::Memory(store) => store.taken(),
            Kind::Disk(store) => store.taken(),
        }
    }

    /// When the next transfer ends; `None` if none is on its way, or a disk's interrupt says so.
    pub(super) fn next_end(&self) -> Option<u64> {
        match &self.kind {
            Kind::Memory(store) => store.next_end(),
            Kind::Disk(_) => None,
        }
    }

    /// Ends a transfer that is done. Returns whether there was one.
    pub(super) fn end_next(&self, memory: &dyn Completions) -> bool {
        match &self.kind {
            Kind::Memory(store) => store.end_next(memory),
            Kind::Disk(store) => store.end_next(memory),
        }
    }

    /// Writes that have failed in a row.
    pub(super) fn failed_writes(&self) -> u32 {
        match &self.kind {
            Kind::Memory(_) => 0,
            Kind::Disk(store) => store.failed_writes(),
        }
    }

    /// Those do not count any more.
    pub(super) fn forget_failed_writes(&self) {
        if let Kind::Disk(store) = &self.kind {
            store.forget_failed_writes();
        }
    }

    fn pages(&self) -> &dyn PageStore {
        match &self.kind {
            Kind::Memory(store) => store,
            Kind::Disk(store) => &**store,
        }
    }
}

impl PageStore for Store {
    fn place(&self, page: Ipa) -> Option<Place> {
        self.pages().place(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.counts.written.fetch_add(1, Ordering::Relaxed);
        if self.leaving_on.load(Ordering::Relaxed) != cpus::current() {
            self.counts.written_by_faults.fetch_add(1, Ordering::Relaxed);
        }
        self.pages().write(memory, request);
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.counts.read.fetch_add(1, Ordering::Relaxed);
        self.pages().read(memory, request);
    }

    fn discard(&self, place: Place) {
        self.pages().discard(place);
    }
}
