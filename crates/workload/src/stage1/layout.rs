// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of a guest mode's tables: their levels, the span of an entry, the number of tables that a mapping needs,
//! and `TCR_EL1`.
//!
//! Invariant: no computation overflows 64 bits for an address and a size that the layout accepts.

use super::{RangeError, Unsupported};
use crate::mode::{Granule, Mode};

/// The leaves that a mapping uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Pages of the granule only, as in KVM's selftests.
    Pages,
    /// The largest blocks that fit. By granule: 1 GiB and 2 MiB, 32 MiB, or 512 MiB (Arm ARM DDI 0487K.a, D8.3.1).
    Largest,
}

/// The layout of a mode's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    granule: Granule,
    va_bits: u32,
    pa_bits: u32,
    leaves: Leaves,
}

impl Layout {
    /// The layout of `mode`, for a guest whose stage 2 translates addresses of up to `ipa_bits` bits.
    ///
    /// # Errors
    ///
    /// The mode needs more than `ipa_bits`, is another architecture's, or is not modelled.
    pub const fn new(mode: &Mode, ipa_bits: u32, leaves: Leaves) -> Result<Self, Unsupported> {
        let mode = *mode;
        if mode.va_bits > WIDEST || mode.va_bits < 25 {
            return Err(Unsupported::VirtualAddresses { mode });
        }
        let pa_bits = match mode.pa_bits {
            Some(bits) => bits,
            None if ipa_bits > WIDEST => WIDEST,
            None => ipa_bits,
        };
        if pa_bits > WIDEST {
            return Err(Unsupported::PhysicalAddresses { mode });
        }
        if pa_bits > ipa_bits {
            return Err(Unsupported::TooWide { mode, pa_bits, ipa_bits });
        }
        Ok(Self { granule: mode.granule, va_bits: mode.va_bits, pa_bits, leaves })
    }

    /// The granule.
    pub const fn granule(&self) -> Granule {
        self.granule
    }

    /// Bits in a guest virtual address.
    pub const fn va_bits(&self) -> u32 {
        self.va_bits
    }

    /// Bits in a guest physical address, which stage 2 calls an IPA.
    pub const fn pa_bits(&self) -> u32 {
        self.pa_bits
    }

    /// The number of tables, of one granule each, that map this range in an empty address space, root included. For
    /// several ranges, the sum is an upper bound; count the root once.
    ///
    /// # Errors
    ///
    /// The range cannot be mapped.
    pub fn tables(&self, va: u64, ipa: u64, size: u64) -> Result<u64, RangeError> {
        self.check(va, ipa, size)?;
        let end = va + size;
        let below = |level| {
            let span = self.span(level);
            let entries = if size == 0 { 0 } else { (end - 1) / span - va / span + 1 };
            // Blocks need no table. If the two addresses agree modulo the span, each entry that the range covers whole
            // is a block.
            let whole = (end / span).saturating_sub(va.div_ceil(span));
            let are_blocks = self.is_block(level) && va % span == ipa % span;
            if are_blocks { entries - whole } else { entries }
        };
        Ok(1 + (self.root_level()..3).map(below).sum::<u64>())
    }

    /// Checks that the range can be mapped.
    pub(super) fn check(&self, va: u64, ipa: u64, size: u64) -> Result<(), RangeError> {
        let (granule, within) =
            (self.granule.size(), |start: u64, bits| start.checked_add(size).is_some_and(|end| end <= 1_u64 << bits));
        if !(va | ipa | size).is_multiple_of(granule) {
            return Err(RangeError::Misaligned { va, ipa, size, granule });
        }
        if !within(va, self.va_bits) {
            return Err(RangeError::BeyondVa { va, size, bits: self.va_bits });
        }
        if !within(ipa, self.pa_bits) {
            return Err(RangeError::BeyondPa { ipa, size, bits: self.pa_bits });
        }
        Ok(())
    }

    /// Whether a table of `size` bytes may be at this IPA.
    pub(super) fn holds(&self, ipa: u64, size: u64) -> bool {
        self.check(0, ipa, size).is_ok()
    }

    /// The deepest level at which one table covers all addresses.
    pub(super) const fn root_level(&self) -> u32 {
        4 - (self.va_bits - self.granule.shift()).div_ceil(self.index_bits())
    }

    /// Bytes that an entry at `level` maps.
    pub(super) const fn span(&self, level: u32) -> u64 {
        1 << (self.granule.shift() + (3 - level) * self.index_bits())
    }

    /// The index of the entry for `va` in a table at `level`.
    pub(super) const fn index(&self, va: u64, level: u32) -> u64 {
        va / self.span(level) % (1 << self.index_bits())
    }

    /// Whether entries at `level`, which must not be 3, may be blocks. Larger blocks of the 16K and 64K granules need
    /// LPA2 and LPA.
    pub(super) const fn is_block(&self, level: u32) -> bool {
        match (self.leaves, self.granule) {
            (Leaves::Pages, _) => false,
            (Leaves::Largest, Granule::Kib4) => level == 1 || level == 2,
            (Leaves::Largest, Granule::Kib16 | Granule::Kib64) => level == 2,
        }
    }

    /// `TCR_EL1` (Arm ARM DDI 0487K.a, D23.2). The upper half is off (EPD1). Its size and granule are those of the
    /// lower half, because some values are reserved.
    pub(super) const fn tcr(&self) -> u64 {
        const WALKS: u64 = 0b11 << 12 | 0b01 << 10 | 0b01 << 8;
        const EPD1: u64 = 1 << 23;
        let size = 64 - self.va_bits as u64;
        // TG0 and TG1 encode the same granule differently.
        let (tg0, tg1) = match self.granule {
            Granule::Kib4 => (0b00, 0b10),
            Granule::Kib16 => (0b10, 0b01),
            Granule::Kib64 => (0b01, 0b11),
        };
        let ips = match self.pa_bits {
            0..=32 => 0,
            33..=36 => 1,
            37..=40 => 2,
            41..=42 => 3,
            43..=44 => 4,
            _ => 5,
        };
        ips << 32 | tg1 << 30 | WALKS << 16 | EPD1 | size << 16 | tg0 << 14 | WALKS | size
    }

    /// Address bits that index a table.
    const fn index_bits(&self) -> u32 {
        self.granule.shift() - 3
    }
}

/// The most bits of either address without FEAT_LPA, FEAT_LPA2 and FEAT_LVA.
const WIDEST: u32 = 48;
