// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The entry of the image: `start.s` with its constants.
//!
//! Started as Linux is: at EL1 with the MMU off, the image anywhere on a 4 KiB boundary, x0 = DTB. Rust code
//! runs only once the relocations are applied, `.bss` is zero, the MMU is on, and exceptions can be reported.

use core::arch::global_asm;

use crate::{mmu, psci};

global_asm!(
    include_str!("start.s"),
    table = sym mmu::TABLE,
    device = const mmu::DEVICE,
    normal = const mmu::NORMAL,
    address_bits = const mmu::ADDRESS_BITS,
    mair = const mmu::MAIR,
    tcr = const mmu::TCR,
    sctlr = const mmu::SCTLR,
    main = sym crate::main,
    system_reset = const psci::SYSTEM_RESET,
);

unsafe extern "C" {
    static image_start: u8;
    static image_end: u8;
    static bss_start: u8;
}

/// The first address after the image, its bss and its stack: a multiple of 4 KiB.
pub fn end_of_image() -> u64 {
    (&raw const image_end).addr() as u64
}

/// Reads each page of the image and its stack, and executes the end of a function in each that has one: so it is no page's first
/// access, nor its first fetch, when the program comes there later.
pub fn fetch_everything() {
    const PAGE: usize = 4096;
    const RET: u32 = 0xd65f_03c0;
    let (start, end) = ((&raw const image_start).addr(), (&raw const image_end).addr());
    for page in (start..end).step_by(PAGE) {
        let mut words = (page..page + PAGE).step_by(4).map(core::ptr::with_exposed_provenance::<u32>);
        // SAFETY: the page is the image's, and reading is all that is done to it.
        let ret = words.find(|word| unsafe { word.read_volatile() } == RET);
        if let Some(ret) = ret.filter(|_| page < (&raw const bss_start).addr()) {
            // SAFETY: all that is executed there is the return to here.
            unsafe { core::mem::transmute::<*const u32, extern "C" fn()>(ret)() };
        }
    }
}
