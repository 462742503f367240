// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bundle: kernels, initrds, command lines and settings of all guests in one file.
//!
//! A boot loader passes the bundle to the hypervisor in the place of an initrd (`linux,initrd-start` in `/chosen`);
//! QEMU's `-initrd` does this. The file is the [`Header`], then one [`Guest`] for each guest, both without gaps, padded
//! to [`ALIGN`] with zeros; then the kernels and initrds, each padded likewise. Guests may share a kernel or an initrd:
//! it is stored once, and their offsets are equal. The hypervisor copies kernel and initrd into a guest's memory before
//! that guest runs.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first eight bytes of a bundle; the last one is the version of this layout.
pub const MAGIC: [u8; 8] = *b"TWOFOLD\x04";
/// Alignment, in the file, of kernels and initrds: 4 KiB.
pub const ALIGN: u64 = 4096;
/// The most guests in a bundle.
pub const GUESTS_MAX: u32 = 64;
/// The most vCPUs of all guests together: EL2 reserves memory for each.
pub const VCPUS_MAX: u32 = 512;
/// The most bytes of a guest's name, without the zero that ends it.
pub const NAME_MAX: usize = 15;
/// The largest weight of a guest; the smallest is 1.
pub const WEIGHT_MAX: u32 = 1024;
/// The weight of a guest for which none is given.
pub const WEIGHT_DEFAULT: u32 = 64;
/// The most bytes that a guest's command line may have, without its terminating zero.
pub const COMMAND_LINE_MAX: usize = 2047;

/// The most disks of a guest.
pub const DISKS_MAX: usize = 4;
/// The most network cards of a guest.
pub const NETS_MAX: usize = 4;
/// The most networks of an image.
pub const NETWORKS_MAX: u32 = 16;
/// Bytes of a sector, the unit of disks.
pub const SECTOR: u64 = 512;
/// The most bytes of a firmware: the size of the flash in which it is.
pub const FIRMWARE_MAX: u64 = 64 << 20;

/// Bits of [`Header::flags`]. They apply to the image, and so to each of its guests.
pub mod flags {
    /// Count instructions at EL2 with the PMU (needs `-icount` under QEMU).
    pub const COUNT: u32 = 1 << 0;
    /// Panic at EL2 at a guest's first call of PSCI, so that the report can be tested.
    pub const TEST_PANIC: u32 = 1 << 1;
    /// Let guests measure themselves ([`vendor`](crate::vendor)): control their own dirty logs, and mark phases.
    pub const MEASURE: u32 = 1 << 2;
    /// Ignore FEAT_S2FWB, which forces stage 2 to be write-back, so that the engine does cache maintenance.
    pub const NO_FORCED_WRITE_BACK: u32 = 1 << 3;
    /// A guest that asks for a reset begins anew from its images. Without this bit a reset ends the guest.
    pub const RESTART: u32 = 1 << 4;
    /// The launcher will begin a session on the control channel, and takes every guest's console from there. Without this
    /// bit the machine's UART has them.
    pub const CONSOLES: u32 = 1 << 5;
    /// Where several guests share frames, each may have only half of what it needs, so that reaching the limit can be
    /// tested.
    pub const TEST_SCARCE: u32 = 1 << 6;
    /// The guests come from elsewhere: each is stopped, with zeroes in its memory, and the launcher restores it
    /// ([`channel`](crate::channel)).
    pub const INCOMING: u32 = 1 << 7;
    /// With [`INCOMING`]: pages of the guests may be absent when the guests begin, and come later.
    pub const POSTCOPY: u32 = 1 << 8;
    /// Guests with a store share what they may have in memory together: what one does not need, another has.
    pub const SHARE_RESIDENT: u32 = 1 << 9;
}

/// Values of [`Guest::pages`]: how large the mappings of guest RAM may be.
pub mod pages {
    /// As large as alignment and backing allow.
    pub const AUTO: u32 = 0;
    /// 4 KiB pages only.
    pub const SMALL: u32 = 1;
    /// Blocks: the start is refused if some memory cannot be mapped by 2 MiB at least.
    pub const BLOCKS: u32 = 2;
}

/// Bits of [`Guest::devices`]: virtio devices beside disks and network cards.
pub mod devices {
    /// A virtio console, beside the UART.
    pub const CONSOLE: u32 = 1 << 0;
    /// A source of random bytes.
    pub const RANDOM: u32 = 1 << 1;
    /// A memory balloon.
    pub const BALLOON: u32 = 1 << 2;
    /// All bits that have a meaning.
    pub const ALL: u32 = CONSOLE | RANDOM | BALLOON;
}

/// Values of [`Disk::kind`], and bits of [`Disk::flags`].
pub mod disk {
    /// A disk of the machine, or a part of one.
    pub const HOST: u32 = 1;
    /// Memory that begins as zeros and is lost with the guest's end.
    pub const MEMORY: u32 = 2;
    /// The guest may not write.
    pub const READ_ONLY: u32 = 1 << 0;
    /// The most bytes of a serial number.
    pub const ID_MAX: usize = 20;
}

/// Values of the fields of [`Swap`].
pub mod swap {
    /// No store: all of the guest's memory is in the machine's.
    pub const NONE: u32 = 0;
    /// A store in the machine's memory, beside the guest's own.
    pub const MEMORY: u32 = 1;
    /// A store on a disk of the machine.
    pub const DISK: u32 = 2;

    /// The vCPU waits for its page.
    pub const OFF: u32 = 0;
    /// It waits for its page, or for an interrupt that it can take.
    pub const HALT: u32 = 1;
    /// The guest runs another task meanwhile, if it knows how ([`async_fault`](crate::async_fault)).
    pub const PV: u32 = 2;

    /// The most microseconds of a transfer: a minute.
    pub const DELAY_MAX: u32 = 60_000_000;
}

/// The bits of [`Header::policies`] that have a meaning. `twofold_workload::policies` encodes them.
pub const POLICIES: u32 = 0b1_1111;

/// The head of a bundle. All numbers are little-endian.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// See [`flags`].
    pub flags: U32,
    /// Techniques that are replaced by their baseline, to measure what each is worth: bits of [`POLICIES`]. Only an image
    /// with the feature `baselines` accepts them.
    pub policies: U32,
    /// The number of guests, from 1 to [`GUESTS_MAX`].
    pub guests: U32,
}

/// The head of a kernel that is no arm64 Image, which says itself where it goes, but a program for a fixed address. Its bytes
/// start at [`ALIGN`] from the head. All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Program {
    /// The guest physical address of its first byte.
    pub load: U64,
    /// The guest physical address at which it starts.
    pub entry: U64,
    /// Zeros.
    pub reserved: [u8; 40],
    /// [`PROGRAM_MAGIC`], at the place of an arm64 Image's.
    pub magic: [u8; 8],
}

/// The end of a [`Program`]; the last byte is its version.
pub const PROGRAM_MAGIC: [u8; 8] = *b"TWOPROG\x01";

/// One guest of a bundle. All numbers are little-endian, offsets are bytes from the start of the file.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Guest {
    /// The guest's name, padded with zeros: 1 to [`NAME_MAX`] bytes, each a letter from `a` to `z`, a digit or a hyphen.
    /// No other guest of the bundle has it.
    pub name: [u8; NAME_MAX + 1],
    /// The guest's share of busy CPUs, in relation to the others' weights: 1 to [`WEIGHT_MAX`].
    pub weight: U32,
    /// Number of vCPUs, from 1 to [`MAX_CPUS`](crate::virt::MAX_CPUS).
    pub cpus: U32,
    /// See [`pages`].
    pub pages: U32,
    /// Bits of a guest physical address, 32 to 48; 0 for the fewest that cover the guest's memory.
    pub ipa_bits: U32,
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
    /// Where the firmware starts, a multiple of [`ALIGN`].
    pub firmware_offset: U64,
    /// Size of the firmware in bytes, at most [`FIRMWARE_MAX`]. If it is not 0, the guest starts in the firmware, and has
    /// neither kernel nor initrd.
    pub firmware_size: U64,
    /// Where the test memory starts. No device tree lists this RAM; the command line gives its place to an experiment's
    /// guest. A log that the guest controls ([`vendor`](crate::vendor)) covers this memory.
    pub test_start: U64,
    /// Bytes of the test memory. The size of each of its slots is a multiple of 4 KiB.
    pub test_size: U64,
    /// How many slots of equal size the test memory has; 0 for no test memory.
    pub test_slots: U32,
    /// The level of the largest leaf that may map test memory: 1 for 1 GiB, 2 for 2 MiB, 3 for 4 KiB. Each slot then
    /// gets its memory at the start, and its size is a power of two of bytes. 0: a slot gets memory as the guest
    /// touches it, like the guest's own RAM.
    pub test_leaf: U32,
    /// See [`devices`].
    pub devices: U32,
    /// How many of `disk` are the guest's, from the first on.
    pub disks: U32,
    /// How many of `net` are the guest's, from the first on.
    pub nets: U32,
    /// Its disks.
    pub disk: [Disk; DISKS_MAX],
    /// Its network cards.
    pub net: [Net; NETS_MAX],
    /// Where its pages go when they leave memory.
    pub swap: Swap,
    /// Bytes used of `command_line`.
    pub command_line_size: U32,
    /// The guest's command line, not terminated when full.
    pub command_line: [u8; COMMAND_LINE_MAX + 1],
}

/// A disk of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Disk {
    /// See [`disk`].
    pub kind: U32,
    /// See [`disk`].
    pub flags: U32,
    /// The serial number by which the guest knows it, and the hypervisor a [host's](disk::HOST): printable ASCII, padded
    /// with zeros. A host's disk has at least one character.
    pub id: [u8; disk::ID_MAX],
    /// Its first sector on the host's disk; 0 for memory.
    pub start: U64,
    /// Its size in sectors of [`SECTOR`] bytes; 0: from `start` to the end of the host's disk.
    pub sectors: U64,
}

/// A network card of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Net {
    /// The network that it is plugged into, below [`NETWORKS_MAX`]. Cards of one network reach each other.
    pub network: U32,
    /// Its address. It is that of one card; bit 0 of its first byte, which marks groups, is 0.
    pub mac: [u8; 6],
    /// The address of the machine's card that joins this network with one outside; zeros for none. All cards of a
    /// network have the same.
    pub uplink: [u8; 6],
}

/// How a guest's pages leave memory, and come back. All fields are 0 for a guest whose pages stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Swap {
    /// The store: see [`swap`].
    pub store: U32,
    /// What a vCPU does while a page is absent: see [`swap`].
    pub mode: U32,
    /// The most bytes of the guest's memory that are in the machine's at a time, a multiple of 4 KiB.
    pub resident: U64,
    /// Microseconds from a request to the end of its transfer, for a store in memory: 0 to [`swap::DELAY_MAX`].
    pub delay: U32,
    /// The serial number of the store's disk, padded with zeros.
    pub disk: [u8; disk::ID_MAX],
}
