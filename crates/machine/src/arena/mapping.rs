// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A range of the process's addresses, and what the system puts behind it.
//!
//! Invariant: the range is this mapping's alone from `reserve` until it is dropped, and what `back` and `back_sparsely`
//! were asked for is readable and writable.

use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::system::System;
use super::{ArenaError, Backing};

/// A range of addresses of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    size: u64,
    /// All that was reserved: more than the range, so that a part of it is aligned.
    reserved: (NonNull<u8>, usize),
}

// SAFETY: it is an address and a size. What is there is shared memory, which callers access atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Addresses for `size` bytes, aligned to `alignment`, that may not be accessed yet.
    pub(super) fn reserve(size: u64, alignment: u64) -> Result<Self, ArenaError> {
        let refused = |errno| ArenaError::Refused { what: "reserve addresses", size, errno };
        let length = usize::try_from(size + alignment).map_err(|_| refused(Errno::NOMEM))?;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let mapped = NonNull::new(mapped.map_err(refused)?.cast::<u8>()).ok_or_else(|| refused(Errno::NOMEM))?;
        // SAFETY: less than `alignment` bytes on, of which there are that many more than `size`.
        let start = unsafe { mapped.add(mapped.align_offset(alignment as usize)) };
        Ok(Self { start, size, reserved: (mapped, length) })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The byte at `offset`.
    #[inline(always)]
    pub(super) fn at(&self, offset: u64) -> Option<NonNull<u8>> {
        // SAFETY: inside the range.
        (offset < self.size).then(|| unsafe { self.start.add(offset as usize) })
    }

    /// How far into the range `address` is.
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
                // The kernel sets the pages apart here, or refuses. What it then cannot give after all (another NUMA
                // node's, or beyond a control group's limit) it says now, and not by SIGBUS when a guest touches it.
                let mapped = self.map_anonymous(size, private | MapFlags::HUGETLB | flag);
                mapped.and_then(|()| self.populate(size)).map_err(|_| ArenaError::NoHugePages {
                    size: page,
                    needed: size / page,
                    free: system.free_huge_pages(page),
                    instead: backing.next_best(size, system),
                })?;
            }
            Backing::Shmem => {
                self.map_file(0..size, size).map_err(refused)?;
                self.advise(0, size, Advice::LinuxNoHugepage);
            }
        }
        Ok(())
    }

    /// Puts the same `chunk` bytes behind everything from `offset` on, over and over.
    pub(super) fn back_sparsely(&mut self, offset: u64, chunk: u64) -> Result<(), ArenaError> {
        let size = self.size - offset;
        self.map_file(offset..self.size, chunk).map_err(|errno| ArenaError::Refused {
            what: "map memory",
            size,
            errno,
        })?;
        // Few tables of the host's own, if it will.
        self.advise(offset, size, Advice::LinuxHugepage);
        Ok(())
    }

    fn map_anonymous(&mut self, size: u64, flags: MapFlags) -> Result<(), Errno> {
        let size = self.inside(0, size)?;
        // SAFETY: inside the range, which is this mapping's alone.
        unsafe { mmap_anonymous(self.start.as_ptr().cast(), size, READ_WRITE, flags) }?;
        Ok(())
    }

    /// Maps a new file of `chunk` bytes behind a part of the range, as often as it takes.
    fn map_file(&mut self, part: Range<u64>, chunk: u64) -> Result<(), Errno> {
        let file = memfd_create("twofold-machine", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, chunk)?;
        let mut offset = part.start;
        while offset < part.end {
            let size = self.inside(offset, chunk)?;
            // SAFETY: `inside` has just said so.
            let start = unsafe { self.start.add(offset as usize) };
            // SAFETY: inside the range, which is this mapping's alone.
            unsafe { mmap(start.as_ptr().cast(), size, READ_WRITE, MapFlags::SHARED | MapFlags::FIXED, &file, 0) }?;
            offset += chunk;
        }
        Ok(())
    }

    /// Takes every page now; a kernel before 5.14 does not know how, and takes them later.
    fn populate(&mut self, size: u64) -> Result<(), Errno> {
        let size = self.inside(0, size)?;
        // SAFETY: inside the range, which is this mapping's alone. Nothing that is there is changed.
        match unsafe { madvise(self.start.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    /// Advice that is not taken costs time alone.
    fn advise(&mut self, offset: u64, size: u64, advice: Advice) {
        let Ok(size) = self.inside(offset, size) else { return };
        // SAFETY: as `inside` says; the advice changes nothing that is there.
        let _ = unsafe { madvise(self.start.add(offset as usize).as_ptr().cast(), size, advice) };
    }

    /// `size`, if so many bytes from `offset` on are inside the range.
    fn inside(&self, offset: u64, size: u64) -> Result<usize, Errno> {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        if fits { Ok(size as usize) } else { Err(Errno::INVAL) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, length) = self.reserved;
        // SAFETY: reserved by this mapping and its alone; whoever has a pointer into it was told how long it is good.
        let _ = unsafe { munmap(start.as_ptr().cast(), length) };
    }
}
