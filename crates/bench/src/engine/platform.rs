// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU on which TLB invalidations, barriers and cache operations cost nothing.
//!
//! What is left is what the engine itself takes. Invariant: a platform that counts and one that does not run the same
//! engine; figures in nanoseconds come from the latter only.

use std::cell::Cell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Features, Pa, Record};

use super::arena::Arena;
use crate::features::TODAY;

/// A CPU of today, with the engine's own way to zero.
pub const FEATURES: Features = Features { zero_block: ZERO_BLOCK as u64, ..TODAY };

/// The same CPU without FEAT_S2FWB.
pub const NOT_FORCED: Features = Features { forced_write_back: false, ..FEATURES };

/// Bytes that `DC ZVA` zeroes.
const ZERO_BLOCK: usize = 64;

/// The CPU, and with `COUNT` what it was told to do.
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
    /// Forgets everything.
    pub fn reset(&self) {
        for counter in [&self.tlbi, &self.dsb, &self.lines_cleaned, &self.atomics] {
            counter.set(0);
        }
    }
}

impl<const COUNT: bool> Free<COUNT> {
    /// A CPU with this memory.
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

// SAFETY: the engine is given frames of the arena alone as tables, and `pointer` says where they are; guest frames are
// outside of it and the engine does not access them. Nothing has to be executed: there is one thread, and no table is
// ever walked by a CPU.
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
            // SAFETY: the caller promises that the block is in a frame of the arena, and not needed.
            Dc::Zva => unsafe { self.arena.at(address).write_bytes(0, ZERO_BLOCK) },
        }
    }

    /// At once: a loop that does nothing takes its time too.
    #[inline(always)]
    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        match operation {
            // Not even a look at the line's size.
            Dc::Civac if COUNT => Self::count(&self.counts.lines_cleaned, size / line),
            Dc::Civac => {}
            // SAFETY: the caller promises that the blocks are in a frame of the arena, and not needed.
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

    /// All memory goes with the machine.
    fn abandoned(&self, _: Pa) {}

    #[inline(always)]
    fn record(&self, pa: Pa) -> &Record {
        // SAFETY: the engine asks for those of tables only, which are in the arena.
        unsafe { self.arena.record(pa) }
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
    /// Written before there are threads, and never by an engine whose guest is loaded.
    vttbr: AtomicU64,
}

impl Shared {
    /// CPUs with this memory.
    pub fn new(arena: Arena) -> Self {
        Self { arena, vttbr: AtomicU64::new(0) }
    }

    /// By atomic stores: a thread that came too late may still read what was a table.
    #[inline(always)]
    fn zero(&self, address: usize, size: usize) {
        let first = self.arena.at(address).cast::<AtomicU64>();
        for index in 0..size / size_of::<AtomicU64>() {
            // SAFETY: the callers were promised a block of a frame in the arena, aligned to its size, which is
            // accessed atomically alone.
            unsafe { &*first.add(index) }.store(0, Ordering::Relaxed);
        }
    }
}

// SAFETY: as for `Free`, but for the threads: they share memory, and no table is ever walked by a CPU, so what they see
// of each other is what the language's atomics say.
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

    /// All memory goes with the machine.
    fn abandoned(&self, _: Pa) {}

    #[inline(always)]
    fn record(&self, pa: Pa) -> &Record {
        // SAFETY: the engine asks for those of tables only, which are in the arena.
        unsafe { self.arena.record(pa) }
    }
}
