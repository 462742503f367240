// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU of the program: its start, the map of its frames, the registers of stage 2, and its end.
//!
//! Stage 1 of EL2 stays off, so that the program is small. QEMU lets exclusive accesses succeed then; on silicon, turn it
//! on first.

use core::arch::{asm, global_asm};
use core::num::NonZeroUsize;
use core::ptr::NonNull;

use twofold_stage2::arm64::{Arm64, FrameMap};
use twofold_stage2::{Ipa, Pa, TableMetadata};

/// The donated memory, which is aligned to the largest block of it.
pub const MEMORY: u64 = 0x4100_0000;
/// Its size, a power of two: the guest's RAM, the root and the tables, and more than enough.
pub const SIZE: u64 = 8 << 20;
const FRAMES: usize = (SIZE / 4096) as usize;

global_asm!(
    ".section .text.start, \"ax\"",
    ".global _start",
    "_start:",
    "ldr x0, =stack_end",
    "mov sp, x0",
    "ldr x0, =bss_start",
    "ldr x1, =bss_end",
    "1: cmp x0, x1",
    "b.hs 2f",
    "stp xzr, xzr, [x0], #16",
    "b 1b",
    "2: bl main",
    "b .",
    ".text",
);

/// The platform: this CPU's instructions, and frames at their own addresses.
pub type Cpu = Arm64<Frames>;
/// The one value of [`Cpu`].
#[allow(non_upper_case_globals, reason = "a value of a type without data, named as the type")]
pub const Cpu: Cpu = Arm64::new(Frames);

/// The donated frames, which have their metadata here.
#[derive(Clone, Copy)]
pub struct Frames;

static METADATA: [TableMetadata; FRAMES] = [const { TableMetadata::new() }; FRAMES];

// SAFETY: stage 1 is off, so each frame is at its own address. `link.ld` puts no object there. Each donated frame has one
// element of `METADATA`.
unsafe impl FrameMap for Frames {
    #[inline(always)]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        // SAFETY: no donated frame is at address 0.
        NonNull::with_exposed_provenance(unsafe { NonZeroUsize::new_unchecked(pa.raw() as usize) })
    }

    #[inline(always)]
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        // The engine asks for donated frames only, so the remainder changes nothing. It saves a check.
        &METADATA[(pa.raw().wrapping_sub(MEMORY) / 4096) as usize % FRAMES]
    }
}

macro_rules! read {
    ($register:literal) => {{
        let value: u64;
        // SAFETY: reading this register has no effect.
        unsafe { asm!(concat!("mrs {}, ", $register), out(reg) value, options(nomem, nostack)) };
        value
    }};
}

/// Turns stage 2 on with these tables.
pub fn load(vtcr: u64, vttbr: u64) {
    const RW: u64 = 1 << 31;
    const VM: u64 = 1;
    // SAFETY: no guest runs. EL2 itself is not translated by stage 2.
    unsafe {
        asm!(
            "msr VTCR_EL2, {}", "msr VTTBR_EL2, {}", "msr HCR_EL2, {}", "isb",
            in(reg) vtcr, in(reg) vttbr, in(reg) RW | VM, options(nostack)
        );
    }
}

/// An access to translate.
#[derive(Clone, Copy)]
pub enum Step {
    /// A load at EL1.
    Read,
    /// A store at EL1.
    Write,
}

/// Translates an address as an access at EL1 would, with stage 1 of EL1 off.
#[inline(never)]
pub fn translate(ipa: Ipa, step: Step) -> Option<Pa> {
    const FAULT: u64 = 1;
    // SAFETY: the walk changes no memory, except for access flags in the engine's tables.
    unsafe {
        match step {
            Step::Read => asm!("at S12E1R, {}", "isb", in(reg) ipa.raw(), options(nostack)),
            Step::Write => asm!("at S12E1W, {}", "isb", in(reg) ipa.raw(), options(nostack)),
        }
    }
    let par = read!("PAR_EL1");
    (par & FAULT == 0).then_some(Pa::new(par & 0x000f_ffff_ffff_f000))
}

/// Ends QEMU with this status (Arm "Semihosting for AArch32 and AArch64", SYS_EXIT).
pub fn exit(status: u64) -> ! {
    const SYS_EXIT: u64 = 0x18;
    const APPLICATION_EXIT: u64 = 0x2_0026;
    let block = [APPLICATION_EXIT, status];
    loop {
        // SAFETY: the call reads the block, and does not return.
        unsafe { asm!("hlt #0xf000", in("x0") SYS_EXIT, in("x1") &raw const block, options(nostack)) };
    }
}
