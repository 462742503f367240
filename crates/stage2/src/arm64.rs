// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The platform of a real CPU. An embedder supplies only the mapping of frames ([`FrameMap`]).
//!
//! Use it at EL2 with `HCR_EL2.TGE` = 0, so that EL1&0 operations act on the guest's regime. Each `asm!` that orders or
//! changes memory is also a compiler barrier, so instructions execute in program order.

use core::arch::asm;
use core::ptr::NonNull;

use crate::lines::each_line;
use crate::platform::{Dc, Domain, Ic, Platform, Tlbi};
use crate::{Features, IdRegisters, MetadataMap, Pa, TableMetadata, Vmids};

/// Where frames are mapped.
///
/// # Safety
///
/// As for [`Platform`]:
///
/// * Each frame that the engine is given is mapped at [`pointer`](Self::pointer), readable, writable and write-back
///   cacheable, and no Rust object covers it.
/// * Each frame that is given as a table has metadata of its own.
pub unsafe trait FrameMap {
    /// Where the byte at `pa` is mapped.
    fn pointer(&self, pa: Pa) -> NonNull<u8>;

    /// The metadata of the frame at `pa`.
    fn metadata(&self, pa: Pa) -> &TableMetadata;

    /// The VMIDs that trees share, if any do ([`Platform::vmids`]). By default none.
    #[inline(always)]
    fn vmids(&self) -> Option<&Vmids<'_>> {
        None
    }
}

/// A map of frames, and VMIDs that trees share: with it, `Arm64` runs more guests than the CPU has VMIDs. It is a type of its
/// own, so that an image without it has no code for shared VMIDs.
///
/// ```
/// # use twofold_stage2::*;
/// static SLOTS: [VmidSlot; 64] = [const { VmidSlot::new() }; 64];
///
/// # fn platform(features: &Features) -> Result<(), Error> {
/// let vmids = Vmids::new(&SLOTS, features)?; // in a place that lives as long as the guests
/// # #[cfg(target_arch = "aarch64")]
/// # let on = |map: arm64::IdentityMap| {
/// let cpu = arm64::Arm64::new(arm64::SharedVmids { frames: map, vmids: &vmids });
/// # drop(cpu) };
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SharedVmids<'a, M> {
    /// The map of frames.
    pub frames: M,
    /// The VMIDs: the same ones in the platform of every tree that shares them.
    pub vmids: &'a Vmids<'a>,
}

// SAFETY: that of the map inside.
unsafe impl<M: FrameMap> FrameMap for SharedVmids<'_, M> {
    #[inline(always)]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.frames.pointer(pa)
    }

    #[inline(always)]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.frames.metadata(pa)
    }

    #[inline(always)]
    fn vmids(&self) -> Option<&Vmids<'_>> {
        Some(self.vmids)
    }
}

/// The map of an embedder that maps frames at their physical addresses.
#[derive(Clone, Copy, Debug)]
pub struct IdentityMap(MetadataMap);

impl IdentityMap {
    /// States that frames are mapped at their physical addresses, and have this metadata.
    ///
    /// # Safety
    ///
    /// * Each frame that the engine will be given is mapped at its own physical address, readable, writable and
    ///   write-back cacheable, and no Rust object covers it. So no frame is at address 0.
    /// * Only this platform uses `metadata`.
    pub const unsafe fn new(metadata: MetadataMap) -> Self {
        Self(metadata)
    }
}

// SAFETY: promised by the caller of `IdentityMap::new`.
unsafe impl FrameMap for IdentityMap {
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        let address = core::num::NonZeroUsize::new(pa.raw() as usize);
        // SAFETY: promised by the caller of `IdentityMap::new`, since nothing is ever mapped at address 0.
        NonNull::with_exposed_provenance(unsafe { address.unwrap_unchecked() })
    }

    #[inline(always)]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.0.of(pa)
    }
}

/// The platform of a CPU at EL2.
#[derive(Clone, Copy, Debug)]
pub struct Arm64<M> {
    frames: M,
}

impl<M: FrameMap> Arm64<M> {
    /// The platform of this CPU, with this map of frames.
    pub const fn new(frames: M) -> Self {
        Self { frames }
    }
}

/// Reads a system register whose reading has no effect.
macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading this register at EL2 has no effect.
        unsafe { asm!(concat!("mrs {}, ", $register), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}

/// The ID registers of this CPU.
pub fn id_registers() -> IdRegisters {
    IdRegisters {
        id_aa64mmfr0: read!("id_aa64mmfr0_el1"),
        id_aa64mmfr1: read!("id_aa64mmfr1_el1"),
        id_aa64mmfr2: read!("id_aa64mmfr2_el1"),
        id_aa64isar0: read!("id_aa64isar0_el1"),
        ctr: read!("ctr_el0"),
        dczid: read!("dczid_el0"),
    }
}

/// The features of this CPU. Tables that several CPUs use take what all of them [have in common](Features::common).
///
/// While stage 1 of EL2 is off (`SCTLR_EL2.M`), all its memory is Device memory, where `DC ZVA` faults. So then the features
/// have no [`zero_block`](Features::zero_block).
pub fn features() -> Features {
    let features = Features::from_registers(&id_registers());
    let stage1_is_on = read!("sctlr_el2") & 1 == 1;
    features.with_zero_block(if stage1_is_on { features.zero_block } else { 0 })
}

/// One instruction, with an operand in a register or with none.
macro_rules! instruction {
    ($text:literal, $operand:expr) => {
        // SAFETY: TLB, cache and barrier instructions change no memory that Rust knows of. `DC ZVA` does, and its
        // caller promised that the block is in a frame of the engine (`Platform::dc`).
        unsafe { asm!(".arch armv8.4-a", concat!($text, ", {0}"), in(reg) $operand, options(nostack, preserves_flags)) }
    };
    ($text:literal) => {
        // SAFETY: as above.
        unsafe { asm!(".arch armv8.4-a", $text, options(nostack, preserves_flags)) }
    };
}

// SAFETY: `pointer` and `metadata` are the frame map's, which promises the same. Each call executes its one instruction.
unsafe impl<M: FrameMap> Platform for Arm64<M> {
    #[inline(always)]
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        match operation {
            Tlbi::Ipas2E1 => instruction!("tlbi ipas2e1", operand),
            Tlbi::Ipas2E1Is => instruction!("tlbi ipas2e1is", operand),
            Tlbi::Ipas2Le1Is => instruction!("tlbi ipas2le1is", operand),
            Tlbi::Ripas2E1Is => instruction!("tlbi ripas2e1is", operand),
            Tlbi::Ripas2Le1Is => instruction!("tlbi ripas2le1is", operand),
            Tlbi::VmallE1 => instruction!("tlbi vmalle1"),
            Tlbi::VmallE1Is => instruction!("tlbi vmalle1is"),
            Tlbi::VmallS12E1Is => instruction!("tlbi vmalls12e1is"),
            Tlbi::Alle1Is => instruction!("tlbi alle1is"),
        }
    }

    #[inline(always)]
    fn dsb(&self, domain: Domain) {
        match domain {
            Domain::IshSt => instruction!("dsb ishst"),
            Domain::Ish => instruction!("dsb ish"),
            Domain::NshSt => instruction!("dsb nshst"),
            Domain::Nsh => instruction!("dsb nsh"),
        }
    }

    #[inline(always)]
    fn isb(&self) {
        instruction!("isb");
    }

    #[inline(always)]
    unsafe fn dc(&self, operation: Dc, address: usize) {
        match operation {
            Dc::Civac => instruction!("dc civac", address),
            Dc::Zva => instruction!("dc zva", address),
        }
    }

    #[inline(always)]
    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        match operation {
            Dc::Civac => clean_lines(start, size, line),
            // SAFETY: promised by the caller.
            Dc::Zva => each_line(start, size, line, |line| unsafe { self.dc(Dc::Zva, line) }),
        }
    }

    #[inline(always)]
    fn ic(&self, operation: Ic, address: usize) {
        match operation {
            // `nomem`: the barriers before and after a run of these order them after stores and before fetches.
            // SAFETY: invalidating an instruction cache changes no data.
            Ic::Ivau => unsafe { asm!("ic ivau, {}", in(reg) address, options(nomem, nostack, preserves_flags)) },
            Ic::IallUis => instruction!("ic ialluis"),
        }
    }

    #[inline(always)]
    fn vttbr(&self) -> u64 {
        let value;
        // SAFETY: reading VTTBR_EL2 at EL2 has no effect.
        unsafe { asm!("mrs {}, vttbr_el2", out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }

    #[inline(always)]
    fn load_vttbr(&self, value: u64) {
        // SAFETY: VTTBR_EL2 changes what guests see, and nothing at EL2.
        unsafe { asm!("msr vttbr_el2, {}", in(reg) value, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    fn vmids(&self) -> Option<&Vmids<'_>> {
        self.frames.vmids()
    }

    #[inline(always)]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.frames.pointer(pa)
    }

    #[inline(always)]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.frames.metadata(pa)
    }

    /// `ISB`, which is also what `core::hint::spin_loop` executes here. Four instructions, since many operations wait.
    #[inline(always)]
    fn pause(&self, yields: u32) {
        // SAFETY: an `ISB` has no effect on memory.
        unsafe { asm!("2:", "isb", "subs {0:w}, {0:w}, #1", "b.hi 2b", inout(reg) yields => _, options(nostack)) };
    }
}

/// `DC CIVAC` for each line. Out of line: a call takes less time than two lines, and many operations clean.
#[inline(never)]
fn clean_lines(start: usize, size: u64, line: u64) {
    each_line(start, size, line, |line| instruction!("dc civac", line));
}
