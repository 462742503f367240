// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The format of stage-2 descriptors, by `VTCR_EL2` (Arm ARM DDI 0487K.a, D8.2, D8.3 and D23.2): the granule, and the places
//! of address bits 51 to 48 with FEAT_LPA and FEAT_LPA2.
//!
//! Invariant: levels are 0 to 3, and all arithmetic stays inside 56 bits.

use twofold_stage2::Features;

use super::granule::{Granule, Shape};
use super::{CONTIGUOUS, DIRTY_BY_HARDWARE, Unmodelled, require};

/// The granule of stage 2, independent of the guest's stage 1, and its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    granule: Granule,
    /// `VTCR_EL2.DS`: FEAT_LPA2 is used.
    ds: bool,
    /// The CPU has FEAT_LPA: 52 bits with the 64 KiB granule.
    lpa: bool,
}

impl Format {
    /// The 4 KiB granule without FEAT_LPA2.
    pub const KIB_4: Self = Self { granule: Granule::Kib4, ds: false, lpa: false };

    /// The format that `VTCR_EL2` selects on a CPU with these features.
    pub fn of(vtcr: u64, features: &Features) -> Result<Self, Unmodelled> {
        let control = |holds, why| require(holds, "VTCR_EL2", vtcr, why);
        let granule = Granule::of_tg0(vtcr >> 14 & 3);
        control(granule.is_some(), "TG0 is reserved")?;
        let granule = granule.unwrap_or(Granule::Kib4);
        let (has, has_lpa2) = match granule {
            Granule::Kib4 => (features.granule_4k, features.lpa2_4k),
            Granule::Kib16 => (features.granule_16k, features.lpa2_16k),
            Granule::Kib64 => (features.granule_64k, false),
        };
        control(has, "stage 2 of the CPU does not have the granule of TG0")?;
        let ds = vtcr >> 32 & 1 == 1;
        control(!ds || has_lpa2, "DS without FEAT_LPA2 for this granule")?;
        Ok(Self { granule, ds, lpa: features.pa_bits > 48 })
    }

    /// The number of bytes that a descriptor at `level` covers.
    pub const fn span(self, level: u8) -> u64 {
        self.granule.span(level)
    }

    /// The size of a page and of a table in bytes.
    pub const fn page(self) -> u64 {
        self.span(3)
    }

    /// The number of descriptors in a table below the root.
    pub const fn entries(self) -> u64 {
        self.page() / 8
    }

    /// The kind of a descriptor.
    pub const fn shape(self, raw: u64, level: u8) -> Shape {
        // Each format that holds 52 bits has blocks one level higher.
        let large = match self.granule {
            Granule::Kib4 => self.ds && level == 0,
            Granule::Kib16 => self.ds && level == 1,
            Granule::Kib64 => self.lpa && level == 1,
        };
        if raw & 3 == 0b01 && large { Shape::Leaf } else { self.granule.shape(raw, level) }
    }

    /// The address of the next table, or a leaf's output, without the reserved bits of a block.
    pub const fn address(self, raw: u64, level: u8) -> u64 {
        let level = if matches!(self.shape(raw, level), Shape::Leaf) { level } else { 3 };
        let all = if self.ds {
            raw & 0x0003_ffff_ffff_ffff & !0x300 | (raw >> 8 & 3) << 50
        } else if matches!(self.granule, Granule::Kib64) && self.lpa {
            raw & 0x0000_ffff_ffff_0000 | (raw >> 12 & 0xf) << 48
        } else {
            raw & 0x0000_ffff_ffff_ffff
        };
        all & !(self.span(level) - 1)
    }

    /// The number of descriptors of a contiguous group at `level` (Arm ARM DDI 0487K.a, D8.7.1); 1 where there are none.
    pub const fn group(self, level: u8) -> u64 {
        match (self.granule, level) {
            (Granule::Kib4, 1..=3) => 16,
            (Granule::Kib16, 3) => 128,
            (Granule::Kib16, 2) | (Granule::Kib64, 2 | 3) => 32,
            _ => 1,
        }
    }

    /// The bits of a descriptor that hold an address.
    pub const fn address_field(self) -> u64 {
        if self.ds {
            0x0003_ffff_ffff_f300
        } else {
            // The bits below the granule hold the high bits with FEAT_LPA, and are RES0 otherwise.
            0x0000_ffff_ffff_f000
        }
    }

    /// The leaf with an output address that is `bytes` lower.
    pub const fn moved_back(self, raw: u64, level: u8, bytes: u64) -> u64 {
        let to = self.address(raw, level).wrapping_sub(bytes);
        let placed = if self.ds {
            to & 0x0003_ffff_ffff_ffff & !0x300 | (to >> 50 & 3) << 8
        } else if matches!(self.granule, Granule::Kib64) && self.lpa {
            to & 0x0000_ffff_ffff_0000 | (to >> 48 & 0xf) << 12
        } else {
            to & 0x0000_ffff_ffff_f000
        };
        raw & !self.address_field() | placed
    }

    /// The output address for `ipa` of a leaf that begins at `start`, or of a contiguous group that does.
    pub const fn output_from(self, raw: u64, level: u8, start: u64, ipa: u64) -> u64 {
        self.address(raw, level).wrapping_add(ipa - start)
    }

    /// The output address of a leaf at `level` for `ipa`.
    pub const fn output(self, raw: u64, level: u8, ipa: u64) -> u64 {
        self.address(raw, level) | ipa & (self.span(level) - 1)
    }

    /// MemAttr, and SH where descriptors have it.
    pub const fn memory(self) -> u64 {
        0xf << 2 | if self.ds { 0 } else { 3 << 8 }
    }

    /// Whether both descriptors have the same bits in their address fields, whatever the kind.
    pub const fn has_address_of(self, one: u64, other: u64) -> bool {
        (one ^ other) & self.address_field() == 0
    }

    /// The address of the root in `VTTBR_EL2`: BADDR, without CnP.
    pub const fn root(self, vttbr: u64) -> u64 {
        let low = vttbr & 0x0000_ffff_ffff_fffe;
        if self.has_52_bits() { low & !0x3f | (vttbr >> 2 & 0xf) << 48 } else { low }
    }

    /// Whether addresses may have 52 bits.
    pub(super) const fn has_52_bits(self) -> bool {
        self.ds || matches!(self.granule, Granule::Kib64) && self.lpa
    }

    /// The level at which walks start; `None` if SL0 is reserved.
    pub(crate) const fn root_level(self, vtcr: u64) -> Option<u8> {
        match (self.granule, vtcr >> 6 & 3) {
            (Granule::Kib4, sl0 @ 0..=2) => Some(2 - sl0 as u8),
            // Level 3 needs FEAT_TTST.
            (Granule::Kib4, _) => None,
            (Granule::Kib16, 3) if !self.ds => None,
            (Granule::Kib64, 3) => None,
            (_, sl0) => Some(3 - sl0 as u8),
        }
    }

    /// The least bits of physical address of a CPU whose walks may start at this level.
    pub(super) const fn least_pa_bits(self, root_level: u8) -> u32 {
        match (self.granule, root_level) {
            (Granule::Kib4, 0) | (Granule::Kib64, 1) => 44,
            (Granule::Kib16, 1) => 42,
            _ => 0,
        }
    }

    /// log2 of the number of descriptors in a table.
    pub(super) const fn index_bits(self) -> u32 {
        self.granule.page_shift() - 3
    }

    /// log2 of the bytes that a descriptor at `level` covers.
    pub(super) const fn span_shift(self, level: u8) -> u32 {
        self.granule.span_shift(level)
    }

    /// The offset in bytes of the descriptor for `address` in a table below the root.
    pub(super) const fn offset(self, address: u64, level: u8) -> u64 {
        self.granule.offset(address, level)
    }

    /// TTL\[3:2\] of an operation by IPA, and TG of one by range, for this granule.
    pub(crate) const fn tg(self) -> u64 {
        match self.granule {
            Granule::Kib4 => 0b01,
            Granule::Kib16 => 0b10,
            Granule::Kib64 => 0b11,
        }
    }

    /// log2 of the unit of BaseADDR in an operation by range.
    pub(crate) const fn base_shift(self) -> u32 {
        if self.ds { 16 } else { self.granule.page_shift() }
    }

    /// Whether TTL may name this level: one where leaves may be.
    pub(crate) const fn has_hint(self, level: u8) -> bool {
        match (self.granule, level) {
            (Granule::Kib4, 0) | (Granule::Kib16, 1) => self.ds,
            (Granule::Kib16 | Granule::Kib64, 0) => false,
            _ => true,
        }
    }

    /// The set bits of a valid descriptor that the architecture reserves, or whose meaning is not modelled (nT). A walk ignores them; software that builds tables must not set them.
    pub fn reserved_bits(self, raw: u64, level: u8, features: &Features) -> u64 {
        // Bits 49 and 48 are address bits with FEAT_LPA2; bits 15 to 12 with FEAT_LPA; otherwise those above and below the
        // address are reserved.
        let above: u64 = if self.ds { 1 << 50 } else { 7 << 48 };
        let least = if matches!(self.granule, Granule::Kib64) && self.lpa { 1 << 16 } else { 1 << 12 };
        let below = |level: u8| (self.span(level) - 1) & !(least - 1);
        let below = match self.shape(raw, level) {
            Shape::Invalid => return 0,
            Shape::Table => return raw & (0x1f << 59 | above | below(3)),
            Shape::Leaf => below(level),
        };
        let xn_0 = if features.execute_per_el { 0 } else { 1 << 53 };
        let dbm = if features.hardware_dirty_state { 0 } else { DIRTY_BY_HARDWARE };
        // In a block, also the address bits below its size, which include nT.
        let contiguous = if self.group(level) > 1 { 0 } else { CONTIGUOUS };
        raw & (contiguous | above | 1 << 11 | xn_0 | dbm | below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Features = Features::NONE.with_pa_bits(52).with_granule_16k(true).with_lpa2_4k(true).with_lpa2_16k(true);
    const DS: u64 = 1 << 32;
    const KIB_4: u64 = 0b00 << 14;
    const KIB_16: u64 = 0b10 << 14;
    const KIB_64: u64 = 0b01 << 14;

    fn format(vtcr: u64) -> Format {
        Format::of(vtcr, &CPU).unwrap()
    }

    #[test]
    fn what_a_cpu_lacks_is_refused() {
        for (vtcr, features) in [
            (0b11 << 14, CPU),
            (KIB_4, CPU.with_granule_4k(false)),
            (KIB_16, CPU.with_granule_16k(false)),
            (KIB_64, CPU.with_granule_64k(false)),
            (KIB_4 | DS, CPU.with_lpa2_4k(false)),
            (KIB_16 | DS, CPU.with_lpa2_16k(false)),
            (KIB_64 | DS, CPU),
        ] {
            assert!(Format::of(vtcr, &features).is_err(), "{vtcr:#x} {features:?}");
            assert!(Format::of(vtcr & !DS, &CPU).is_ok() || vtcr >> 14 & 3 == 0b11);
        }
    }

    /// Blocks of 512 GiB, 64 GiB and 4 TiB need the formats that hold 52 bits (Arm ARM DDI 0487K.a, D8.3.2).
    #[test]
    fn levels_with_blocks() {
        let blocks = |format: Format| [0, 1, 2, 3].map(|level| format.shape(0b01, level) == Shape::Leaf);
        assert_eq!(blocks(format(KIB_4)), [false, true, true, false]);
        assert_eq!(blocks(format(KIB_4 | DS)), [true, true, true, false]);
        assert_eq!(blocks(format(KIB_16)), [false, false, true, false]);
        assert_eq!(blocks(format(KIB_16 | DS)), [false, true, true, false]);
        assert_eq!(blocks(format(KIB_64)), [false, true, true, false]);
        let small = Format::of(KIB_64, &Features::NONE).unwrap();
        assert_eq!(blocks(small), [false, false, true, false]);
    }

    #[test]
    fn addresses_of_52_bits() {
        let lpa2 = 0x0002_4567_89ab_c3ff;
        assert_eq!(format(KIB_4 | DS).address(lpa2, 3), 0x000e_4567_89ab_c000);
        assert_eq!(format(KIB_16 | DS).address(lpa2, 3), 0x000e_4567_89ab_c000);
        assert_eq!(format(KIB_4).address(lpa2, 3), 0x0000_4567_89ab_c000);
        let lpa = 0x0000_4567_89ab_e7ff;
        assert_eq!(format(KIB_64).address(lpa, 3), 0x000e_4567_89ab_0000);
        assert_eq!(Format::of(KIB_64, &Features::NONE).unwrap().address(lpa, 3), 0x0000_4567_89ab_0000);
        assert_eq!(format(KIB_64).output(lpa, 3, 0x1234_5678), 0x000e_4567_89ab_5678);
        // VTTBR_EL2: bits 5 to 2 are bits 51 to 48.
        assert_eq!(format(KIB_64).root(0xffff_4567_89ab_0039), 0x000e_4567_89ab_0000);
        assert_eq!(format(KIB_4).root(0xffff_4567_89ab_0039), 0x0000_4567_89ab_0038);
    }

    /// Arm ARM DDI 0487K.a, D8.7.1.
    #[test]
    fn lengths_of_groups() {
        let lengths = |format: Format| [0, 1, 2, 3].map(|level| format.group(level));
        assert_eq!(lengths(format(KIB_4)), [1, 16, 16, 16]);
        assert_eq!(lengths(format(KIB_16 | DS)), [1, 1, 32, 128]);
        assert_eq!(lengths(format(KIB_64)), [1, 1, 32, 32]);
        // Where there are none, the bit is reserved.
        let block = 0x400_0000_0000 | 1 << 52 | 1 << 10 | 0b01;
        assert_eq!(format(KIB_64).reserved_bits(block, 1, &CPU), 1 << 52);
        assert_eq!(format(KIB_4).reserved_bits(block, 1, &CPU), 0);
    }

    /// An address that is moved back crosses the parts of its field.
    #[test]
    fn addresses_move_back() {
        for (format, raw) in [
            (format(KIB_4 | DS), 0x0000_0000_0000_4103),
            (format(KIB_64), 0x0000_0000_0001_2003),
            (format(KIB_4), 0x0000_8000_0000_0003),
        ] {
            let bytes = 2 * format.page();
            let moved = format.moved_back(raw, 3, bytes);
            assert_eq!(format.address(moved, 3), format.address(raw, 3) - bytes, "{format:?}");
            assert_eq!((moved ^ raw) & !format.address_field(), 0);
        }
    }

    #[test]
    fn start_levels() {
        let levels = |format: Format| [0, 1, 2, 3].map(|sl0| format.root_level(sl0 << 6));
        assert_eq!(levels(format(KIB_4)), [Some(2), Some(1), Some(0), None]);
        assert_eq!(levels(format(KIB_16)), [Some(3), Some(2), Some(1), None]);
        assert_eq!(levels(format(KIB_16 | DS)), [Some(3), Some(2), Some(1), Some(0)]);
        assert_eq!(levels(format(KIB_64)), [Some(3), Some(2), Some(1), None]);
    }

    #[test]
    fn bits_that_are_reserved() {
        let page = 0x1235_0000 | 0b11 | 1 << 10;
        for (format, raw, level, expected) in [
            (format(KIB_4 | DS), page | 3 << 48 | 3 << 8, 3, 0),
            (format(KIB_4 | DS), page | 1 << 50, 3, 1 << 50),
            (format(KIB_64), page | 0xf << 12, 3, 0),
            (format(KIB_64), page | 1 << 48, 3, 1 << 48),
            (Format::of(KIB_64, &Features::NONE).unwrap(), page | 0xf << 12, 3, 0xf << 12),
            (format(KIB_16), page | 3 << 12, 3, 3 << 12),
            (format(KIB_16), 0x8000_3003, 2, 3 << 12),
            (format(KIB_64), 0x8010_f003, 2, 0),
            (format(KIB_16), 0x0200_4001, 2, 1 << 14),
        ] {
            assert_eq!(format.reserved_bits(raw, level, &CPU.with_pa_bits(52)), expected, "{raw:#x}");
        }
    }
}
