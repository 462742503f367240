// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast machine as the engine's platform. TLBIs and barriers act on the vCPUs' TLBs. Caches are coherent, so
//! cleaning does nothing, or cleans the host's caches.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{Pa, Platform, TableMetadata};

use super::FastMachine;
use super::thread::Thread;
use crate::tlbi::{Reach, Which};
use crate::walk::Format;

/// The machine, for the engine. The calling thread is the CPU that executes the instruction.
#[derive(Clone, Debug)]
pub struct FastPlatform(pub Arc<FastMachine>);

impl FastPlatform {
    /// Cleans the lines of a range in the host's caches, if the machine uses them.
    fn clean(&self, start: usize, size: u64) {
        if let Some(caches) = &self.0.caches {
            let range = start..start.saturating_add(size as usize);
            // SAFETY: the arena stays mapped as long as the machine, and starts and ends at pages.
            unsafe { caches.clean(range, self.0.arena.addresses()) };
        }
    }

    fn thread<R>(&self, body: impl FnOnce(&Thread) -> R) -> R {
        Thread::with(self.0.id, body)
    }

    /// Zeroes by atomic stores: a lockless walk that is about to retry may still read the page as a table.
    fn zero(&self, start: usize, size: u64) {
        let Some(word) = self.0.arena.pa_of(start).and_then(|pa| self.0.arena.pointer(pa)) else { return };
        let word = word.cast::<AtomicU64>();
        for index in 0..size as usize / size_of::<AtomicU64>() {
            // SAFETY: the caller promises whole blocks inside frames that the engine owns. These lie in the arena, are
            // aligned to the block size, and are reached by atomic or volatile accesses only.
            unsafe { word.add(index).as_ref() }.store(0, Ordering::Relaxed);
        }
    }
}

// SAFETY: the engine owns only frames that the arena donated. `pointer` finds them, and they stay mapped as long as the
// machine, which this type holds. The arena has metadata for each frame that may become a table. Instructions execute
// in program order. `super` argues for TLBIs and barriers; a barrier is a fence, which orders stores between threads.
unsafe impl Platform for FastPlatform {
    /// An operand that does not decode invalidates everything. The strict mode is the one that reports it.
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        let all = Reach { stage2: Some(Which::All), stage1_and_combined: true, broadcast: true, every_vmid: false };
        let reach = Reach::decode(operation, operand, &self.0.features, Format::KIB_4).unwrap_or(all);
        self.thread(|thread| {
            let vmid = (thread.vttbr() >> 48) as u16;
            thread.add_pending(self.0.invalidate(vmid, &reach, thread.cpu()));
        });
    }

    fn dsb(&self, domain: Domain) {
        self.thread(Thread::goes_on);
        if let (Some(caches), Domain::Ish | Domain::Nsh) = (&self.0.caches, domain) {
            caches.barrier();
        }
        match domain {
            Domain::IshSt | Domain::NshSt => fence(Ordering::Release),
            Domain::Nsh => fence(Ordering::SeqCst),
            Domain::Ish => match self.thread(Thread::take_pending) {
                0 => fence(Ordering::SeqCst),
                pending => self.0.complete(pending),
            },
        }
    }

    fn isb(&self) {}

    unsafe fn dc(&self, operation: Dc, address: usize) {
        match operation {
            Dc::Zva => self.zero(address, self.0.features.zero_block),
            // A line of the guest's CPU may be several lines of the host.
            Dc::Civac => {
                let line = self.0.features.data_line;
                self.clean(address & !(line as usize - 1), line);
            }
        }
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, _: u64) {
        match operation {
            Dc::Zva => self.zero(start, size),
            Dc::Civac => self.clean(start, size),
        }
    }

    fn ic(&self, _: Ic, _: usize) {}

    fn vttbr(&self) -> u64 {
        self.thread(Thread::vttbr)
    }

    fn load_vttbr(&self, value: u64) {
        self.thread(|thread| thread.load_vttbr(value));
    }

    /// For a physical address outside the arena, such as a device's, returns an address that must not be accessed.
    #[inline]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.0.arena.pointer(pa).unwrap_or(NonNull::dangling())
    }

    #[inline]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        let metadata = self.0.arena.metadata(pa);
        metadata.unwrap_or_else(|| panic!("the frame at {pa} has no metadata, so it cannot be a table"))
    }

    /// The machine's memory is freed as a whole, with the machine.
    fn abandoned(&self, _: Pa) {}

    /// Yields or sleeps: with more CPUs than the host has, the CPU that is waited for may need this one's host CPU.
    fn pause(&self, yields: u32) {
        self.thread(|thread| thread.wait(yields));
    }
}
