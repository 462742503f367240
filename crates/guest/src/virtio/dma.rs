// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that drivers and devices share: pages of free RAM, each given once. The devices see the RAM as the CPU does, at
//! the addresses of the identity map.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use virtio_drivers::{BufferDirection, Hal, PhysAddr};

use super::Failure;
use crate::memory::{self, Memory, PAGE};

/// What the drivers need of this guest.
pub struct Dma;

/// The next free page, and the end of the range.
static NEXT: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// The pages are those of the largest free range.
pub fn begin(memory: &Memory) -> Result<(), Failure> {
    let free = memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?;
    NEXT.store(free.start, Ordering::Relaxed);
    END.store(free.end, Ordering::Relaxed);
    Ok(())
}

/// Zeroed pages, as a slice. `None` if no RAM is left.
pub fn pages(count: usize) -> Option<&'static mut [u8]> {
    let (start, size) = (NEXT.load(Ordering::Relaxed), count as u64 * PAGE);
    let end = start.checked_add(size).filter(|end| *end <= END.load(Ordering::Relaxed))?;
    NEXT.store(end, Ordering::Relaxed);
    for at in (start..end).step_by(8) {
        // SAFETY: a word of free RAM.
        unsafe { memory::write(at, 0) };
    }
    let first = core::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: free RAM, which is given once, on the one vCPU.
    Some(unsafe { core::slice::from_raw_parts_mut(first, size as usize) })
}

// SAFETY: the pages are free RAM, zeroed, and given once. Addresses are the same for drivers and devices.
unsafe impl Hal for Dma {
    fn dma_alloc(count: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        match pages(count) {
            Some(pages) => (pages.as_ptr().addr() as u64, NonNull::from(pages).cast()),
            // The drivers report it.
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        // Only PCI asks for it.
        NonNull::dangling()
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
