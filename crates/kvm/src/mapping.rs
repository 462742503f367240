// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory in this process.
//!
//! Invariants: until it is dropped, the mapping owns its range, all of which is readable and writable. A guest may
//! write to it at any time, so this process accesses it by atomic words only, and holds no other reference to it.

use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::error::KvmError;
use crate::options::Backing;
use crate::system::System;

/// Memory of a guest.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    size: u64,
    /// All that was reserved. It is longer than the range, so that the range can be aligned.
    reserved: (NonNull<u8>, usize),
}

// SAFETY: this is an address and a size. The memory behind them is shared and accessed atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of `backing`, aligned to `alignment`; both must be multiples of the backing's page. No page is
    /// touched: the first access allocates it. Only the huge pages of a pool are reserved now.
    ///
    /// # Errors
    ///
    /// An error is returned if there are not enough such huge pages, or no address range.
    pub(crate) fn new(size: u64, alignment: u64, backing: Backing, system: &System) -> Result<Self, KvmError> {
        let mapping = Self::reserve(size, alignment)?;
        mapping.back(backing).map_err(|errno| match page(backing, system).filter(|_| backing.is_from_pool()) {
            Some(page) => {
                let free = system.free_huge_pages(page);
                KvmError::NoHugePages { backing, size: page, needed: size.div_ceil(page), free }
            }
            None => KvmError::Refused { what: "mapping the guest's memory", errno },
        })?;
        Ok(mapping)
    }

    /// Returns the address in this process, for KVM.
    pub(crate) fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the word at `offset`, which must be a multiple of 8; `None` outside of the range.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        let fits = offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.size);
        // SAFETY: the word is inside the range, which stays mapped as long as `self` lives. It is aligned, as the range
        // is, and all references to the range are to atomic words.
        fits.then(|| unsafe { self.start.add(offset as usize).cast::<AtomicU64>().as_ref() })
    }

    fn reserve(size: u64, alignment: u64) -> Result<Self, KvmError> {
        let refused = |errno| KvmError::Refused { what: "reserving addresses for the guest's memory", errno };
        let length = size.checked_add(alignment).and_then(|sum| usize::try_from(sum).ok());
        let length = length.ok_or_else(|| refused(Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), flags) };
        let mapped = NonNull::new(mapped.map_err(refused)?.cast::<u8>()).ok_or_else(|| refused(Errno::NOMEM))?;
        // SAFETY: the offset is less than `alignment`, and the mapping is `alignment` bytes longer than `size`.
        let start = unsafe { mapped.add(mapped.align_offset(alignment as usize)) };
        Ok(Self { start, size, reserved: (mapped, length) })
    }

    fn back(&self, backing: Backing) -> Result<(), Errno> {
        let huge = |flag| MapFlags::PRIVATE | MapFlags::HUGETLB | flag;
        match backing {
            Backing::Anonymous | Backing::AnonymousThp => {
                self.anonymous(MapFlags::PRIVATE | MapFlags::NORESERVE)?;
                let thp = backing == Backing::AnonymousThp;
                self.advise(if thp { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
                Ok(())
            }
            Backing::AnonymousHugetlb2Mb => self.anonymous(huge(MapFlags::HUGE_2MB)),
            Backing::AnonymousHugetlb1Gb => self.anonymous(huge(MapFlags::HUGE_1GB)),
            Backing::Shmem => self.file(MemfdFlags::CLOEXEC),
            Backing::SharedHugetlb => self.file(MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB),
        }
    }

    fn anonymous(&self, flags: MapFlags) -> Result<(), Errno> {
        let size = self.size as usize;
        // SAFETY: the range belongs to this mapping alone.
        unsafe { mmap_anonymous(self.start.as_ptr().cast(), size, READ_WRITE, flags | MapFlags::FIXED) }?;
        Ok(())
    }

    fn file(&self, flags: MemfdFlags) -> Result<(), Errno> {
        let file = memfd_create("twofold-kvm", flags)?;
        ftruncate(&file, self.size)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range belongs to this mapping alone.
        unsafe { mmap(self.start.as_ptr().cast(), self.size as usize, READ_WRITE, flags, &file, 0) }?;
        Ok(())
    }

    /// Advises the kernel. If the kernel does not take the advice, that only costs time.
    fn advise(&self, advice: Advice) {
        // SAFETY: the range belongs to this mapping alone; the advice does not change its contents.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.size as usize, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, length) = self.reserved;
        // SAFETY: the range was reserved by this mapping and belongs to it alone. A virtual machine that uses it loses
        // its pages.
        let _ = unsafe { munmap(start.as_ptr().cast(), length) };
    }
}

/// Returns the bytes of the largest page that `backing` may use; `None` if the system does not report it.
pub(crate) fn page(backing: Backing, system: &System) -> Option<u64> {
    match backing {
        Backing::Anonymous | Backing::Shmem => Some(rustix::param::page_size() as u64),
        Backing::AnonymousThp => Some(system.transparent_huge_page().unwrap_or(2 << 20)),
        Backing::AnonymousHugetlb2Mb => Some(2 << 20),
        Backing::AnonymousHugetlb1Gb => Some(1 << 30),
        Backing::SharedHugetlb => system.default_huge_page(),
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_is_aligned_zero_and_ends() {
        for backing in [Backing::Anonymous, Backing::AnonymousThp, Backing::Shmem] {
            let mapping = Mapping::new(4 << 20, 2 << 20, backing, &System::this()).unwrap();
            assert!(mapping.address().is_multiple_of(2 << 20));
            let last = mapping.word((4 << 20) - 8).unwrap();
            assert_eq!(last.swap(7, Ordering::Relaxed), 0);
            assert!(mapping.word(4 << 20).is_none() && mapping.word(u64::MAX - 7).is_none());
            assert!(mapping.word(4).is_none());
        }
    }

    #[test]
    fn huge_pages_that_are_not_there_are_named() {
        let system = System::this();
        let free = system.free_huge_pages(1 << 30);
        let needed = free + 64;
        let refused = Mapping::new(needed << 30, 1 << 30, Backing::AnonymousHugetlb1Gb, &system).unwrap_err();
        let expected = KvmError::NoHugePages { backing: Backing::AnonymousHugetlb1Gb, size: 1 << 30, needed, free };
        assert_eq!(refused, expected);
    }
}
