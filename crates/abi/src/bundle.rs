// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest bundle: kernel, initrd, command line and settings in one file.
//!
//! A boot loader hands it to the hypervisor where it would hand an initrd to Linux (`linux,initrd-start`
//! in `/chosen`); QEMU's `-initrd` does. The file is the [`Header`], padded to [`ALIGN`], then the kernel,
//! padded to [`ALIGN`] with zeros, then the initrd, padded likewise. The hypervisor copies kernel and initrd
//! into guest memory before the guest runs.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first eight bytes of a bundle; the last one is the version of this layout.
pub const MAGIC: [u8; 8] = *b"TWOFOLD\x01";
/// Alignment, in the file, of the kernel and the initrd: 4 KiB.
pub const ALIGN: u64 = 4096;
/// The most bytes that a guest's command line may have, its terminating zero not counted.
pub const COMMAND_LINE_MAX: usize = 2047;

/// Bits of [`Header::flags`].
pub mod flags {
    /// Count instructions at EL2 with the PMU (needs `-icount` under QEMU).
    pub const COUNT: u32 = 1 << 0;
    /// Panic at EL2 at the guest's first call of PSCI, so that the report can be tested.
    pub const TEST_PANIC: u32 = 1 << 1;
    /// Let the guest drive its own dirty log ([`vendor`](crate::vendor)), so that it can be measured.
    pub const DIRTY_LOG: u32 = 1 << 2;
}

/// Values of [`Header::pages`]: how large the mappings of guest RAM may be.
pub mod pages {
    /// As large as alignment and backing allow.
    pub const AUTO: u32 = 0;
    /// 4 KiB pages only.
    pub const SMALL: u32 = 1;
    /// Blocks: memory that cannot be mapped by 2 MiB at least is refused at the start.
    pub const BLOCKS: u32 = 2;
}

/// The head of a bundle. All numbers are little-endian, offsets are bytes from the start of the file.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// See [`flags`].
    pub flags: U32,
    /// See [`pages`].
    pub pages: U32,
    /// Number of vCPUs, from 1 to [`MAX_CPUS`](crate::virt::MAX_CPUS).
    pub cpus: U32,
    /// Bytes used of `command_line`.
    pub command_line_size: U32,
    /// Guest RAM in bytes, a multiple of 4 KiB.
    pub memory: U64,
    /// Where the kernel starts, a multiple of [`ALIGN`].
    pub kernel_offset: U64,
    /// Size of the kernel file in bytes.
    pub kernel_size: U64,
    /// Where the initrd starts, a multiple of [`ALIGN`].
    pub initrd_offset: U64,
    /// Size of the initrd in bytes; 0 for none.
    pub initrd_size: U64,
    /// The guest's command line, not terminated when full.
    pub command_line: [u8; COMMAND_LINE_MAX + 1],
}
