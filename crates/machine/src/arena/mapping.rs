// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A range of the process's addresses, and the memory behind it.
//!
//! Invariant: from `reserve` until it is dropped, the mapping owns the range alone. The parts passed to `back` and
//! `back_sparsely` are readable and writable.

use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::backing::Backing;
use super::error::ArenaError;
use super::system::System;

/// A range of addresses of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    size: u64,
    /// All reserved addresses: more than the range, so that a part of them is aligned.
    reserved: (NonNull<u8>, usize),
    /// The file behind the range from its first byte on, if it is one file's memory.
    file: Option<OwnedFd>,
}

// SAFETY: the type is an address and a size. The memory there is shared, and callers access it atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Reserves addresses for `size` bytes, aligned to `alignment`. They may not be accessed yet.
    pub(super) fn reserve(size: u64, alignment: u64) -> Result<Self, ArenaError> {
        let refused = |errno| ArenaError::Refused { what: "reserve addresses", size, errno };
        let length = usize::try_from(size + alignment).map_err(|_| refused(Errno::NOMEM))?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let mapped = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let mapped = NonNull::new(mapped.map_err(refused)?.cast::<u8>()).ok_or_else(|| refused(Errno::NOMEM))?;
        // SAFETY: the offset is less than `alignment`, and the mapping is `size + alignment` bytes long.
        let start = unsafe { mapped.add(mapped.align_offset(alignment as usize)) };
        Ok(Self { start, size, reserved: (mapped, length), file: None })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The file behind the range: the byte at an offset of the range is at the same offset of the file.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// The byte at `offset`.
    #[inline(always)]
    pub(super) fn at(&self, offset: u64) -> Option<NonNull<u8>> {
        // SAFETY: inside the range.
        (offset < self.size).then(|| unsafe { self.start.add(offset as usize) })
    }

    /// The offset of `address` in the range; `None` outside.
    #[inline]
    pub(super) fn offset_of(&self, address: usize) -> Option<u64> {
        let offset = (address as u64).wrapping_sub(self.start.addr().get() as u64);
        (offset < self.size).then_some(offset)
    }

    /// Puts memory behind the first `size` bytes.
    pub(super) fn back(&mut self, size: u64, backing: Backing, system: &System) -> Result<(), ArenaError> {
        let private = MapFlags::PRIVATE | MapFlags::FIXED;
        let refused = |errno| ArenaError::Refused { what: "map memory", size, errno };
        match backing {
            Backing::Anonymous | Backing::AnonymousThp => {
                self.map_anonymous(size, private | MapFlags::NORESERVE).map_err(refused)?;
                let huge = backing == Backing::AnonymousThp;
                self.advise(0, size, if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
            }
            Backing::AnonymousHugetlb2M | Backing::AnonymousHugetlb1G => {
                let page = backing.page();
                let flag = if backing == Backing::AnonymousHugetlb2M { MapFlags::HUGE_2MB } else { MapFlags::HUGE_1GB };
                // The kernel reserves the pages here, or refuses. It may still fail to provide one: the page is another
                // NUMA node's, or beyond a control group's limit. Populating now reports that here, and not by a SIGBUS
                // when a guest touches the page.
                let mapped = self.map_anonymous(size, private | MapFlags::HUGETLB | flag);
                mapped.and_then(|()| self.populate(size)).map_err(|_| ArenaError::NoHugePages {
                    size: page,
                    needed: size / page,
                    free: system.free_huge_pages(page),
                    instead: backing.next_best(size, system),
                })?;
            }
            Backing::Shmem => {
                self.file = Some(self.map_file(0..size, size).map_err(refused)?);
                self.advise(0, size, Advice::LinuxNoHugepage);
            }
        }
        Ok(())
    }

    /// Puts the same `chunk` bytes of memory behind each `chunk` bytes of the range from `offset` on.
    pub(super) fn back_sparsely(&mut self, offset: u64, chunk: u64) -> Result<(), ArenaError> {
        let size = self.size - offset;
        self.map_file(offset..self.size, chunk).map_err(|errno| ArenaError::Refused {
            what: "map memory",
            size,
            errno,
        })?;
        // Huge pages, if the host has them, need fewer page tables of the host.
        self.advise(offset, size, Advice::LinuxHugepage);
        Ok(())
    }

    fn map_anonymous(&mut self, size: u64, flags: MapFlags) -> Result<(), Errno> {
        let size = self.inside(0, size)?;
        // SAFETY: inside the range, which this mapping owns.
        unsafe { mmap_anonymous(self.start.as_ptr().cast(), size, READ_WRITE, flags) }?;
        Ok(())
    }

    /// Maps a new file of `chunk` bytes behind a part of the range, repeatedly until the part is covered.
    fn map_file(&mut self, part: Range<u64>, chunk: u64) -> Result<OwnedFd, Errno> {
        let file = memfd_create("twofold-machine", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, chunk)?;
        let mut offset = part.start;
        while offset < part.end {
            let size = self.inside(offset, chunk)?;
            // SAFETY: `inside` has just checked the range.
            let start = unsafe { self.start.add(offset as usize) };
            // SAFETY: inside the range, which this mapping owns.
            unsafe { mmap(start.as_ptr().cast(), size, READ_WRITE, MapFlags::SHARED | MapFlags::FIXED, &file, 0) }?;
            offset += chunk;
        }
        Ok(file)
    }

    /// Populates every page now. A kernel before 5.14 cannot do so, and populates each page at its first access.
    fn populate(&mut self, size: u64) -> Result<(), Errno> {
        let size = self.inside(0, size)?;
        // SAFETY: inside the range, which this mapping owns. The call changes no content.
        match unsafe { madvise(self.start.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    /// Advice that the host does not take only costs time.
    fn advise(&mut self, offset: u64, size: u64, advice: Advice) {
        let Ok(size) = self.inside(offset, size) else { return };
        // SAFETY: `inside` has checked the range; the advice changes no content.
        let _ = unsafe { madvise(self.start.add(offset as usize).as_ptr().cast(), size, advice) };
    }

    /// Returns `size` if the `size` bytes from `offset` on are inside the range.
    fn inside(&self, offset: u64, size: u64) -> Result<usize, Errno> {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        if fits { Ok(size as usize) } else { Err(Errno::INVAL) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, length) = self.reserved;
        // SAFETY: this mapping reserved the range and owns it. Pointers into it are documented as valid until it is
        // dropped.
        let _ = unsafe { munmap(start.as_ptr().cast(), length) };
    }
}
