// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The architecture's instructions, one a call, and the way from a frame to a pointer.
//!
//! The engine encodes every operand and orders every sequence; a platform only executes. So the same
//! sequence runs on a CPU (module `arm64`) and on anything that decodes the operands.

use core::ptr::NonNull;

use crate::lines::each_line;
use crate::{Pa, Record};

/// Executes instructions, and says where frames are.
///
/// # Safety
///
/// For each frame that the engine is given (a [`Donated`](crate::Donated) range), [`pointer`](Self::pointer)
/// returns where it is mapped, readable and writable, for as long as the platform lives, and no Rust
/// reference or object of another kind ever covers that memory; [`record`](Self::record) returns a record that belongs
/// to this frame alone. On a CPU the instructions are executed as
/// asked for, in program order.
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
    /// The line, or for [`Dc::Zva`] the block, lies in a frame that the engine was given, or for [`Dc::Civac`] in a
    /// [`Window`](crate::Window); and for [`Dc::Zva`] nothing in it is needed any more.
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

    /// `IC operation, address`. The address is 0 where the operation takes none.
    fn ic(&self, operation: Ic, address: usize);

    /// `MRS VTTBR_EL2`.
    fn vttbr(&self) -> u64;

    /// `MSR VTTBR_EL2`. The engine calls it around a flush for a guest that is not loaded, and restores what it found;
    /// entering a guest is its user's.
    fn load_vttbr(&self, value: u64);

    /// Where the byte at `pa` is mapped.
    fn pointer(&self, pa: Pa) -> NonNull<u8>;

    /// The record of the frame at `pa`, which is or was a table: each frame that is given as a table has one of its own,
    /// for as long as the platform lives.
    ///
    /// Several CPUs lock the records of their tables all the time. Where few frames are tables and are known to be,
    /// records that lie a cache line apart keep them out of each other's way.
    fn record(&self, pa: Pa) -> &Record;

    /// Waits for another CPU, for about so many `YIELD`s, before the engine looks again.
    #[inline]
    fn pause(&self, yields: u32) {
        for _ in 0..yields {
            core::hint::spin_loop();
        }
    }

    /// The tables of the root at `root` are dropped, and were not [destroyed](crate::Stage2::destroy): their pages are
    /// lost. With debug assertions this panics, unless the platform has it otherwise: where all memory goes with the
    /// platform, nothing is lost.
    fn abandoned(&self, root: Pa) {
        debug_assert!(false, "the tables at {root} are dropped and were not destroyed: their pages are lost");
    }

    /// An atomic read-modify-write of an entry or a record is done: for those who count them.
    #[inline(always)]
    fn on_atomic(&self) {}
}

/// TLB invalidations of the EL1&0 translation regime (Arm ARM D8.16). `Is`: on all CPUs of the inner
/// shareable domain; the others: on this CPU only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tlbi {
    /// Stage 2 entries by IPA.
    Ipas2E1,
    /// Stage 2 entries by IPA.
    Ipas2E1Is,
    /// Stage 2 entries by IPA, of the last level only.
    Ipas2Le1Is,
    /// Stage 2 entries by range of IPA (FEAT_TLBIRANGE).
    Ripas2E1Is,
    /// Stage 2 entries by range of IPA, of the last level only (FEAT_TLBIRANGE).
    Ripas2Le1Is,
    /// Stage 1 and combined entries of the current VMID.
    VmallE1,
    /// Stage 1 and combined entries of the current VMID.
    VmallE1Is,
    /// Stage 1, stage 2 and combined entries of the current VMID.
    VmallS12E1Is,
}

/// The domain and kind of a data synchronization barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Inner shareable, stores only.
    IshSt,
    /// Inner shareable.
    Ish,
    /// This CPU, stores only.
    NshSt,
    /// This CPU.
    Nsh,
}

/// Data cache operations by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dc {
    /// Clean and invalidate a line to the point of coherency.
    Civac,
    /// Zero a block.
    Zva,
}

/// Instruction cache operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ic {
    /// Invalidate a line to the point of unification.
    Ivau,
    /// Invalidate all, on all CPUs of the inner shareable domain.
    IallUis,
}
