// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's memory, by physical address.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::BorrowedFd;
use twofold_stage2::{Donated, Pa, TableMetadata};

use super::backing::{Backing, FRAME, GIB};
use super::error::ArenaError;
use super::mapping::Mapping;
use super::plan::{ArenaOptions, Plan};
use super::system::System;

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

    /// The file behind the dense memory of a [`Backing::Shmem`] arena, for another process: the byte at `pa` is at
    /// the offset `pa - base`. Other kinds of memory have no file.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
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

#[cfg(test)]
mod tests {
    use super::super::backing::MIB_2;
    use super::super::system::tests::with;
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
