// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why there are no such tables.

use crate::mode::Mode;

/// A mode that has no tables here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Of another architecture.
    #[error("{mode}: arm64 has no virtual addresses of {} bits in one half; take a mode of 48 or 47", mode.va_bits)]
    VirtualAddresses {
        /// The mode.
        mode: Mode,
    },
    /// FEAT_LPA and FEAT_LPA2 are not modelled.
    #[error("{mode}: physical addresses of more than 48 bits are not modelled; take p48, p40, p36 or pxx")]
    PhysicalAddresses {
        /// The mode.
        mode: Mode,
    },
    /// The host gives a guest less.
    #[error(
        "{mode}: takes {pa_bits} bits of guest physical address, and there are {ipa_bits}; take a mode of less, or pxx"
    )]
    TooWide {
        /// The mode.
        mode: Mode,
        /// What it takes.
        pa_bits: u32,
        /// What there is.
        ipa_bits: u32,
    },
}

/// A range that cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Something is no multiple of the granule.
    #[error("{size:#x} bytes from {va:#x} on to {ipa:#x}: each has to be a multiple of the granule, {granule:#x}")]
    Misaligned {
        /// The first virtual address.
        va: u64,
        /// What it is mapped to.
        ipa: u64,
        /// How many bytes.
        size: u64,
        /// What they should be multiples of.
        granule: u64,
    },
    /// It ends beyond the mode's virtual addresses.
    #[error("{size:#x} bytes from {va:#x} on do not fit in {bits} bits of virtual address")]
    BeyondVa {
        /// The first virtual address.
        va: u64,
        /// How many bytes.
        size: u64,
        /// Bits of an address.
        bits: u32,
    },
    /// It ends beyond the mode's physical addresses.
    #[error(
        "{size:#x} bytes from {ipa:#x} on do not fit in {bits} bits of physical address; take less, or a wider mode"
    )]
    BeyondPa {
        /// The first physical address.
        ipa: u64,
        /// How many bytes.
        size: u64,
        /// Bits of an address.
        bits: u32,
    },
}

/// Why something was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error<E> {
    /// The range is of no use.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Something is mapped there.
    #[error("{va:#x} is mapped already")]
    Mapped {
        /// Where.
        va: u64,
    },
    /// There are no pages left for tables.
    #[error("no page is left for a table on the way to {va:#x}; `Layout::tables` tells how many it takes")]
    NoTable {
        /// On the way to where.
        va: u64,
    },
    /// The memory gave a page that is not aligned, or beyond the mode's physical addresses.
    #[error("a table cannot be at {ipa:#x}: it takes a multiple of {size:#x}, inside the mode's physical addresses")]
    BadTable {
        /// Where it was to be.
        ipa: u64,
        /// Bytes of a table.
        size: u64,
    },
    /// The memory failed.
    #[error(transparent)]
    Memory(E),
}
