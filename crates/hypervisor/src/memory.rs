// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's RAM, handed out once: a heap for EL2, the rest for guests and tables.
//!
//! The invariant: [`take_over`] is called once, and what it hands out neither overlaps itself nor anything in
//! [`Board::reserved`].

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use twofold_stage2::{Donated, Pa};

use crate::board::Board;
use crate::heap;

/// The least that EL2 needs for itself.
const HEAP_SIZE: u64 = 4 << 20;
/// What it needs on top for each so many bytes of RAM: the records of guest memory.
const RAM_PER_HEAP: u64 = 4096;
const PAGE: u64 = 4096;

/// Gives the heap its memory, and returns all other RAM that nobody uses.
pub fn take_over(board: &Board) -> Vec<Donated> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    assert!(!TAKEN.swap(true, Ordering::Relaxed), "RAM is taken over once");
    let ram: u64 = board.ram.iter().map(|range| range.end - range.start).sum();
    let size = (HEAP_SIZE + ram / RAM_PER_HEAP).next_multiple_of(PAGE);
    let heap = board.free(size, PAGE).expect("a machine that holds this image has room for a heap");
    // SAFETY: free RAM, mapped one to one, and taken once.
    unsafe { heap::add(heap.clone()) };

    let mut used: Vec<Range<u64>> = board.reserved.iter().cloned().chain([heap]).collect();
    used.sort_by_key(|range| range.start);
    let mut free = Vec::new();
    for ram in &board.ram {
        let mut start = ram.start;
        for range in &used {
            donate(start..range.start.min(ram.end), &mut free);
            start = start.max(range.end);
        }
        donate(start..ram.end, &mut free);
    }
    free
}

/// What the boot loader passed as an initrd; empty where it passed none.
pub fn bundle(board: &Board) -> &'static [u8] {
    let Some(range) = board.bundle.clone() else { return &[] };
    let pointer = core::ptr::with_exposed_provenance(range.start as usize);
    // SAFETY: the range is RAM, mapped one to one; it is reserved, so nothing ever writes to it.
    unsafe { core::slice::from_raw_parts(pointer, (range.end - range.start) as usize) }
}

/// Adds the whole pages of `range`, if any.
fn donate(range: Range<u64>, to: &mut Vec<Donated>) {
    let (start, end) = (range.start.next_multiple_of(PAGE), range.end & !(PAGE - 1));
    if start < end {
        // SAFETY: RAM that no one uses, mapped one to one; `take_over` hands each page out once.
        to.push(unsafe { Donated::new(Pa::new(start), end - start) });
    }
}
