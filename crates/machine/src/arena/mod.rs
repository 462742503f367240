// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's memory: host memory behind physical addresses, and metadata for each frame that may become a table.
//!
//! Invariants:
//!
//! * The memory of an arena stays mapped, readable and writable, as long as the arena lives. It is reached only by
//!   atomic or volatile accesses through the arena's pointers. The only Rust references to it are to atomic words.
//! * A frame is congruent: its physical and its virtual address are the same modulo 1 GiB. So a block of the guest can
//!   be a huge page of the host.
//! * No physical address equals the pointer to it (physical addresses are lower), so code that confuses them fails.
//! * No memory is touched before the arena is known to fit. A size that does not fit is an error, and never leads to
//!   the OOM killer.
//!
//! Dense memory has frames of its own. Sparse memory may follow it: one small file, mapped repeatedly. Sparse memory
//! allows guests larger than the host, whose content is not checked.

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
use twofold_stage2::{Donated, Pa, TableMetadata};

/// The size and kind of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// The physical address of its first byte, a multiple of 1 GiB.
    pub base: Pa,
    /// Bytes that have frames of their own. Rounded up to whole pages of the backing, and to 2 MiB.
    pub dense: u64,
    /// The kind of memory behind these frames.
    pub backing: Backing,
    /// Bytes of sparse memory behind the dense memory, which share a few frames; 0 for none. Rounded up.
    pub sparse: u64,
    /// The number of bytes, from the first on, that may become tables. Only these have metadata. `None`: all dense
    /// memory.
    pub tables: Option<u64>,
}

impl ArenaOptions {
    /// Dense memory from 1 GiB on, as the RAM of QEMU's `virt`. All of it may become tables.
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
    metadata: Mapping,
    backing: Backing,
}

impl Arena {
    /// Maps the memory. No page is touched yet, except for huge pages of a pool, which the arena takes at once.
    ///
    /// # Errors
    ///
    /// Each error states what the arena needs, what the host has, and what would work instead.
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
        let mut metadata = Mapping::reserve(plan.metadata, FRAME)?;
        metadata.back(plan.metadata, Backing::Anonymous, system)?;
        Ok(Self { base: options.base, dense: plan.dense, memory, metadata, backing: options.backing })
    }

    /// The physical address of the first byte.
    pub fn base(&self) -> Pa {
        self.base
    }

    /// Bytes with frames of their own, from the base on.
    pub fn dense(&self) -> u64 {
        self.dense
    }

    /// Bytes of sparse memory, which share frames, behind the dense memory.
    pub fn sparse(&self) -> u64 {
        self.memory.size() - self.dense
    }

    /// The kind of memory behind the dense frames.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The host's address of the byte at `pa`; `None` where no memory is. It may be accessed until the arena is
    /// dropped, only by atomic or volatile accesses.
    #[inline(always)]
    pub fn pointer(&self, pa: Pa) -> Option<NonNull<u8>> {
        let offset = pa.raw().wrapping_sub(self.base.raw());
        self.memory.at(offset)
    }

    /// The physical address of the byte that is mapped at `address`.
    #[inline]
    pub fn pa_of(&self, address: usize) -> Option<Pa> {
        Some(self.base + self.memory.offset_of(address)?)
    }

    /// The host's addresses of the arena.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let start = self.memory.at(0).map_or(0, |start| start.addr().get());
        start..start + self.memory.size() as usize
    }

    /// Whether other physical addresses share this frame.
    #[inline]
    pub fn is_sparse(&self, pa: Pa) -> bool {
        let offset = pa.raw().wrapping_sub(self.base.raw());
        offset >= self.dense && offset < self.memory.size()
    }

    /// The metadata of the frame at `pa`; `None` if the frame cannot become a table.
    #[inline(always)]
    pub fn metadata(&self, pa: Pa) -> Option<&TableMetadata> {
        let frame = pa.raw().wrapping_sub(self.base.raw()) / FRAME;
        let metadata = self.metadata.at(frame.checked_mul(size_of::<TableMetadata>() as u64)?)?.cast::<TableMetadata>();
        // SAFETY: the metadata lies in the mapping for metadata, which is a multiple of its size and aligned to a
        // page. Unwritten memory there is zero, which equals `TableMetadata::new()` (the test `new_metadata_is_zero`). The
        // mapping holds nothing but metadata.
        Some(unsafe { metadata.as_ref() })
    }

    /// The frame whose metadata is at `address`.
    #[inline]
    pub fn frame_of_metadata(&self, address: usize) -> Option<Pa> {
        Some(self.base + self.metadata.offset_of(address)? / size_of::<TableMetadata>() as u64 * FRAME)
    }

    /// The dense memory, for guests and tables. A frame has one owner: the caller calls this once, or cuts the result
    /// into parts that do not overlap. The caller keeps the arena alive as long as the platform that maps it.
    pub fn donate(&self) -> Donated {
        // SAFETY: the range is mapped, readable and writable, as long as the arena lives, and the only references to it
        // are to atomic words (the module's invariants). A platform over the arena maps it by `pointer`.
        unsafe { Donated::new(self.base, self.dense) }
    }

    /// A part of the dense memory: `size` bytes from `offset` on. To be used instead of [`donate`](Self::donate).
    /// `None` where the part does not fit.
    pub fn donate_part(&self, offset: u64, size: u64) -> Option<Donated> {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.dense);
        // SAFETY: as in `donate`.
        fits.then(|| unsafe { Donated::new(self.base + offset, size) })
    }

    /// The sparse memory, for guests only: a table there would appear at several addresses.
    pub fn donate_sparse(&self) -> Option<Donated> {
        let start = self.base + self.dense;
        // SAFETY: as in `donate`.
        (self.sparse() > 0).then(|| unsafe { Donated::new(start, self.sparse()) })
    }

    /// The word at `pa`, a multiple of 8; `None` where there is none.
    #[inline(always)]
    pub fn word(&self, pa: Pa) -> Option<&AtomicU64> {
        let word = self.pointer(pa).filter(|_| pa.is_aligned(8))?.cast::<AtomicU64>();
        // SAFETY: the word is inside the mapping, which ends at a multiple of 8. It is aligned, since the mapping and
        // `pa` are. The only references to it are to atomic words.
        Some(unsafe { word.as_ref() })
    }

    /// The `count` words from `pa` on, which is a multiple of 8; `None` unless all of them are in the arena.
    pub fn words(&self, pa: Pa, count: u64) -> Option<&[AtomicU64]> {
        let first = self.pointer(pa).filter(|_| pa.is_aligned(8))?.cast::<AtomicU64>();
        let offset = pa.raw() - self.base.raw();
        count.checked_mul(8).filter(|size| *size <= self.memory.size() - offset)?;
        // SAFETY: as in `word`; the last word is inside the mapping too.
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

    /// Replaces the word at `pa` by `new` if it is `old`, with acquire and release ordering. The inner error is the
    /// word's actual value. `None` where there is no word.
    #[inline(always)]
    pub fn compare_exchange(&self, pa: Pa, old: u64, new: u64) -> Option<Result<u64, u64>> {
        Some(self.word(pa)?.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire))
    }
}

/// The sizes that the options lead to, in bytes.
#[derive(Clone, Copy)]
struct Plan {
    dense: u64,
    sparse: u64,
    /// The size of the file that the sparse memory repeats.
    chunk: u64,
    metadata: u64,
    /// Bytes that come from the host's free memory.
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
        // At most half of the mappings that a process may have; the rest of the process needs some too.
        let chunk = options.sparse.div_ceil(system.most_mappings() / 2).next_power_of_two().max(MIB_2);
        let plan = Self::with(options, chunk);
        if plan.dense + plan.sparse > most { Err(wide) } else { Ok(plan) }
    }

    fn with(options: &ArenaOptions, chunk: u64) -> Self {
        let dense = options.dense.next_multiple_of(unit(options.backing));
        let sparse = options.sparse.next_multiple_of(chunk);
        let tables = options.tables.unwrap_or(dense).min(dense).div_ceil(FRAME);
        let metadata = (tables * size_of::<TableMetadata>() as u64).next_multiple_of(FRAME);
        let taken = if options.backing.is_from_pool() { 0 } else { dense };
        let repeated = if sparse > 0 { chunk } else { 0 };
        // The host's own page tables: 8 bytes for each 4 KiB, if the host maps no larger pages.
        let needed = taken + repeated + metadata + (dense + sparse) / 512;
        Self { dense, sparse, chunk, metadata, needed }
    }

    /// Checks that the memory fits, before any of it is touched.
    fn check(&self, options: &ArenaOptions, system: &System) -> Result<(), ArenaError> {
        if options.backing == Backing::AnonymousThp && !system.has_transparent_huge_pages() {
            return Err(ArenaError::NoTransparentHugePages { instead: Backing::Anonymous });
        }
        let free = system.available().ok_or(ArenaError::NoFigures)?;
        // A sixteenth stays free for the rest of the process.
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

/// The size that dense memory is a multiple of.
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
    fn new_metadata_is_zero() {
        // SAFETY: the metadata is two words, and every value of them is valid.
        let words = unsafe { std::mem::transmute::<TableMetadata, [u64; 2]>(TableMetadata::new()) };
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
