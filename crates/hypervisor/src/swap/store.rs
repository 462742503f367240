// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stores that a guest can have, behind one name.

use alloc::boxed::Box;
use alloc::sync::Arc;

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
}

/// The share of the guest's memory in its store.
pub(super) struct Shared(pub(super) Arc<Store>);

impl PageStore for Shared {
    fn place(&self, page: Ipa) -> Option<Place> {
        match &*self.0 {
            Store::Memory(store) => store.place(page),
            Store::Disk(store) => store.place(page),
        }
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        match &*self.0 {
            Store::Memory(store) => store.write(memory, request),
            Store::Disk(store) => store.write(memory, request),
        }
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        match &*self.0 {
            Store::Memory(store) => store.read(memory, request),
            Store::Disk(store) => store.read(memory, request),
        }
    }

    fn discard(&self, place: Place) {
        match &*self.0 {
            Store::Memory(store) => store.discard(place),
            Store::Disk(store) => store.discard(place),
        }
    }
}
