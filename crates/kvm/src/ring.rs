// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty rings: each vCPU has a ring of the pages that it wrote. KVM fills it, and a collector empties it.
//!
//! Invariant: a page is handed back to KVM (its entry is marked) only after it is in its slot's log, and it is clean
//! again only after a reset. A collector holds the lock, so each entry is read once.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvm_bindings::{KVM_DIRTY_LOG_PAGE_OFFSET, kvm_dirty_gfn};
use kvm_ioctls::VcpuFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bitmap::Bitmap;

/// The rings of a machine.
#[derive(Debug)]
pub(crate) struct Rings {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rings: Vec<Ring>,
    /// The pages collected since the last take, slot by slot.
    logs: Vec<Bitmap>,
}

impl Rings {
    /// Makes a list without rings, and a log for each slot's number of pages.
    pub(crate) fn new(pages: impl Iterator<Item = u64>) -> Self {
        Self { state: Mutex::new(State { rings: Vec::new(), logs: pages.map(Bitmap::new).collect() }) }
    }

    /// Adds the ring of a vCPU, which has `entries` entries.
    pub(crate) fn add(&self, vcpu: &VcpuFd, entries: u32) -> Result<(), Errno> {
        self.state().rings.push(Ring::of(vcpu, entries)?);
        Ok(())
    }

    /// Moves the rings' entries into the logs; returns their number.
    pub(crate) fn collect(&self) -> u64 {
        let state = &mut *self.state();
        let logs = &mut state.logs;
        state.rings.iter_mut().map(|ring| ring.collect(logs)).sum()
    }

    /// Takes the pages of a slot (from 0 on) that were collected since the last take; `None` if there is no such slot.
    pub(crate) fn take(&self, slot: usize) -> Option<Bitmap> {
        let mut state = self.state();
        let log = state.logs.get_mut(slot)?;
        let empty = Bitmap::new(log.pages());
        Some(std::mem::replace(log, empty))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ring of a vCPU.
#[derive(Debug)]
struct Ring {
    entries: NonNull<kvm_dirty_gfn>,
    count: u32,
    /// The next entry to read; it wraps.
    next: u32,
}

// SAFETY: this is an address and two numbers. The memory behind the address is shared with the kernel, and accessed by
// its protocol.
unsafe impl Send for Ring {}

impl Ring {
    fn of(vcpu: &VcpuFd, count: u32) -> Result<Self, Errno> {
        let offset = u64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * rustix::param::page_size() as u64;
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: this is the vCPU's own descriptor, which stays open while the vCPU is borrowed.
        let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(vcpu)) };
        // SAFETY: a new mapping, at an address of the kernel's choice, of the ring at this offset of the vCPU.
        let mapped = unsafe { mmap(ptr::null_mut(), bytes(count), read_write, MapFlags::SHARED, file, offset) }?;
        let entries = NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { entries, count, next: 0 })
    }

    fn collect(&mut self, logs: &mut [Bitmap]) -> u64 {
        let mut collected = 0;
        loop {
            // SAFETY: `count` entries are mapped.
            let entry = unsafe { self.entries.add((self.next % self.count) as usize) }.as_ptr();
            // SAFETY: the flags are inside the entry and aligned as it is. The kernel may write them now, so the access
            // is atomic.
            let flags = unsafe { AtomicU32::from_ptr(&raw mut (*entry).flags) };
            if flags.load(Ordering::Acquire) & DIRTY == 0 {
                return collected;
            }
            // SAFETY: the kernel wrote the rest of the entry before the flag, and does not change an entry that is
            // dirty.
            let (slot, page) = unsafe { ((*entry).slot, (*entry).offset) };
            // The lower half of `slot` is the slot's number; slot 0 is never logged.
            if let Some(log) = ((slot & 0xffff) as usize).checked_sub(1).and_then(|slot| logs.get_mut(slot)) {
                log.set(page);
            }
            flags.store(COLLECTED, Ordering::Release);
            self.next = self.next.wrapping_add(1);
            collected += 1;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped by `of` and belongs to this ring alone.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), bytes(self.count)) };
    }
}

const fn bytes(count: u32) -> usize {
    count as usize * size_of::<kvm_dirty_gfn>()
}

/// The kernel has written the entry.
const DIRTY: u32 = 1;
/// The entry has been read.
const COLLECTED: u32 = 2;
