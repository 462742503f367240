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

            /// The address rounded up to a multiple of `size`, a power of two; `None` if that does not fit in 64 bits.
            pub const fn align_up(self, size: u64) -> Option<Self> {
                match self.0.checked_next_multiple_of(size) {
                    Some(raw) => Some(Self(raw)),
                    None => None,
                }
            }

            /// How far the address is from the multiple of `size`, a power of two, below it.
            pub const fn offset_in(self, size: u64) -> u64 {
                self.0 & (size - 1)
            }

            /// The `size` bytes from here on. The range ends at the last address if they do not fit in 64 bits.
            pub const fn range(self, size: u64) -> Range<Self> {
                self..Self(self.0.saturating_add(size))
            }

            /// The address plus `bytes`; `None` if that does not fit in 64 bits.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }
        }

        /// As with integers, an overflow panics in a debug build, and wraps in a release build: see `checked_add`.
        impl Add<u64> for $name {
            type Output = Self;

            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        /// As with integers, a result below 0 panics in a debug build, and wraps in a release build.
        impl Sub<u64> for $name {
            type Output = Self;

            fn sub(self, bytes: u64) -> Self {
                Self(self.0 - bytes)
            }
        }

        /// The distance in bytes. As with integers, one below 0 panics in a debug build, and wraps in a release build.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_rounded_and_moved() {
        let ipa = Ipa::new(0x4012_3456);
        assert_eq!(ipa.align_down(0x1000) + ipa.offset_in(0x1000), ipa);
        assert_eq!(ipa.align_up(0x1000), Some(Ipa::new(0x4012_4000)));
        assert_eq!(ipa.align_down(0x1000).align_up(0x1000), Some(Ipa::new(0x4012_3000)));
        assert_eq!(Ipa::new(u64::MAX).align_up(0x1000), None);
        let moved = ipa + 0x10;
        assert_eq!((moved - ipa, moved - 0x10), (0x10, ipa));
    }

    #[test]
    fn a_range_ends_with_the_address_space() {
        assert_eq!(Ipa::new(0x1000).range(0x2000), Ipa::new(0x1000)..Ipa::new(0x3000));
        assert_eq!(Pa::new(u64::MAX - 1).range(0x1000), Pa::new(u64::MAX - 1)..Pa::new(u64::MAX));
    }
}
