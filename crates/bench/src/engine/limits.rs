// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits of this machine: how fast it reads and writes as many entries at all. An operation that touches every
//! entry cannot be faster.

use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::{Arena, TABLES};
use crate::clock::Moment;

/// A limit: its name, and what it does to the entries.
#[derive(Clone, Copy)]
pub struct Limit {
    /// Its name.
    pub name: &'static str,
    run: fn(&[AtomicU64]),
}

/// All limits.
pub const LIMITS: &[Limit] = &[
    Limit { name: "limit_read", run: read },
    Limit { name: "limit_write", run: write },
    Limit { name: "limit_cmpxchg", run: compare_exchange },
];

impl Limit {
    /// Runs once over the arena's first `entries` entries; returns nanoseconds per entry.
    pub fn time(&self, arena: Arena, entries: u64) -> f64 {
        assert!(entries * 8 <= arena.size(), "the arena has fewer than {entries} entries");
        let first = arena.pointer(TABLES).cast::<AtomicU64>();
        // SAFETY: the arena has at least `entries` entries, aligned to a page. It holds no tables now, so only this
        // reference reaches them.
        let entries = unsafe { std::slice::from_raw_parts(first.as_ptr(), entries as usize) };
        for entry in entries {
            entry.store(1, Ordering::Relaxed);
        }
        let start = Moment::now();
        (self.run)(entries);
        start.elapsed() / entries.len() as f64
    }
}

/// Reads all of them, as wide as the CPU can.
fn read(entries: &[AtomicU64]) {
    // SAFETY: no thread writes them meanwhile, and an `AtomicU64` has the layout of a `u64`.
    let words = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast::<u64>(), entries.len()) };
    std::hint::black_box(words.iter().fold(0, |all, word| all | word));
}

/// Writes all of them, as wide as the CPU can.
fn write(entries: &[AtomicU64]) {
    let first = entries.as_ptr().cast_mut().cast::<u64>();
    // SAFETY: no other thread accesses them meanwhile; interior mutability allows a write behind this reference.
    unsafe { std::slice::from_raw_parts_mut(first, entries.len()) }.fill(std::hint::black_box(2));
}

/// One uncontended compare-and-exchange each.
fn compare_exchange(entries: &[AtomicU64]) {
    let failed = entries.iter().filter(|entry| {
        entry.compare_exchange(std::hint::black_box(1), 2, Ordering::AcqRel, Ordering::Acquire).is_err()
    });
    std::hint::black_box(failed.count());
}
