// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kind and span of a descriptor, by the granule of its tables (Arm ARM DDI 0487K.a, D8.2 and D8.3), without
//! FEAT_LPA and FEAT_LPA2 (module `format`).
//!
//! Invariant: levels are 0 to 3, and all arithmetic stays inside 56 bits.

/// The size of pages and tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granule {
    /// 4 KiB.
    Kib4,
    /// 16 KiB.
    Kib16,
    /// 64 KiB.
    Kib64,
}

/// The kind of a descriptor, by its last two bits and its level (Arm ARM DDI 0487K.a, D8.3.1 and D8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A fault, or a reserved encoding, which is one too.
    Invalid,
    /// The address of a table.
    Table,
    /// A block or a page.
    Leaf,
}

impl Granule {
    /// The granule of a TG0 value; `None` if it is reserved.
    pub(super) const fn of_tg0(field: u64) -> Option<Self> {
        match field {
            0b00 => Some(Self::Kib4),
            0b01 => Some(Self::Kib64),
            0b10 => Some(Self::Kib16),
            _ => None,
        }
    }

    /// The granule of a TG1 value; the encoding differs from TG0.
    pub(super) const fn of_tg1(field: u64) -> Option<Self> {
        match field {
            0b01 => Some(Self::Kib16),
            0b10 => Some(Self::Kib4),
            0b11 => Some(Self::Kib64),
            _ => None,
        }
    }

    /// The number of bytes that a descriptor at `level` covers.
    pub const fn span(self, level: u8) -> u64 {
        1 << self.span_shift(level)
    }

    pub(super) const fn span_shift(self, level: u8) -> u32 {
        self.page_shift() + self.index_bits() * (3 - level as u32)
    }

    /// The offset in bytes of the descriptor for `address` in a table below the root.
    pub(super) const fn offset(self, address: u64, level: u8) -> u64 {
        (address >> self.span_shift(level) & ((1 << self.index_bits()) - 1)) * 8
    }

    /// The deepest level at which one table covers addresses of `bits` bits, which is more than the bits of a page
    /// offset.
    pub(super) const fn root_level(self, bits: u32) -> u8 {
        4 - (bits - self.page_shift()).div_ceil(self.index_bits()) as u8
    }

    /// The kind of a descriptor. 0b01 is never a page.
    pub(super) const fn shape(self, raw: u64, level: u8) -> Shape {
        match (raw & 3, level) {
            (0b11, 0..=2) => Shape::Table,
            (0b11, _) => Shape::Leaf,
            (0b01, _) if self.has_blocks(level) => Shape::Leaf,
            _ => Shape::Invalid,
        }
    }

    /// The address of the next table, or a leaf's output: bits 47 down to the granule, without the reserved bits of a
    /// block.
    pub(super) const fn address(self, raw: u64, level: u8) -> u64 {
        let level = match self.shape(raw, level) {
            Shape::Leaf => level,
            _ => 3,
        };
        raw & 0x0000_ffff_ffff_ffff & !(self.span(level) - 1)
    }

    /// Larger blocks need FEAT_LPA (64 KiB granule) or FEAT_LPA2 (the others).
    const fn has_blocks(self, level: u8) -> bool {
        match self {
            Self::Kib4 => matches!(level, 1 | 2),
            Self::Kib16 | Self::Kib64 => level == 2,
        }
    }

    pub(super) const fn page_shift(self) -> u32 {
        match self {
            Self::Kib4 => 12,
            Self::Kib16 => 14,
            Self::Kib64 => 16,
        }
    }

    /// A table is one page of 8-byte descriptors.
    const fn index_bits(self) -> u32 {
        self.page_shift() - 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULES: [Granule; 3] = [Granule::Kib4, Granule::Kib16, Granule::Kib64];

    #[test]
    fn shapes_by_level() {
        use Shape::{Invalid, Leaf, Table};
        for (bits, level, shapes) in [
            (0b00, 0, [Invalid; 3]),
            (0b01, 0, [Invalid; 3]),
            (0b11, 0, [Table; 3]),
            (0b10, 1, [Invalid; 3]),
            (0b01, 1, [Leaf, Invalid, Invalid]),
            (0b11, 1, [Table; 3]),
            (0b10, 2, [Invalid; 3]),
            (0b01, 2, [Leaf; 3]),
            (0b11, 2, [Table; 3]),
            (0b00, 3, [Invalid; 3]),
            (0b01, 3, [Invalid; 3]),
            (0b10, 3, [Invalid; 3]),
            (0b11, 3, [Leaf; 3]),
        ] {
            let seen = GRANULES.map(|granule| granule.shape(0x4000_0000 | bits, level));
            assert_eq!(seen, shapes, "{bits:#b} at level {level}");
        }
    }

    #[test]
    fn spans() {
        let spans = GRANULES.map(|granule| [1, 2, 3].map(|level| granule.span(level)));
        const KIB: u64 = 1 << 10;
        assert_eq!(spans[0], [1 << 30, 2048 * KIB, 4 * KIB]);
        assert_eq!(spans[1], [64 << 30, 32768 * KIB, 16 * KIB]);
        assert_eq!(spans[2], [4096 << 30, 524_288 * KIB, 64 * KIB]);
        assert_eq!([Granule::Kib4.span(0), Granule::Kib16.span(0)], [512 << 30, 128 << 40]);
    }

    #[test]
    fn a_block_has_no_low_address_bits() {
        for (granule, block, table) in [
            (Granule::Kib4, 0x0000_8000_4020_0000, 0x0000_8000_403f_f000),
            (Granule::Kib16, 0x0000_8000_4000_0000, 0x0000_8000_403f_c000),
            (Granule::Kib64, 0x0000_8000_4000_0000, 0x0000_8000_403f_0000),
        ] {
            assert_eq!(granule.address(0x0000_8000_403f_f001, 2), block, "{granule:?}");
            assert_eq!(granule.address(0x0000_8000_403f_f003, 2), table, "{granule:?}, a table");
            assert_eq!(granule.address(0xffff_8000_403f_ffff, 3), table, "{granule:?}, a page");
        }
    }

    #[test]
    fn roots_of_every_size() {
        for (granule, levels) in [
            (Granule::Kib4, [(48, 0), (40, 0), (39, 1), (31, 1), (30, 2), (25, 2)]),
            (Granule::Kib16, [(48, 0), (47, 1), (37, 1), (36, 2), (26, 2), (25, 3)]),
            (Granule::Kib64, [(48, 1), (43, 1), (42, 2), (30, 2), (29, 3), (25, 3)]),
        ] {
            for (bits, level) in levels {
                assert_eq!(granule.root_level(bits), level, "{granule:?}, {bits} bits");
            }
        }
    }
}
