// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real memory for tables, and their records.
//!
//! Invariant: what lies behind an arena is reached by the engine's atomic accesses and by the platform's zeroing
//! alone, never by a Rust reference of another kind, and it is never unmapped.

use std::ptr::{self, NonNull};

use anyhow::Context;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use twofold_stage2::{Pa, Record};

/// The physical address of an arena's first byte.
pub const TABLES: Pa = Pa::new(0x4000_0000);

/// Where the tables are.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    /// Where physical address 0 would be: a physical address is added to it, as with a kernel's linear map.
    linear: *mut u8,
    /// Where the record of frame 0 would be.
    records: *const Line,
    size: u64,
}

// SAFETY: it is an address; what is there may be accessed by any thread, as the invariant says.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// A record in a cache line of its own: CPUs that lock tables side by side do not meet.
#[derive(Debug)]
#[repr(align(64))]
struct Line(Record);

impl Arena {
    /// Maps at least `size` bytes and touches all of them.
    pub fn map(size: u64) -> anyhow::Result<Self> {
        let size = size.next_multiple_of(HUGE);
        let tables = map(size)?;
        let frames = size / FRAME;
        let records = map(frames * size_of::<Line>() as u64)?.cast::<Line>();
        for frame in 0..frames as usize {
            // SAFETY: inside the mapping, which is aligned to more than a line and which nothing else uses.
            unsafe { records.add(frame).write(Line(Record::new())) };
        }
        let linear = tables.wrapping_sub(TABLES.raw() as usize);
        let records = records.wrapping_sub((TABLES.raw() / FRAME) as usize).cast_const();
        Ok(Self { linear, records, size })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where `pa` is mapped; for what is not in the arena an address that may not be accessed.
    #[inline(always)]
    pub fn pointer(&self, pa: Pa) -> NonNull<u8> {
        // SAFETY: `linear` is above 0 (see `map`) and both it and a physical address are below 2^48, so their sum is
        // not 0.
        unsafe { NonNull::new_unchecked(self.linear.wrapping_add(pa.raw() as usize)) }
    }

    /// The pointer to what is mapped at `address`.
    #[inline(always)]
    pub fn at(&self, address: usize) -> *mut u8 {
        self.linear.with_addr(address)
    }

    /// The record of a frame.
    ///
    /// # Safety
    ///
    /// The frame is in the arena.
    #[inline(always)]
    pub unsafe fn record(&self, pa: Pa) -> &Record {
        // SAFETY: there is a record for each frame of the arena, for ever.
        unsafe { &(*self.records.wrapping_add((pa.raw() / FRAME) as usize)).0 }
    }
}

/// Maps at least `size` bytes and touches all of them; in huge pages where the system has them, as memory at EL2 is
/// mapped.
fn map(size: u64) -> anyhow::Result<*mut u8> {
    let size = size.next_multiple_of(HUGE);
    let length = usize::try_from(size + HUGE)?;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapped =
        unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let mapped = mapped.with_context(|| format!("no {} MiB of memory for tables", size >> 20))?.cast::<u8>();
    // SAFETY: less than `HUGE` bytes on, of which there are that many more than `size`.
    let start = unsafe { mapped.add(mapped.align_offset(HUGE as usize)) };
    // SAFETY: inside the mapping, which nothing else uses. Advice that is not taken costs time alone.
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
