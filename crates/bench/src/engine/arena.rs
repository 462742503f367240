// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real memory for tables, and the tables' metadata (`TableMetadata`).
//!
//! Invariant: only the engine's atomic accesses and the platform's zeroing reach the memory behind an arena. No other
//! Rust reference does, and the memory is never unmapped.

use std::ptr::{self, NonNull};

use anyhow::Context;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use twofold_stage2::{Pa, TableMetadata};

/// The physical address of an arena's first byte.
pub const TABLES: Pa = Pa::new(0x4000_0000);

/// The memory for tables.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    /// Where physical address 0 would be. A physical address is added to it, as with a kernel's linear map.
    linear: *mut u8,
    /// Where the metadata of frame 0 would be.
    metadata: *const Line,
    size: u64,
}

// SAFETY: this is an address. Any thread may access the memory behind it, by the invariant above.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Table metadata in a cache line of its own, so that CPUs that lock neighbouring tables do not share a line.
#[derive(Debug)]
#[repr(align(64))]
struct Line(TableMetadata);

impl Arena {
    /// Maps at least `size` bytes and touches all of them.
    pub fn map(size: u64) -> anyhow::Result<Self> {
        let size = size.next_multiple_of(HUGE);
        let tables = map(size)?;
        let frames = size / FRAME;
        let metadata = map(frames * size_of::<Line>() as u64)?.cast::<Line>();
        for frame in 0..frames as usize {
            // SAFETY: inside the mapping, whose alignment is more than a line and which nothing else uses.
            unsafe { metadata.add(frame).write(Line(TableMetadata::new())) };
        }
        let linear = tables.wrapping_sub(TABLES.raw() as usize);
        let metadata = metadata.wrapping_sub((TABLES.raw() / FRAME) as usize).cast_const();
        Ok(Self { linear, metadata, size })
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns where `pa` is mapped. Outside the arena the address must not be accessed.
    #[inline(always)]
    pub fn pointer(&self, pa: Pa) -> NonNull<u8> {
        // SAFETY: `linear` is above 0 (see `map`), and it and a physical address are below 2^48, so their sum is not 0.
        unsafe { NonNull::new_unchecked(self.linear.wrapping_add(pa.raw() as usize)) }
    }

    /// Returns the pointer to the byte that is mapped at `address`.
    #[inline(always)]
    pub fn at(&self, address: usize) -> *mut u8 {
        self.linear.with_addr(address)
    }

    /// Returns the metadata of a frame.
    ///
    /// # Safety
    ///
    /// The frame must be in the arena.
    #[inline(always)]
    pub unsafe fn metadata(&self, pa: Pa) -> &TableMetadata {
        // SAFETY: each frame of the arena has its metadata, which is never unmapped.
        unsafe { &(*self.metadata.wrapping_add((pa.raw() / FRAME) as usize)).0 }
    }
}

/// Maps at least `size` bytes and touches all of them. They are in huge pages if the system has them, because memory at
/// EL2 is mapped so.
fn map(size: u64) -> anyhow::Result<*mut u8> {
    let size = size.next_multiple_of(HUGE);
    let length = usize::try_from(size + HUGE)?;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapped =
        unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let mapped = mapped.with_context(|| format!("no {} MiB of memory for tables", size >> 20))?.cast::<u8>();
    // SAFETY: the offset is less than `HUGE`, and the mapping is `HUGE` bytes longer than `size`.
    let start = unsafe { mapped.add(mapped.align_offset(HUGE as usize)) };
    // SAFETY: inside the mapping, which nothing else uses. Advice that the kernel does not take costs only time.
    let _ = unsafe { madvise(start.cast(), size as usize, Advice::LinuxHugepage) };
    // SAFETY: as above.
    unsafe { start.write_bytes(0, size as usize) };
    anyhow::ensure!(start.addr() as u64 > TABLES.raw(), "memory was mapped at an unusually low address");
    Ok(start)
}

/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// Bytes of a frame.
const FRAME: u64 = 4 << 10;
