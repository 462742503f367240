// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's RAM, handed out once: a heap for EL2, table metadata, and the rest for guests and tables.
//!
//! Invariant: [`take_over`] is called once, and the memory that it hands out neither overlaps itself nor anything in
//! [`Board::reserved`].

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_stage2::{Donated, MetadataMap, MetadataRange, Pa, TableMetadata};

use crate::board::Board;
use crate::{heap, platform};

/// The minimum heap of EL2.
const HEAP_SIZE: u64 = 4 << 20;
const PAGE: u64 = 4096;

/// The memory for guests.
pub struct Taken {
    /// RAM that is not in use.
    pub free: Vec<Donated>,
    /// The table metadata of all RAM.
    pub metadata: MetadataMap,
}

/// Gives the heap its memory and the engine its metadata. The rest is free. The heap has a fixed size, and one more byte
/// for each `ram_per_heap` bytes of RAM.
pub fn take_over(board: &Board, ram_per_heap: u64) -> Taken {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    assert!(!TAKEN.swap(true, Ordering::Relaxed), "RAM is taken over once");
    let ram: u64 = board.ram.iter().map(|range| range.end - range.start).sum();
    let size = (HEAP_SIZE + ram / ram_per_heap).next_multiple_of(PAGE);
    let heap = board.free(size, PAGE).expect("a machine that holds this image has room for a heap");
    // SAFETY: free RAM, mapped one to one, and taken once.
    unsafe { heap::add(heap.clone()) };

    let mut used: Vec<Range<u64>> = board.reserved.iter().cloned().chain([heap]).collect();
    used.sort_by_key(|range| range.start);
    let metadata = make_metadata(board, &mut used);
    let mut free = Vec::new();
    for ram in &board.ram {
        let mut start = ram.start;
        for range in &used {
            donate(start..range.start.min(ram.end), &mut free);
            start = start.max(range.end);
        }
        donate(start..ram.end, &mut free);
    }
    Taken { free, metadata }
}

/// Places the metadata of each range of RAM outside of `used`, and adds its place to `used`.
fn make_metadata(board: &Board, used: &mut Vec<Range<u64>>) -> MetadataMap {
    let mut ranges = Vec::new();
    for ram in &board.ram {
        let frames = (ram.end - ram.start) / PAGE;
        let size = (frames * size_of::<TableMetadata>() as u64).next_multiple_of(PAGE);
        let place = free(board, used, size).expect("a machine that holds this image has room for metadata");
        // SAFETY: free RAM, mapped one to one.
        let memory = unsafe { Donated::new(Pa::new(place.start), size) };
        // SAFETY: EL2 maps all RAM one to one, and no table is made here.
        let platform = Arm64::new(unsafe { IdentityMap::new(MetadataMap::NONE) });
        let run = memory.into_run();
        run.zero(&platform, &platform::features());
        let first = core::ptr::with_exposed_provenance(place.start as usize);
        // SAFETY: zeroed just now, which is the initial state of metadata; taken once, and used for nothing else.
        let metadata = unsafe { core::slice::from_raw_parts(first, frames as usize) };
        ranges.push(MetadataRange { first: Pa::new(ram.start), metadata });
        used.push(place);
        used.sort_by_key(|range| range.start);
    }
    MetadataMap::new(ranges.leak())
}

/// The last `size` bytes of RAM, a multiple of the page size, outside of the ranges in `used`.
fn free(board: &Board, used: &[Range<u64>], size: u64) -> Option<Range<u64>> {
    board.ram.iter().rev().find_map(|ram| {
        let mut end = ram.end & !(PAGE - 1);
        for range in used.iter().rev().filter(|range| range.start < ram.end && range.end > ram.start) {
            if end.saturating_sub(range.end.next_multiple_of(PAGE)) >= size {
                break;
            }
            end = end.min(range.start & !(PAGE - 1));
        }
        let start = end.checked_sub(size)?;
        (start >= ram.start).then_some(start..end)
    })
}

/// The boot loader's initrd; empty if there is none.
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
        // SAFETY: unused RAM, mapped one to one; `take_over` hands each page out once.
        to.push(unsafe { Donated::new(Pa::new(start), end - start) });
    }
}
