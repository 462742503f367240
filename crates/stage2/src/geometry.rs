// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of the tables, computed from the granule and the IPA size.
//!
//! A table has `granule / 8` entries, so each level resolves `log2(granule) - 3` bits. At stage 2, up to 16 contiguous
//! tables of the root level may be used as one (Arm ARM DDI 0487K.a, D8.2, "concatenated translation tables"). That
//! saves a level. The root is at the deepest level at which 16 tables, and at most 8192 entries, cover the IPA space: that
//! is 16 tables of the 4 KiB granule, 4 of 16 KiB, and 1 of 64 KiB. It is at level 2 or above, so that there are blocks.

use core::marker::PhantomData;

use crate::contiguous::{group_length, group_size};
use crate::granule::{Format, descriptor_bits, largest_block, pa_bits, span_shift};
use crate::{Error, Features, Granule, Ipa, IpaRange, Kib4, Level};

/// The shape of one guest's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry<G: Granule = Kib4> {
    ipa_bits: u32,
    pa_bits: u32,
    root_level: Level,
    largest_block: Level,
    /// log2 of the bytes that an entry of the root covers. Stored, since every walk begins with it.
    root_shift: u32,
    granule: PhantomData<G>,
}

/// log2 of the most entries of a root, whose table metadata counts them in 14 bits.
const MOST_ROOT_BITS: u32 = 13;

impl<G: Granule> Geometry<G> {
    /// log2 of the most root tables that this engine concatenates. The architecture has at most 16 (Arm ARM DDI 0487K.a,
    /// D8.2), and [`MOST_ROOT_BITS`] is a limit of the engine.
    const CONCATENATED_BITS: u32 = if cfg!(loom) {
        0
    } else if MOST_ROOT_BITS - G::STRIDE < 4 {
        MOST_ROOT_BITS - G::STRIDE
    } else {
        4
    };

    /// The shape for an IPA space of `ipa_bits`.
    ///
    /// # Errors
    ///
    /// * [`Error::Granule`] if stage 2 of the CPU does not have the granule, or not with FEAT_LPA2.
    /// * [`Error::IpaBits`] if `ipa_bits` is below 32, or more than the CPU's physical addresses have. With 16 KiB and less
    ///   than 42 bits of physical address it is at most 38: walks may not start at level 1 then.
    /// * [`Error::IpaBitsOfGranule`] if `ipa_bits` is more than the granule's descriptors hold: 48 without FEAT_LPA2.
    pub const fn new(granule: G, ipa_bits: u32, features: &Features) -> Result<Self, Error> {
        let _ = granule;
        if !features.has_granule::<G>() {
            return Err(Error::Granule { granule: G::NAME });
        }
        let (held, pa_bits) = (descriptor_bits::<G>(), pa_bits::<G>(features));
        let least = if cfg!(loom) { G::SHIFT + G::STRIDE } else { 32 };
        if ipa_bits > held && ipa_bits <= features.pa_bits {
            return Err(Error::IpaBitsOfGranule { ipa_bits, granule: G::NAME });
        }
        // A walk of the 16 KiB granule may start at level 1 only if physical addresses have 42 bits (Arm ARM DDI 0487K.a,
        // J1.1, `AArch64.S2InvalidSL`). Level 2 covers 38 bits with the tables that this engine concatenates. The other
        // granules' rules hold by themselves: an IPA space that needs the level is at least as large.
        let at_level_2 = span_shift::<G>(Level::L1) + Self::CONCATENATED_BITS;
        let most = if G::SHIFT == 14 && pa_bits < 42 && pa_bits > at_level_2 { at_level_2 } else { pa_bits };
        if ipa_bits < least || ipa_bits > most {
            return Err(Error::IpaBits { ipa_bits, most });
        }
        // At least two levels: a root of pages would have no blocks.
        let mut levels = if cfg!(loom) { 1 } else { 2 };
        while G::SHIFT + levels * G::STRIDE + Self::CONCATENATED_BITS < ipa_bits {
            levels += 1;
        }
        let root_level = Level::of_root(levels);
        let (root_shift, largest_block) = (span_shift::<G>(root_level), largest_block::<G>(features));
        Ok(Self { ipa_bits, pa_bits, root_level, largest_block, root_shift, granule: PhantomData })
    }

    /// Checks that these tables may be used on a CPU with these features: they have the granule, and the bits of physical
    /// address. All else follows from these (see [`new`](Self::new)).
    pub(crate) fn check_features(&self, features: &Features) -> Result<(), Error> {
        if !features.has_granule::<G>() {
            return Err(Error::Granule { granule: G::NAME });
        }
        if self.pa_bits > features.pa_bits {
            return Err(Error::GeometryOfOtherCpu { bits: self.pa_bits, most: features.pa_bits });
        }
        Ok(())
    }

    /// The granule.
    #[inline(always)]
    pub fn granule(&self) -> G {
        G::default()
    }

    /// The number of bits of an output address: those of the CPU, as far as descriptors hold them.
    pub const fn pa_bits(&self) -> u32 {
        self.pa_bits
    }

    /// The level of the largest blocks that may be mapped.
    pub const fn largest_block(&self) -> Level {
        if self.largest_block.raw() > self.root_level.raw() { self.largest_block } else { self.root_level }
    }

    /// Whether leaves of `level` may be mapped.
    #[inline(always)]
    pub(crate) const fn has_leaves(&self, level: Level) -> bool {
        self.may_have_leaves(level) && level.raw() >= self.root_level.raw()
    }

    /// [`has_leaves`](Self::has_leaves), for the level of a table of these tables.
    #[inline(always)]
    pub(crate) const fn may_have_leaves(&self, level: Level) -> bool {
        // The level is a constant for all granules but one.
        let largest = if matches!(G::FORMAT, Format::Lpa) { self.largest_block } else { G::LARGEST };
        level.raw() >= largest.raw()
    }

    /// The number of bits of an IPA.
    pub const fn ipa_bits(&self) -> u32 {
        self.ipa_bits
    }

    /// The level at which a walk starts.
    pub const fn root_level(&self) -> Level {
        self.root_level
    }

    /// log2 of the bytes that an entry of the root covers.
    pub(crate) const fn root_shift(&self) -> u32 {
        self.root_shift
    }

    /// Entries of the root, all its concatenated tables together.
    pub const fn root_entries(&self) -> usize {
        1 << (self.ipa_bits - self.root_shift)
    }

    /// The number of concatenated tables that make up the root: 1, 2, 4, 8 or 16.
    pub const fn root_tables(&self) -> usize {
        self.root_entries().div_ceil(G::ENTRIES)
    }

    /// The size of the root in bytes, a multiple of the granule. The root must be aligned to it.
    pub const fn root_size(&self) -> u64 {
        self.root_tables() as u64 * G::SIZE
    }

    /// The index of `ipa`'s entry in its table at `level`; in the root, over all concatenated tables.
    #[inline]
    pub const fn index(&self, ipa: Ipa, level: Level) -> usize {
        if level.raw() == self.root_level.raw() {
            (ipa.raw() >> span_shift::<G>(level)) as usize
        } else {
            self.index_below_root(ipa, level)
        }
    }

    /// [`index`](Self::index) for a level below the root's.
    pub(crate) const fn index_below_root(&self, ipa: Ipa, level: Level) -> usize {
        (ipa.raw() >> span_shift::<G>(level)) as usize & (G::ENTRIES - 1)
    }

    /// The bytes that a contiguous group of `level` maps. `None` if leaves of `level` make no groups, or if the IPA space is
    /// smaller than one.
    pub(crate) const fn group_size(&self, level: Level) -> Option<u64> {
        let size = group_size::<G>(level);
        if group_length::<G>(level) > 1 && size <= self.end().raw() { Some(size) } else { None }
    }

    /// The end of the IPA space: the first address that is not in it.
    pub const fn end(&self) -> Ipa {
        Ipa::new(1 << self.ipa_bits)
    }

    /// Checks that `range` is not empty, is made of whole pages, and is inside the IPA space.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`], [`Error::EmptyRange`], [`Error::OutsideIpa`].
    pub fn check(&self, range: &IpaRange) -> Result<(), Error> {
        for address in [range.start, range.end] {
            if !address.is_aligned(G::SIZE) {
                return Err(Error::Misaligned { address: address.raw(), size: G::SIZE });
            }
        }
        if range.start >= range.end {
            return Err(Error::EmptyRange { start: range.start, end: range.end });
        }
        if range.end > self.end() {
            return Err(Error::OutsideIpa { ipa: range.start.max(self.end()), bits: self.ipa_bits });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contiguous, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64};

    fn geometry(ipa_bits: u32) -> Geometry {
        Geometry::new(Kib4, ipa_bits, &Features::NONE).unwrap()
    }

    /// Arm ARM DDI 0487K.a, D8.2, tables of the 4 KiB granule at stage 2: 32 to 34 bits start at level 2 with 4 to 16
    /// tables. 39 bits fill one table of level 1, and 40 to 43 concatenate 2 to 16. 44 bits need level 0.
    #[test]
    fn roots_of_every_ipa_size() {
        for (bits, level, tables, entries) in [
            (32, 2, 4, 2048),
            (33, 2, 8, 4096),
            (34, 2, 16, 8192),
            (35, 1, 1, 32),
            (39, 1, 1, 512),
            (40, 1, 2, 1024),
            (42, 1, 8, 4096),
            (43, 1, 16, 8192),
            (44, 0, 1, 32),
            (48, 0, 1, 512),
        ] {
            let g = geometry(bits);
            assert_eq!(
                (g.root_level().raw(), g.root_tables(), g.root_entries()),
                (level, tables, entries),
                "{bits} bits"
            );
            assert_eq!(g.root_size(), tables as u64 * 4096);
        }
    }

    #[test]
    fn every_ipa_size_is_covered_exactly() {
        for bits in 32..=48 {
            let g = geometry(bits);
            assert_eq!(g.root_entries() as u64 * Kib4.span(g.root_level()), g.end().raw());
            assert!(g.root_tables() <= 16);
            assert_eq!(g.index(Ipa::new(g.end().raw() - 1), g.root_level()), g.root_entries() - 1);
        }
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        for bits in [0, 31, 49, 64] {
            assert!(matches!(Geometry::new(Kib4, bits, &Features::NONE), Err(Error::IpaBits { most: 48, .. })));
        }
        let large = Features { pa_bits: 52, ..Features::NONE };
        assert!(Geometry::new(Kib4, 48, &large).is_ok());
        let refused = Geometry::new(Kib4, 49, &large);
        assert_eq!(refused, Err(Error::IpaBitsOfGranule { ipa_bits: 49, granule: "4 KiB" }), "more needs FEAT_LPA2");
        let refused = Geometry::new(Kib4, 52, &large);
        assert_eq!(refused, Err(Error::IpaBitsOfGranule { ipa_bits: 52, granule: "4 KiB" }), "the CPU has as many");
        let small = Features { pa_bits: 40, ..Features::NONE };
        assert_eq!(Geometry::new(Kib4, 41, &small), Err(Error::IpaBits { ipa_bits: 41, most: 40 }));
    }

    /// Everything that the architecture has.
    const LARGE: Features =
        Features { pa_bits: 52, granule_16k: true, lpa2_4k: true, lpa2_16k: true, ..Features::NONE };

    fn shape<G: Granule>(granule: G, bits: u32) -> (u8, usize, usize) {
        let g = Geometry::new(granule, bits, &LARGE).unwrap();
        assert_eq!(g.root_entries() as u64 * granule.span(g.root_level()), g.end().raw(), "{granule:?}, {bits} bits");
        assert_eq!(g.root_size(), g.root_tables() as u64 * G::SIZE);
        (g.root_level().raw(), g.root_tables(), g.root_entries())
    }

    /// Arm ARM DDI 0487K.a, D8.2: the tables of the other granules at stage 2.
    #[test]
    fn roots_of_every_granule() {
        for (bits, expected) in [(40, (1, 2, 1024)), (48, (0, 1, 512)), (49, (0, 2, 1024)), (52, (0, 16, 8192))] {
            assert_eq!(shape(Kib4Lpa2, bits), expected, "{bits} bits");
        }
        for (bits, expected) in
            [(32, (2, 1, 128)), (36, (2, 1, 2048)), (38, (2, 4, 8192)), (39, (1, 1, 8)), (47, (1, 1, 2048))]
        {
            assert_eq!(shape(Kib16, bits), expected, "{bits} bits");
            assert_eq!(shape(Kib16Lpa2, bits), expected, "{bits} bits");
        }
        assert_eq!(shape(Kib16, 48), (1, 2, 4096), "level 0 needs FEAT_LPA2");
        for (bits, expected) in [(49, (1, 4, 8192)), (50, (0, 1, 8)), (52, (0, 1, 32))] {
            assert_eq!(shape(Kib16Lpa2, bits), expected, "{bits} bits");
        }
        for (bits, expected) in
            [(32, (2, 1, 8)), (42, (2, 1, 8192)), (43, (1, 1, 2)), (48, (1, 1, 64)), (52, (1, 1, 1024))]
        {
            assert_eq!(shape(Kib64, bits), expected, "{bits} bits");
        }
    }

    #[test]
    fn a_group_is_not_larger_than_the_ipa_space() {
        let size = |bits, level| Geometry::new(Contiguous(Kib64), bits, &LARGE).unwrap().group_size(level);
        assert_eq!([33, 34].map(|bits| size(bits, Level::L2)), [None, Some(16 << 30)]);
        assert_eq!(size(33, Level::L3), Some(2 << 20));
        assert_eq!(size(52, Level::L1), None, "blocks of 4 TiB make no groups");
        assert_eq!(geometry(48).group_size(Level::L3), None);
    }

    #[test]
    fn granules_that_the_cpu_lacks_are_refused() {
        let refused = |granule| Some(Error::Granule { granule });
        let none = Features {
            granule_4k: false,
            granule_16k: false,
            granule_64k: false,
            lpa2_4k: false,
            lpa2_16k: false,
            ..LARGE
        };
        assert_eq!(Geometry::new(Kib4, 40, &none).err(), refused("4 KiB"));
        assert_eq!(Geometry::new(Kib16, 40, &none).err(), refused("16 KiB"));
        assert_eq!(Geometry::new(Kib64, 40, &none).err(), refused("64 KiB"));
        assert_eq!(Geometry::new(Kib4Lpa2, 40, &none).err(), refused("4 KiB with FEAT_LPA2"));
        assert_eq!(Geometry::new(Kib16Lpa2, 40, &none).err(), refused("16 KiB with FEAT_LPA2"));
        assert_eq!(
            Geometry::new(Kib16, 49, &LARGE).err(),
            Some(Error::IpaBitsOfGranule { ipa_bits: 49, granule: "16 KiB" })
        );
        let narrow = Features { pa_bits: 40, ..LARGE };
        assert_eq!(Geometry::new(Kib16, 39, &narrow).err(), Some(Error::IpaBits { ipa_bits: 39, most: 38 }));
        assert_eq!(Geometry::new(Kib16, 38, &narrow).map(|g| g.root_level()), Ok(Level::L2));
        let wider = Features { pa_bits: 42, ..LARGE };
        assert_eq!(Geometry::new(Kib16, 39, &wider).map(|g| g.root_level()), Ok(Level::L1));
        let smaller = Features { pa_bits: 36, ..LARGE };
        assert_eq!(Geometry::new(Kib16, 37, &smaller).err(), Some(Error::IpaBits { ipa_bits: 37, most: 36 }));
        let short = Features { pa_bits: 48, ..LARGE };
        assert_eq!(Geometry::new(Kib64, 49, &short).err(), Some(Error::IpaBits { ipa_bits: 49, most: 48 }));
        assert_eq!(Geometry::new(Kib4Lpa2, 53, &LARGE).err(), Some(Error::IpaBits { ipa_bits: 53, most: 52 }));
        let larger = Features { pa_bits: 56, ..LARGE };
        let refused = Geometry::new(Kib64, 53, &larger).err();
        assert_eq!(refused, Some(Error::IpaBitsOfGranule { ipa_bits: 53, granule: "64 KiB" }));
    }

    /// Leaves are below the root's level, and not above the largest block's.
    #[test]
    fn levels_that_have_leaves() {
        fn levels<G: Granule>(granule: G, bits: u32, features: &Features) -> [bool; 4] {
            let g = Geometry::new(granule, bits, features).unwrap();
            let has = [Level::L0, Level::L1, Level::L2, Level::L3].map(|level| g.has_leaves(level));
            let largest = has.iter().position(|has| *has);
            assert_eq!(largest, Some(usize::from(g.largest_block().raw())), "{granule:?}, {bits} bits");
            has
        }
        let small = Features { granule_16k: true, lpa2_4k: true, lpa2_16k: true, ..Features::NONE };
        let above = |level| [0, 1, 2, 3].map(|at| at >= level);
        assert_eq!(levels(Kib4, 48, &LARGE), above(1));
        assert_eq!(levels(Kib4, 34, &LARGE), above(2));
        assert_eq!(levels(Kib4Lpa2, 48, &small), above(0));
        assert_eq!(levels(Kib4Lpa2, 40, &small), above(1));
        assert_eq!(levels(Kib16, 48, &LARGE), above(2));
        assert_eq!(levels(Kib16Lpa2, 48, &small), above(1));
        assert_eq!(levels(Kib64, 48, &small), above(2), "4 TiB needs FEAT_LPA");
        assert_eq!(levels(Kib64, 48, &LARGE), above(1));
        assert_eq!(levels(Kib64, 42, &LARGE), above(2));
    }

    #[test]
    fn ranges_are_checked() {
        let g = geometry(40);
        let range = |start, end| Ipa::new(start)..Ipa::new(end);
        assert!(g.check(&range(0, 1 << 40)).is_ok());
        assert!(matches!(g.check(&range(0, 4097)), Err(Error::Misaligned { address: 4097, .. })));
        assert!(matches!(g.check(&range(4096, 4096)), Err(Error::EmptyRange { .. })));
        assert!(matches!(g.check(&range(8192, 4096)), Err(Error::EmptyRange { .. })));
        assert!(matches!(g.check(&range(0, (1 << 40) + 4096)), Err(Error::OutsideIpa { .. })));
    }
}
