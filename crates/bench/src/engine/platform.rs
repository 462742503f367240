// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU on which TLB invalidations, barriers and cache operations cost nothing.
//!
//! The rest is the engine's own time. Invariant: a platform that counts and one that does not run the same engine;
//! figures in nanoseconds come only from the one that does not count.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Features, Pa, TableMetadata};

use super::arena::Arena;
use crate::features::TODAY;

/// A CPU of today, with every granule and the engine's own way of zeroing.
pub const FEATURES: Features = TODAY.with_granule_16k(true).with_zero_block(ZERO_BLOCK as u64);

/// The same CPU without FEAT_S2FWB.
pub const NOT_FORCED: Features = FEATURES.with_forced_write_back(false);

/// Bytes that `DC ZVA` zeroes.
const ZERO_BLOCK: usize = 64;

/// The CPU. With `COUNT` it counts the instructions that it is given.
#[derive(Clone, Debug)]
pub struct Free<const COUNT: bool> {
    arena: Arena,
    vttbr: Cell<u64>,
    counts: Rc<Counts>,
}

/// How often each kind of instruction was executed.
#[derive(Debug, Default)]
pub struct Counts {
    /// TLB invalidations of any kind.
    pub tlbi: Cell<u64>,
    /// Data synchronization barriers.
    pub dsb: Cell<u64>,
    /// Lines cleaned to the point of coherency.
    pub lines_cleaned: Cell<u64>,
    /// Atomic read-modify-writes.
    pub atomics: Cell<u64>,
}

impl Counts {
    /// Sets every count to 0.
    pub fn reset(&self) {
        for counter in [&self.tlbi, &self.dsb, &self.lines_cleaned, &self.atomics] {
            counter.set(0);
        }
    }
}

impl<const COUNT: bool> Free<COUNT> {
    /// Makes a CPU with this memory.
    pub fn new(arena: Arena, counts: Rc<Counts>) -> Self {
        Self { arena, vttbr: Cell::new(0), counts }
    }

    #[inline(always)]
    fn count(counter: &Cell<u64>, events: u64) {
        if COUNT {
            counter.set(counter.get() + events);
        }
    }
}

// SAFETY: the engine gets its tables from the arena alone, and `pointer` returns where they are. GuestTables frames are
// outside of the arena, and the engine does not access them. The instructions need no effect: there is one thread, and
// no CPU walks the tables.
unsafe impl<const COUNT: bool> Platform for Free<COUNT> {
    #[inline(always)]
    fn tlbi(&self, _: Tlbi, _: u64) {
        Self::count(&self.counts.tlbi, 1);
    }

    #[inline(always)]
    fn dsb(&self, _: Domain) {
        Self::count(&self.counts.dsb, 1);
    }

    #[inline(always)]
    fn isb(&self) {}

    #[inline(always)]
    unsafe fn dc(&self, operation: Dc, address: usize) {
        match operation {
            Dc::Civac => Self::count(&self.counts.lines_cleaned, 1),
            // SAFETY: the caller promises that the block is in a frame of the arena, and that its contents are not
            // needed.
            Dc::Zva => unsafe { self.arena.at(address).write_bytes(0, ZERO_BLOCK) },
        }
    }

    /// In one step, because an empty loop takes time too.
    #[inline(always)]
    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        match operation {
            // Do not even compute the number of lines.
            Dc::Civac if COUNT => Self::count(&self.counts.lines_cleaned, size / line),
            Dc::Civac => {}
            // SAFETY: the caller promises that the blocks are in a frame of the arena, and that their contents are not
            // needed.
            Dc::Zva => unsafe { self.arena.at(start).write_bytes(0, size as usize) },
        }
    }

    #[inline(always)]
    fn ic(&self, _: Ic, _: usize) {}

    #[inline(always)]
    fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    #[inline(always)]
    fn load_vttbr(&self, value: u64) {
        self.vttbr.set(value);
    }

    #[inline(always)]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.arena.pointer(pa)
    }

    /// Does nothing: the arena's memory lives until the process ends.
    fn abandoned(&self, _: Pa) {}

    #[inline(always)]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        // SAFETY: the engine asks only for the metadata of tables, which are in the arena.
        unsafe { self.arena.metadata(pa) }
    }

    #[inline(always)]
    fn on_atomic(&self) {
        Self::count(&self.counts.atomics, 1);
    }
}

/// The same CPU for several threads; it counts nothing.
#[derive(Debug)]
pub struct Shared {
    arena: Arena,
    /// Written before the threads start. An engine whose guest is loaded never writes it.
    vttbr: AtomicU64,
}

impl Shared {
    /// Makes CPUs with this memory.
    pub fn new(arena: Arena) -> Self {
        Self { arena, vttbr: AtomicU64::new(0) }
    }

    /// Zeroes by atomic stores, because a lockless walk that started earlier may still read a former table.
    #[inline(always)]
    fn zero(&self, address: usize, size: usize) {
        let first = self.arena.at(address).cast::<AtomicU64>();
        for index in 0..size / size_of::<AtomicU64>() {
            // SAFETY: the callers are promised a block in a frame of the arena, aligned to its size, and all accesses
            // to it are atomic.
            unsafe { &*first.add(index) }.store(0, Ordering::Relaxed);
        }
    }
}

// SAFETY: as for `Free`. The threads share memory, but no CPU walks the tables, so the language's atomics alone order
// what the threads see of each other.
unsafe impl Platform for Shared {
    #[inline(always)]
    fn tlbi(&self, _: Tlbi, _: u64) {}

    #[inline(always)]
    fn dsb(&self, _: Domain) {}

    #[inline(always)]
    fn isb(&self) {}

    #[inline(always)]
    unsafe fn dc(&self, operation: Dc, address: usize) {
        if operation == Dc::Zva {
            self.zero(address, ZERO_BLOCK);
        }
    }

    #[inline(always)]
    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, _: u64) {
        if operation == Dc::Zva {
            self.zero(start, size as usize);
        }
    }

    #[inline(always)]
    fn ic(&self, _: Ic, _: usize) {}

    #[inline(always)]
    fn vttbr(&self) -> u64 {
        self.vttbr.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_vttbr(&self, value: u64) {
        self.vttbr.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.arena.pointer(pa)
    }

    /// Does nothing: the arena's memory lives until the process ends.
    fn abandoned(&self, _: Pa) {}

    #[inline(always)]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        // SAFETY: the engine asks only for the metadata of tables, which are in the arena.
        unsafe { self.arena.metadata(pa) }
    }
}
