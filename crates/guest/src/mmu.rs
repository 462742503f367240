// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stage 1: an identity map of 512 GiB in 1 GiB blocks.
//!
//! The first GiB is device memory. A GiB that contains RAM is normal memory. Any other GiB is device memory, so that
//! speculation reads nothing there and a wild load reaches the bus. An entry changes once, from invalid to valid, so no
//! TLB maintenance is needed.

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of an address that is mapped; a longer address is not.
pub const ADDRESS_BITS: u32 = 39;
/// The first address that is not mapped.
pub const ADDRESS_END: u64 = 1 << ADDRESS_BITS;

const BLOCK: u64 = 1 << 30;
const ENTRIES: usize = 512;

/// The level 1 table. `start.s` fills in the first GiB, and those of the image and the DTB.
pub static TABLE: Table = Table([const { AtomicU64::new(0) }; ENTRIES]);

#[repr(C, align(4096))]
pub struct Table([AtomicU64; ENTRIES]);

/// Attributes 0: Device-nGnRE. Attributes 1: normal, write-back.
pub const MAIR: u64 = 0xff04;

const BLOCK_ENTRY: u64 = 0b01;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const NOT_EXECUTABLE_EL1: u64 = 1 << 53;
const NOT_EXECUTABLE_EL0: u64 = 1 << 54;
/// A block of device memory, without its address.
pub const DEVICE: u64 = BLOCK_ENTRY | ACCESSED | NOT_EXECUTABLE_EL1 | NOT_EXECUTABLE_EL0;
/// A block of RAM, without its address: read, written and executed at EL1.
pub const NORMAL: u64 = BLOCK_ENTRY | 1 << 2 | INNER_SHAREABLE | ACCESSED | NOT_EXECUTABLE_EL0;

/// TCR_EL1 without IPS: 4K granule, walks write-back and inner shareable, TTBR1 off (EPD1).
pub const TCR: u64 = (64 - ADDRESS_BITS as u64) | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 1 << 23;
/// SCTLR_EL1: the bits that are RES1 without a newer feature, and M, C, SA, I.
pub const SCTLR: u64 = 0x30d0_0800 | 1 | 1 << 2 | 1 << 3 | 1 << 12;

/// Maps the entries that `start.s` left: RAM as normal memory, the rest as device memory.
pub fn map(ram: &[Range<u64>]) {
    for (entry, start) in TABLE.0.iter().zip((0..ADDRESS_END).step_by(BLOCK as usize)) {
        if entry.load(Ordering::Relaxed) != 0 {
            continue;
        }
        let is_ram = ram.iter().any(|bank| bank.start < start + BLOCK && start < bank.end);
        entry.store(start | if is_ram { NORMAL } else { DEVICE }, Ordering::Relaxed);
    }
    // SAFETY: barriers only: the walks of later accesses see the entries.
    unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
}
