// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The architecture's instructions, one for each call, and the pointer to each frame.
//!
//! The engine encodes every operand and orders every sequence. A platform only executes. So the same sequence runs on a
//! CPU (module `arm64`) and on any machine that decodes the operands.

use core::ptr::NonNull;

pub use crate::instructions::{Dc, Domain, Ic, Tlbi};
use crate::lines::each_line;
use crate::{Pa, TableMetadata, Vmids};

/// Executes instructions, and maps frames.
///
/// # Safety
///
/// For each frame that the engine is given (a [`Donated`](crate::Donated) range), as long as the platform lives:
///
/// * [`pointer`](Self::pointer) returns the address at which it is mapped, readable and writable;
/// * no Rust reference or object of another kind covers that memory;
/// * [`metadata`](Self::metadata) returns metadata that belongs to this frame alone.
///
/// On a CPU, each call executes its instruction, in program order.
pub unsafe trait Platform {
    /// `TLBI operation, operand`. The operand of an operation that takes none is 0.
    fn tlbi(&self, operation: Tlbi, operand: u64);

    /// `DSB domain`.
    fn dsb(&self, domain: Domain);

    /// `ISB`.
    fn isb(&self);

    /// `DC operation, address`.
    ///
    /// # Safety
    ///
    /// * [`Dc::Civac`]: the line lies in a frame that the engine was given, or in a [`Window`](crate::Window).
    /// * [`Dc::Zva`]: the block lies in a frame that the engine was given, and its content is not needed any more.
    unsafe fn dc(&self, operation: Dc, address: usize);

    /// `DC operation` for each line of `line` bytes in the `size` bytes from `start`.
    ///
    /// # Safety
    ///
    /// As [`dc`](Self::dc), for all of them.
    #[inline]
    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        // SAFETY: promised by the caller.
        each_line(start, size, line, |line| unsafe { self.dc(operation, line) });
    }

    /// `IC operation, address`. The address is 0 if the operation takes none.
    fn ic(&self, operation: Ic, address: usize);

    /// `MRS VTTBR_EL2`.
    fn vttbr(&self) -> u64;

    /// `MSR VTTBR_EL2`. To flush for a guest that is not loaded, the engine loads that guest's value, and restores the
    /// old one afterwards. To enter a guest, the embedder loads it.
    fn load_vttbr(&self, value: u64);

    /// The VMIDs that the trees of this platform share, if any do ([`Stage2::sharing_vmids`](crate::Stage2::sharing_vmids)):
    /// always the same ones. By default none.
    #[inline(always)]
    fn vmids(&self) -> Option<&Vmids<'_>> {
        None
    }

    /// The address at which the byte at `pa` is mapped.
    fn pointer(&self, pa: Pa) -> NonNull<u8>;

    /// The metadata of the frame at `pa`, which is or was a table. Each frame that is given as a table has its own
    /// metadata, for as long as the platform lives.
    ///
    /// CPUs lock different tables all the time. If the embedder knows which few frames are tables, it
    /// can lay their metadata a cache line apart, which avoids false sharing.
    fn metadata(&self, pa: Pa) -> &TableMetadata;

    /// Waits for another CPU, for about the time of `yields` `YIELD` instructions, before the engine retries.
    #[inline]
    fn pause(&self, yields: u32) {
        for _ in 0..yields {
            core::hint::spin_loop();
        }
    }

    /// Whether an interrupt is pending on this CPU, which has interrupts masked. Of this crate, only
    /// [`Lock::lock_unless_interrupted`](crate::Lock::lock_unless_interrupted) asks, and stops waiting. What is built on it may ask between
    /// two pieces of long work, as `twofold-memory` does. By default none is ever pending.
    #[inline(always)]
    fn interrupt_is_pending(&self) -> bool {
        false
    }

    /// Called when the tables of the root at `root` are dropped without being [destroyed](crate::Stage2::destroy):
    /// their pages are lost. By default this panics if debug assertions are on. A platform whose memory goes with it
    /// may do nothing.
    fn abandoned(&self, root: Pa) {
        debug_assert!(false, "the tables at {root} are dropped and were not destroyed: their pages are lost");
    }

    /// Called before each atomic read-modify-write of an entry, a lock or a count, for a platform that counts them.
    #[inline(always)]
    fn on_atomic(&self) {}

    /// Called before a maintenance pass visits `count` entries of a table, for a platform that counts them.
    #[inline(always)]
    fn on_entries(&self, count: usize) {
        let _ = count;
    }
}

#[cfg(all(test, feature = "hosted", not(loom)))]
mod tests {
    use super::*;
    use crate::hosted::Hosted;

    /// The hosted platform leaves the answer to the default.
    #[test]
    fn no_interrupt_is_pending_by_default() {
        assert!(!Hosted::new(4096).0.interrupt_is_pending());
    }
}
