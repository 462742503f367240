// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's memory: real memory behind physical addresses, and a record for each frame that may become a table.
//!
//! Invariants:
//!
//! * What lies behind an arena stays mapped, readable and writable, for as long as the arena lives, and is reached by
//!   atomic or volatile accesses through its pointers alone: no Rust reference but one to an atomic word ever covers
//!   it.
//! * A frame is congruent: physical and virtual address are the same modulo 1 GiB, so that a block of the guest's can
//!   be a huge page of the host's.
//! * No physical address is the pointer it is found at (the one is below the other), so that mixing them up shows.
//! * Nothing is touched before it is known that it fits: what does not is an error, and never work for the OOM killer.
//!
//! Behind the dense memory, which has frames of its own, there may be sparse memory: one small piece of a file, mapped
//! over and over. It makes sizes beyond the machine, and is good for guests that are measured and not checked.

mod backing;
mod error;
mod mapping;
mod system;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

pub use backing::Backing;
pub use error::ArenaError;
use mapping::Mapping;
use system::System;
use twofold_stage2::{Donated, Pa, Record};

/// What an arena is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// The physical address of its first byte, a multiple of 1 GiB.
    pub base: Pa,
    /// Bytes with frames of their own. Rounded up to whole pages of the backing, and to 2 MiB.
    pub dense: u64,
    /// What these frames are made of.
    pub backing: Backing,
    /// Bytes behind them that share a few frames; 0 for none. Rounded up.
    pub sparse: u64,
    /// How many of the first bytes may become tables: these alone have records. `None`: all that is dense.
    pub tables: Option<u64>,
}

impl ArenaOptions {
    /// Dense memory from 1 GiB on, where QEMU's `virt` has its RAM, all of which may become tables.
    pub const fn new(dense: u64, backing: Backing) -> Self {
        Self { base: Pa::new(GIB), dense, backing, sparse: 0, tables: None }
    }
}

/// The machine's memory.
#[derive(Debug)]
pub struct Arena {
    base: Pa,
    dense: u64,
    memory: Mapping,
    records: Mapping,
    backing: Backing,
}

impl Arena {
    /// Maps it. Nothing of it is touched yet, but for huge pages of a pool, which nobody else can have.
    ///
    /// # Errors
    ///
    /// Each says what was needed, what there is, and what would do instead.
    pub fn new(options: &ArenaOptions) -> Result<Self, ArenaError> {
        Self::on(options, &System::this())
    }

    fn on(options: &ArenaOptions, system: &System) -> Result<Self, ArenaError> {
        let plan = Plan::of(options, system)?;
        plan.check(options, system)?;
        let mut memory = Mapping::reserve(plan.dense + plan.sparse, GIB)?;
        memory.back(plan.dense, options.backing, system)?;
        if plan.sparse > 0 {
            memory.back_sparsely(plan.dense, plan.chunk)?;
        }
        let mut records = Mapping::reserve(plan.records, FRAME)?;
        records.back(plan.records, Backing::Anonymous, system)?;
        Ok(Self { base: options.base, dense: plan.dense, memory, records, backing: options.backing })
    }

    /// The physical address of the first byte.
    pub fn base(&self) -> Pa {
        self.base
    }

    /// Bytes with frames of their own, from the base on.
    pub fn dense(&self) -> u64 {
        self.dense
    }

    /// Bytes that share frames, behind the dense ones.
    pub fn sparse(&self) -> u64 {
        self.memory.size() - self.dense
    }

    /// What the dense memory is made of.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Where the byte at `pa` is mapped; `None` where no memory is. It may be accessed until the arena is dropped, by
    /// atomic or volatile accesses.
    #[inline(always)]
    pub fn pointer(&self, pa: Pa) -> Option<NonNull<u8>> {
        let offset = pa.raw().wrapping_sub(self.base.raw());
        self.memory.at(offset)
    }

    /// The physical address of what is mapped at `address`.
    #[inline]
    pub fn pa_of(&self, address: usize) -> Option<Pa> {
        Some(self.base + self.memory.offset_of(address)?)
    }

    /// Where the arena is mapped, first address and end.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let start = self.memory.at(0).map_or(0, |start| start.addr().get());
        start..start + self.memory.size() as usize
    }

    /// Whether other physical addresses have the same frame.
    #[inline]
    pub fn is_sparse(&self, pa: Pa) -> bool {
        let offset = pa.raw().wrapping_sub(self.base.raw());
        offset >= self.dense && offset < self.memory.size()
    }

    /// The record of the frame at `pa`; `None` where no table may be.
    #[inline(always)]
    pub fn record(&self, pa: Pa) -> Option<&Record> {
        let frame = pa.raw().wrapping_sub(self.base.raw()) / FRAME;
        let record = self.records.at(frame.checked_mul(size_of::<Record>() as u64)?)?.cast::<Record>();
        // SAFETY: it lies in the records' mapping, which is a multiple of a record's size and aligned to a page. What
        // was never written there is zero, which is `Record::new()` (a test says so), and nothing else is ever kept
        // there.
        Some(unsafe { record.as_ref() })
    }

    /// The frame whose record lies at `address`.
    #[inline]
    pub fn frame_of_record(&self, address: usize) -> Option<Pa> {
        Some(self.base + self.records.offset_of(address)? / size_of::<Record>() as u64 * FRAME)
    }

    /// The dense memory, for guests and tables. A frame has one owner: call it once, or cut what it returns into parts
    /// that do not overlap. Who uses it keeps the arena alive for as long as the platform that finds it.
    pub fn donate(&self) -> Donated {
        // SAFETY: the range is mapped, readable and writable, for as long as the arena lives, and behind no reference
        // but to atomic words (the module's invariant); a platform over the arena has `pointer` to map it.
        unsafe { Donated::new(self.base, self.dense) }
    }

    /// `size` bytes of the dense memory, `offset` bytes into it, in the place of all of it; `None` where it ends before.
    pub fn donate_part(&self, offset: u64, size: u64) -> Option<Donated> {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.dense);
        // SAFETY: as in `donate`.
        fits.then(|| unsafe { Donated::new(self.base + offset, size) })
    }

    /// The sparse memory, for guests alone: a table there would be several.
    pub fn donate_sparse(&self) -> Option<Donated> {
        let start = self.base + self.dense;
        // SAFETY: as in `donate`.
        (self.sparse() > 0).then(|| unsafe { Donated::new(start, self.sparse()) })
    }

    /// The word at `pa`, a multiple of 8; `None` where there is none.
    #[inline(always)]
    pub fn word(&self, pa: Pa) -> Option<&AtomicU64> {
        let word = self.pointer(pa).filter(|_| pa.is_aligned(8))?.cast::<AtomicU64>();
        // SAFETY: inside the mapping, which ends at a multiple of 8; aligned, since the mapping is and `pa` is; and
        // behind no reference of another kind.
        Some(unsafe { word.as_ref() })
    }

    /// The `count` words from `pa` on, a multiple of 8; `None` where not all of them are there.
    pub fn words(&self, pa: Pa, count: u64) -> Option<&[AtomicU64]> {
        let first = self.pointer(pa).filter(|_| pa.is_aligned(8))?.cast::<AtomicU64>();
        let offset = pa.raw() - self.base.raw();
        count.checked_mul(8).filter(|size| *size <= self.memory.size() - offset)?;
        // SAFETY: as in `word`; the last of them is inside the mapping too.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), count as usize) })
    }

    /// Reads the word at `pa`, with acquire ordering; `None` where there is none.
    #[inline(always)]
    pub fn load(&self, pa: Pa) -> Option<u64> {
        Some(self.word(pa)?.load(Ordering::Acquire))
    }

    /// Writes the word at `pa`, with release ordering; `None` where there is none.
    #[inline(always)]
    pub fn store(&self, pa: Pa, value: u64) -> Option<()> {
        self.word(pa)?.store(value, Ordering::Release);
        Some(())
    }

    /// Makes `new` of the word at `pa` if it is `old`, with acquire and release ordering; the error is what it is
    /// instead. `None` where there is none.
    #[inline(always)]
    pub fn compare_exchange(&self, pa: Pa, old: u64, new: u64) -> Option<Result<u64, u64>> {
        Some(self.word(pa)?.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire))
    }
}

/// The sizes that come of the options, in bytes.
#[derive(Clone, Copy)]
struct Plan {
    dense: u64,
    sparse: u64,
    /// What the sparse memory is a repetition of.
    chunk: u64,
    records: u64,
    /// What of it comes from the system's free memory.
    needed: u64,
}

impl Plan {
    fn of(options: &ArenaOptions, system: &System) -> Result<Self, ArenaError> {
        if !options.base.is_aligned(GIB) || options.base.raw() == 0 {
            return Err(ArenaError::Base { base: options.base });
        }
        if options.dense == 0 {
            return Err(ArenaError::Empty);
        }
        let wide = ArenaError::TooWide { base: options.base, dense: options.dense, sparse: options.sparse };
        let most = MOST.checked_sub(options.base.raw()).ok_or(wide)?;
        if options.dense > most || options.sparse > most {
            return Err(wide);
        }
        // Half of the mappings that a process may have: the rest is for everything else in it.
        let chunk = options.sparse.div_ceil(system.most_mappings() / 2).next_power_of_two().max(MIB_2);
        let plan = Self::with(options, chunk);
        if plan.dense + plan.sparse > most { Err(wide) } else { Ok(plan) }
    }

    fn with(options: &ArenaOptions, chunk: u64) -> Self {
        let dense = options.dense.next_multiple_of(unit(options.backing));
        let sparse = options.sparse.next_multiple_of(chunk);
        let tables = options.tables.unwrap_or(dense).min(dense).div_ceil(FRAME);
        let records = (tables * size_of::<Record>() as u64).next_multiple_of(FRAME);
        let taken = if options.backing.is_from_pool() { 0 } else { dense };
        let repeated = if sparse > 0 { chunk } else { 0 };
        // The host's own tables: 8 bytes for each 4 KiB, where it maps no larger pages.
        let needed = taken + repeated + records + (dense + sparse) / 512;
        Self { dense, sparse, chunk, records, needed }
    }

    /// Before anything is touched.
    fn check(&self, options: &ArenaOptions, system: &System) -> Result<(), ArenaError> {
        if options.backing == Backing::AnonymousThp && !system.has_transparent_huge_pages() {
            return Err(ArenaError::NoTransparentHugePages { instead: Backing::Anonymous });
        }
        let free = system.available().ok_or(ArenaError::NoFigures)?;
        // A sixteenth stays for what the process needs besides.
        let usable = free - free / 16;
        if self.needed <= usable {
            return Ok(());
        }
        let fits = |units| {
            let dense = units * unit(options.backing);
            Self::with(&ArenaOptions { dense, ..*options }, self.chunk).needed <= usable
        };
        let (mut fit, mut beyond) = (0, self.dense / unit(options.backing));
        while beyond - fit > 1 {
            let middle = fit.midpoint(beyond);
            *(if fits(middle) { &mut fit } else { &mut beyond }) = middle;
        }
        Err(ArenaError::NoMemory { needed: self.needed, free, instead: fit * unit(options.backing) })
    }
}

/// What dense memory is a multiple of.
const fn unit(backing: Backing) -> u64 {
    if backing.page() > MIB_2 { backing.page() } else { MIB_2 }
}

const FRAME: u64 = 4 << 10;
const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
/// The end of what a stage-2 table can map: 48 bits of physical address.
const MOST: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::system::tests::with;
    use super::*;

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemAvailable: 1048576 kB");

    #[test]
    fn a_new_record_is_zero() {
        // SAFETY: a record is two words, each of any value.
        let words = unsafe { std::mem::transmute::<Record, [u64; 2]>(Record::new()) };
        assert_eq!(words, [0, 0]);
    }

    #[test]
    fn what_would_fit_fits() {
        let (_root, system) = with(&[MEMINFO]);
        for tables in [None, Some(MIB_2)] {
            for sparse in [0, 64 * GIB] {
                let options = ArenaOptions { sparse, tables, ..ArenaOptions::new(GIB, Backing::Anonymous) };
                let refused = Arena::on(&options, &system).unwrap_err();
                let ArenaError::NoMemory { instead, .. } = refused else { panic!("{refused}") };
                let arena = Arena::on(&ArenaOptions { dense: instead, ..options }, &system).unwrap();
                assert_eq!(arena.dense(), instead);
            }
        }
    }

    #[test]
    fn the_next_best_is_named() {
        let (_root, system) = with(&[]);
        let anonymous = ArenaOptions::new(MIB_2, Backing::Anonymous);
        assert_eq!(Arena::on(&anonymous, &system).unwrap_err(), ArenaError::NoFigures);

        let thp = "sys/kernel/mm/transparent_hugepage/enabled";
        let (_root, system) = with(&[MEMINFO, (thp, "always madvise [never]")]);
        let transparent = ArenaOptions::new(MIB_2, Backing::AnonymousThp);
        let refused = Arena::on(&transparent, &system).unwrap_err();
        assert_eq!(refused, ArenaError::NoTransparentHugePages { instead: Backing::Anonymous });
        assert_eq!(Backing::AnonymousHugetlb2M.next_best(GIB, &system), Backing::Anonymous);

        let free = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        let (_root, system) = with(&[(thp, "always [madvise] never"), (free, "512")]);
        assert_eq!(Backing::AnonymousHugetlb1G.next_best(GIB, &system), Backing::AnonymousHugetlb2M);
        assert_eq!(Backing::AnonymousHugetlb1G.next_best(GIB + 1, &system), Backing::AnonymousThp);
        assert_eq!(Backing::AnonymousHugetlb2M.next_best(GIB, &system), Backing::AnonymousThp);
    }

    #[test]
    fn sparse_memory_takes_half_of_the_mappings_at_most() {
        let (_root, system) = with(&[MEMINFO, ("proc/sys/vm/max_map_count", "1000")]);
        let options = ArenaOptions { sparse: 3000 * MIB_2, ..ArenaOptions::new(MIB_2, Backing::Anonymous) };
        let plan = Plan::of(&options, &system).unwrap();
        assert_eq!(plan.chunk, 8 * MIB_2);
        assert!(plan.sparse / plan.chunk <= 500 && plan.sparse >= options.sparse);
    }
}
