// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers and layouts of the specification that more than one file needs (VIRTIO 1.2, sections 2.7, 4.2.2 and 6).
//!
//! The tests compare them with those of the crate `virtio-spec`. Its layouts are for drivers: fields of configuration
//! spaces are private and volatile, and descriptors have the alignment that a guest's bytes need not have.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Features of every device.
pub mod feature {
    /// Chains of descriptors in a table of their own.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `used_event` and `avail_event` say which index is worth a notification.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The device is no legacy device. A driver must accept it.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Bits of the status register.
pub(super) mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const NEEDS_RESET: u8 = 64;
    pub const FAILED: u8 = 128;
    /// What a driver can set.
    pub const BY_DRIVER: u8 = ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED;
}

/// Bits of InterruptStatus.
pub(super) mod interrupt {
    pub const USED: u8 = 1;
    pub const CONFIG: u8 = 2;
    pub const ALL: u8 = 3;
}

/// A descriptor.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Descriptor {
    pub address: U64,
    pub length: U32,
    pub flags: U16,
    pub next: U16,
}

impl Descriptor {
    /// Bytes of a descriptor.
    pub const SIZE: usize = size_of::<Self>();
    /// The chain goes on at `next`.
    pub const NEXT: u16 = 1;
    /// The device may write the buffer, and not read it.
    pub const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
}

/// An element of the used ring.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct UsedElement {
    pub id: U32,
    pub length: U32,
}

/// Both rings begin with flags (u16) and an index (u16).
pub(super) const RING_INDEX: u64 = 2;
/// Where the entries of both rings begin.
pub(super) const RING_ENTRIES: u64 = 4;
/// Bit 0 of the available ring's flags: the driver wants no interrupt.
pub(super) const NO_INTERRUPT: u16 = 1;
