// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of stage-1 tables.

use crate::mode::Mode;

/// A guest mode that has no tables here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The mode is another architecture's.
    #[error("{mode}: arm64 has no virtual addresses of {} bits in one half; use a mode with 48 or 47", mode.va_bits)]
    VirtualAddresses {
        /// The mode.
        mode: Mode,
    },
    /// FEAT_LPA and FEAT_LPA2 are not modelled.
    #[error("{mode}: physical addresses of more than 48 bits are not modelled; use p48, p40, p36 or pxx")]
    PhysicalAddresses {
        /// The mode.
        mode: Mode,
    },
    /// The host gives a guest fewer physical address bits.
    #[error(
        "{mode}: needs {pa_bits} bits of guest physical address; the limit is {ipa_bits}; use a mode with fewer, or pxx"
    )]
    TooWide {
        /// The mode.
        mode: Mode,
        /// The bits that the mode needs.
        pa_bits: u32,
        /// The bits that the host gives.
        ipa_bits: u32,
    },
}

/// A range that cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// An address or the size is not a multiple of the granule.
    #[error("cannot map {size:#x} bytes at {va:#x} to {ipa:#x}: each must be a multiple of the granule, {granule:#x}")]
    Misaligned {
        /// The first virtual address.
        va: u64,
        /// The IPA that it is mapped to.
        ipa: u64,
        /// The size in bytes.
        size: u64,
        /// The granule in bytes.
        granule: u64,
    },
    /// The range ends beyond the mode's virtual addresses.
    #[error("{size:#x} bytes at {va:#x} do not fit in {bits} bits of virtual address")]
    BeyondVa {
        /// The first virtual address.
        va: u64,
        /// The size in bytes.
        size: u64,
        /// Bits in a virtual address.
        bits: u32,
    },
    /// The range ends beyond the mode's physical addresses.
    #[error(
        "{size:#x} bytes at {ipa:#x} do not fit in {bits} bits of physical address; use less memory, or a wider mode"
    )]
    BeyondPa {
        /// The first physical address.
        ipa: u64,
        /// The size in bytes.
        size: u64,
        /// Bits in a physical address.
        bits: u32,
    },
}

/// Why a range was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error<E> {
    /// The range cannot be mapped.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Part of the range is mapped already.
    #[error("{va:#x} is mapped already")]
    Mapped {
        /// The address that is mapped.
        va: u64,
    },
    /// No page is left for a table.
    #[error("no page is left for a table that maps {va:#x}; `Layout::tables` returns how many a mapping needs")]
    NoTable {
        /// The address that the table is for.
        va: u64,
    },
    /// The memory returned a page that is not aligned, or that is beyond the mode's physical addresses.
    #[error("a table cannot be at {ipa:#x}: it must be a multiple of {size:#x}, inside the mode's physical addresses")]
    BadTable {
        /// The address of the page.
        ipa: u64,
        /// Bytes in a table.
        size: u64,
    },
    /// An access to the memory failed.
    #[error(transparent)]
    Memory(E),
}
