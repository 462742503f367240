// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers that must not be confused: intermediate physical address, physical address, VMID.
//!
//! Each has its own type, so that a guest's address is never written to a table as an output address.

use core::fmt;
use core::ops::{Add, Range, Sub};

/// An intermediate physical address: what a guest sees as a physical address. In bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ipa(u64);

/// A physical address. In bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pa(u64);

macro_rules! address {
    ($name:ident) => {
        impl $name {
            /// The address with this value, in bytes.
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// The value in bytes.
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// Whether the address is a multiple of `size`, a power of two.
            pub const fn is_aligned(self, size: u64) -> bool {
                self.0 & (size - 1) == 0
            }

            /// The address rounded down to a multiple of `size`, a power of two.
            pub const fn align_down(self, size: u64) -> Self {
                Self(self.0 & !(size - 1))
            }

            /// The address plus `bytes`; `None` if that does not fit in 64 bits.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }
        }

        impl Add<u64> for $name {
            type Output = Self;

            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        impl Sub for $name {
            type Output = u64;

            fn sub(self, other: Self) -> u64 {
                self.0 - other.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address!(Ipa);
address!(Pa);

/// A half-open range of intermediate physical addresses.
pub type IpaRange = Range<Ipa>;

/// A virtual machine identifier: the tag of a guest's entries in the TLB.
///
/// The embedder gives each guest its own VMID. VMID 0 is for the time before any guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vmid(u16);

impl Vmid {
    /// The VMID with this value. If [`Features::vmid_bits`](crate::Features) is 8, it must be below 256.
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The value.
    pub const fn raw(self) -> u16 {
        self.0
    }
}
