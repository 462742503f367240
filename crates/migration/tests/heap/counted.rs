// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's heap, which counts what each thread holds: for tests of readers that have to stay below a bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Runs `work`; returns its result, and the most bytes that this thread's heap grew by meanwhile.
pub fn most<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    ((MOST.get() - before) as u64, result)
}

struct Heap;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as i64);
        MOST.set(MOST.get().max(HELD.get()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: as the caller promises; `alloc` got the memory from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}
