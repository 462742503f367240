// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The global allocator: a buddy system over memory that `main` gives it.
//!
//! Before [`add`] the heap is empty. An allocation that fails panics, as `alloc` does everywhere.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use buddy_system_allocator::LockedHeap;

/// Blocks of up to 2^31 bytes.
const ORDERS: usize = 32;

#[global_allocator]
static HEAP: LockedHeap<ORDERS> = LockedHeap::empty();

/// Gives `memory` to the heap, for ever.
///
/// # Safety
/// The memory must be mapped writable, and nothing else may use it.
pub unsafe fn add(memory: Range<u64>) {
    // SAFETY: the caller's promise.
    unsafe { HEAP.lock().add_to_heap(memory.start as usize, memory.end as usize) };
}

/// Marks the present use: allocations from here on are for a running guest.
pub fn mark() {
    MARK.store(used(), Ordering::Relaxed);
}

/// Bytes that are allocated now, minus those at [`mark`].
pub fn grown() -> u64 {
    used().saturating_sub(MARK.load(Ordering::Relaxed)) as u64
}

static MARK: AtomicUsize = AtomicUsize::new(0);

fn used() -> usize {
    HEAP.lock().stats_alloc_actual()
}
