// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that EL2 shares with the machine's devices.
//!
//! EL2 maps RAM one to one, and the devices reach it by the same addresses: an IOMMU in between is not supported. No cache
//! is cleaned or invalidated: [`find`](super::find) refuses a device whose accesses are not coherent with the caches (its
//! node has no `dma-coherent`).
//!
//! Invariant: the drivers allocate when they are made, before any guest runs. So neither a guest nor a device makes EL2's
//! heap grow.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// The machine, as the drivers of `virtio-drivers` see it.
#[derive(Debug)]
pub struct Machine;

// SAFETY: `dma_alloc` returns pages of the heap: valid, aligned, zeroed, and nothing else has them until `dma_dealloc`.
// Devices reach memory by the addresses that EL2 uses.
unsafe impl Hal for Machine {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // SAFETY: the size is not 0.
        let memory = layout(pages).and_then(|layout| NonNull::new(unsafe { alloc_zeroed(layout) }));
        memory.map_or((0, NonNull::dangling()), |memory| (memory.as_ptr().expose_provenance() as u64, memory))
    }

    unsafe fn dma_dealloc(_: PhysAddr, memory: NonNull<u8>, pages: usize) -> i32 {
        let Some(layout) = layout(pages) else { return -1 };
        // SAFETY: the caller's promise: it was allocated above with this layout.
        unsafe { dealloc(memory.as_ptr(), layout) };
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        // The crate asks only for the windows of PCI devices, which EL2 does not drive.
        NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// The layout of a positive number of pages.
fn layout(pages: usize) -> Option<Layout> {
    let size = pages.checked_mul(PAGE_SIZE).filter(|size| *size != 0)?;
    Layout::from_size_align(size, PAGE_SIZE).ok()
}
