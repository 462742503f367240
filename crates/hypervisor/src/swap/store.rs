// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stores that a guest can have, behind one name.

use alloc::boxed::Box;

use twofold_memory::swap::{Completions, PageStore, Place, ReadRequest, WriteRequest};
use twofold_stage2::Ipa;
use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_vmm::memory_store::MemoryStore;

use super::disk_store::DiskStore;

/// A guest's store.
pub enum Store {
    /// In the machine's memory.
    Memory(MemoryStore<Arm64<IdentityMap>>),
    /// On a disk of the machine.
    Disk(Box<DiskStore>),
}

impl Store {
    /// When the next transfer ends; `None` if none is on its way, or a disk's interrupt says so.
    pub(super) fn next_end(&self) -> Option<u64> {
        match self {
            Self::Memory(store) => store.next_end(),
            Self::Disk(_) => None,
        }
    }

    /// Ends a transfer that is done. Returns whether there was one.
    pub(super) fn end_next(&self, memory: &dyn Completions) -> bool {
        match self {
            Self::Memory(store) => store.end_next(memory),
            Self::Disk(store) => store.end_next(memory),
        }
    }

    /// Writes that have failed in a row.
    pub(super) fn failed_writes(&self) -> u32 {
        match self {
            Self::Memory(_) => 0,
            Self::Disk(store) => store.failed_writes(),
        }
    }

    /// Those do not count any more.
    pub(super) fn forget_failed_writes(&self) {
        if let Self::Disk(store) = self {
            store.forget_failed_writes();
        }
    }

    fn pages(&self) -> &dyn PageStore {
        match self {
            Self::Memory(store) => store,
            Self::Disk(store) => &**store,
        }
    }
}

impl PageStore for Store {
    fn place(&self, page: Ipa) -> Option<Place> {
        self.pages().place(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.pages().write(memory, request);
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.pages().read(memory, request);
    }

    fn discard(&self, place: Place) {
        self.pages().discard(place);
    }
}
