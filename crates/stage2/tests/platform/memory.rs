// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's memory: an arena of real memory for tables, and frames that no test ever accesses.
//!
//! No physical address equals the pointer to it, so code that confuses the two fails.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::{Features, Pa, TableMetadata};

use super::HostMemory;

/// The root, aligned for 16 tables.
pub const ROOT: Pa = Pa::new(0x8_4000_0000);
/// The table pages.
pub const TABLES: Pa = Pa::new(ROOT.raw() + ROOT_SIZE);
/// Guest memory. A physical address that is neither here nor in an arena has no pointer; a device is an example.
pub const FRAMES: Pa = Pa::new(0x10_0000_0000);
const FRAMES_SIZE: u64 = 64 << 30;
const FRAMES_TO_POINTER: u64 = 0x7000_0000_0000;

const ROOT_SIZE: u64 = 16 * 4096;

pub struct Arena {
    start: NonNull<u8>,
    layout: Layout,
    metadata: Vec<TableMetadata>,
}

impl Arena {
    pub fn new(table_pages: u64) -> Self {
        let size = ROOT_SIZE + table_pages * 4096;
        let layout = Layout::from_size_align(size as usize, ROOT_SIZE as usize).unwrap();
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("out of memory");
        let metadata = (0..size / 4096).map(|_| TableMetadata::new()).collect();
        let arena = Self { start, layout, metadata };
        arena.spoil(ROOT, size);
        arena
    }

    fn table_pointer(&self, pa: Pa) -> Option<NonNull<u8>> {
        let offset = pa.raw().checked_sub(ROOT.raw()).filter(|offset| *offset < self.layout.size() as u64)?;
        // SAFETY: the offset is inside the allocation.
        Some(unsafe { self.start.add(offset as usize) })
    }

    pub fn write(&self, pa: Pa, word: u64) {
        self.word(pa).store(word, Ordering::Release);
    }

    pub fn set_bits(&self, pa: Pa, bits: u64) {
        self.word(pa).fetch_or(bits, Ordering::AcqRel);
    }

    /// Fills memory with what a walk would take for a table, except that it has bits that no table's entry has.
    pub fn spoil(&self, pa: Pa, size: u64) {
        self.fill(pa, size, 0xff);
    }

    fn fill(&self, pa: Pa, size: u64, byte: u8) {
        let start =
            self.table_pointer(pa).filter(|_| self.table_pointer(pa + (size - 1)).is_some()).expect("not in the arena");
        // SAFETY: inside the allocation. Nothing else accesses it meanwhile: the machine has one thread.
        unsafe { start.as_ptr().write_bytes(byte, size as usize) };
    }

    fn word(&self, pa: Pa) -> &AtomicU64 {
        let Some(pointer) = self.table_pointer(pa).filter(|_| pa.raw() & 7 == 0) else {
            panic!("a walk reads {pa}, where no table is");
        };
        // SAFETY: inside the allocation, aligned, and accessed only as an `AtomicU64`.
        unsafe { pointer.cast::<AtomicU64>().as_ref() }
    }
}

impl HostMemory for Arena {
    fn read(&self, pa: Pa) -> u64 {
        self.word(pa).load(Ordering::Acquire)
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.table_pointer(pa).unwrap_or_else(|| frame_pointer(pa))
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        let Some(metadata) = pa.raw().checked_sub(ROOT.raw()).and_then(|at| self.metadata.get(at as usize / 4096))
        else {
            panic!("the engine wants the metadata of {pa}, where no table ever was");
        };
        metadata
    }

    fn at(&self, address: usize) -> Pa {
        let offset = address.checked_sub(self.start.addr().get()).filter(|offset| *offset < self.layout.size());
        offset.map_or_else(|| frame_at(address), |offset| ROOT + offset as u64)
    }

    fn zero(&self, pa: Pa, size: u64) {
        self.fill(pa, size, 0);
    }

    fn clean(&self, pa: Pa, _: u64) {
        assert!(pa >= FRAMES, "cache operation outside the frames");
    }

    fn check_page(&self, pa: Pa, _: &[u8], _: &Features) {
        unreachable!("the frame at {pa} has no content");
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout. The machine is gone, and with it every platform.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The address of a frame's mapping, which no code may access.
fn frame_pointer(pa: Pa) -> NonNull<u8> {
    assert!(pa >= FRAMES && pa - FRAMES < FRAMES_SIZE, "{pa} is not memory: there is no pointer to it");
    NonNull::without_provenance(std::num::NonZero::new((pa.raw() + FRAMES_TO_POINTER) as usize).unwrap())
}

/// The frame whose mapping is at `address`.
fn frame_at(address: usize) -> Pa {
    let pa = Pa::new((address as u64).checked_sub(FRAMES_TO_POINTER).expect("cache operation outside the frames"));
    assert!(pa >= FRAMES && pa - FRAMES < FRAMES_SIZE, "cache operation on {pa}, which is no frame");
    pa
}
