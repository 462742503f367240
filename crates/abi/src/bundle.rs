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
pub const MAGIC: [u8; 8] = *b"TWOFOLD\x02";
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
    /// Let the guest measure itself ([`vendor`](crate::vendor)): drive its own dirty log, tell phases apart.
    pub const MEASURE: u32 = 1 << 2;
    /// Take the CPU for one that does not force stage 2 to be write-back (FEAT_S2FWB), so that caches are cleaned.
    pub const NO_FORCED_WRITE_BACK: u32 = 1 << 3;
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

/// Bits of [`Header::before`]: techniques that are done as they were before, to measure what each is worth. Only an image with
/// the feature `baselines` can.
pub mod before {
    /// How blocks that are to be split are found: one of the following, 0 for by records.
    pub const SPLIT: u32 = 0b11;
    /// By a walk that visits every level.
    pub const SPLIT_EVERY_LEVEL: u32 = 1;
    /// By one that skips the children of what it has split.
    pub const SPLIT_SKIP_CHILDREN: u32 = 2;
    /// By one that skips leaves of the last level.
    pub const SPLIT_SKIP_LEAVES: u32 = 3;
    /// Caches are cleaned by who faults, not by who maps.
    pub const CLEAN_ON_ABORT: u32 = 1 << 2;
    /// Tables are freed before the block takes their place.
    pub const COALESCE_FREE_FIRST: u32 = 1 << 3;
    /// Each fault takes table pages, whether it needs them or not.
    pub const TABLES_ALWAYS: u32 = 1 << 4;
    /// All of them.
    pub const ALL: u32 = SPLIT | CLEAN_ON_ABORT | COALESCE_FREE_FIRST | TABLES_ALWAYS;
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
    /// Bits of a guest physical address, 32 to 48; 0 for the least that hold what the guest has.
    pub ipa_bits: U32,
    /// How many slots of equal size the test memory is made of; 0 for no test memory.
    pub test_slots: U32,
    /// Where the test memory starts: RAM that is in no device tree, which an experiment's guest knows of by its command line.
    /// A log that the guest drives ([`vendor`](crate::vendor)) is of this memory.
    pub test_start: U64,
    /// Bytes of the test memory: of each of its slots a multiple of 4 KiB.
    pub test_size: U64,
    /// The level of the largest leaf that may map test memory: 1 for 1 GiB, 2 for 2 MiB, 3 for 4 KiB. Each slot is given its
    /// memory at the start then: a power of two of bytes. 0: memory is taken as it is touched, like the guest's own.
    pub test_leaf: U32,
    /// See [`before`].
    pub before: U32,
}
