// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of the tables, computed from the granule and the IPA size.
//!
//! A table has `granule / 8` entries, so each level resolves `log2(granule) - 3` bits. At stage 2, up to 16 contiguous
//! tables of the root level may be used as one (Arm ARM DDI 0487K.a, D8.2, "concatenated translation tables"). That
//! saves a level: the root is at the deepest level at which 16 tables cover the IPA space.

use crate::{Error, Features, Granule, Ipa, IpaRange, Level};

/// The shape of one guest's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    granule: Granule,
    ipa_bits: u32,
    root_level: Level,
    /// log2 of the bytes that an entry of the root covers. Stored, since every walk begins with it.
    root_shift: u32,
}

/// log2 of the most root tables that may be concatenated: 16 (Arm ARM DDI 0487K.a, D8.2).
const CONCATENATED_BITS: u32 = if cfg!(loom) { 0 } else { 4 };

impl Geometry {
    /// The shape for an IPA space of `ipa_bits` (32 to 48, and at most the CPU's physical address size).
    pub const fn new(granule: Granule, ipa_bits: u32, features: &Features) -> Result<Self, Error> {
        let most = if features.pa_bits < 48 { features.pa_bits } else { 48 };
        let least = if cfg!(loom) { granule.shift() + granule.stride() } else { 32 };
        if ipa_bits < least || ipa_bits > most {
            return Err(Error::IpaBits { ipa_bits, most });
        }
        let mut levels = 1;
        while granule.shift() + levels * granule.stride() + CONCATENATED_BITS < ipa_bits {
            levels += 1;
        }
        let root_level = Level::of_root(levels);
        Ok(Self { granule, ipa_bits, root_level, root_shift: granule.span_shift(root_level) })
    }

    /// The granule.
    pub const fn granule(&self) -> Granule {
        self.granule
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
        self.root_entries().div_ceil(self.granule.entries())
    }

    /// The size of the root in bytes, a multiple of the granule. The root must be aligned to it.
    pub const fn root_size(&self) -> u64 {
        self.root_tables() as u64 * self.granule.size()
    }

    /// The index of `ipa`'s entry in its table at `level`; in the root, over all concatenated tables.
    #[inline]
    pub const fn index(&self, ipa: Ipa, level: Level) -> usize {
        if level.raw() == self.root_level.raw() {
            (ipa.raw() >> self.granule.span_shift(level)) as usize
        } else {
            self.index_below_root(ipa, level)
        }
    }

    /// [`index`](Self::index) for a level below the root's.
    pub(crate) const fn index_below_root(&self, ipa: Ipa, level: Level) -> usize {
        (ipa.raw() >> self.granule.span_shift(level)) as usize & (self.granule.entries() - 1)
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
            if !address.is_aligned(self.granule.size()) {
                return Err(Error::Misaligned { address: address.raw(), size: self.granule.size() });
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

    fn geometry(ipa_bits: u32) -> Geometry {
        Geometry::new(Granule::KIB_4, ipa_bits, &Features::NONE).unwrap()
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
            assert_eq!(g.root_entries() as u64 * Granule::KIB_4.span(g.root_level()), g.end().raw());
            assert!(g.root_tables() <= 16);
            assert_eq!(g.index(Ipa::new(g.end().raw() - 1), g.root_level()), g.root_entries() - 1);
        }
    }

    #[test]
    fn sizes_out_of_bounds_are_refused() {
        for bits in [0, 31, 49, 64] {
            assert!(matches!(
                Geometry::new(Granule::KIB_4, bits, &Features::NONE),
                Err(Error::IpaBits { most: 48, .. })
            ));
        }
        let large = Features { pa_bits: 52, ..Features::NONE };
        assert!(Geometry::new(Granule::KIB_4, 48, &large).is_ok());
        let refused = Geometry::new(Granule::KIB_4, 49, &large);
        assert_eq!(refused, Err(Error::IpaBits { ipa_bits: 49, most: 48 }), "more needs FEAT_LPA2");
        let small = Features { pa_bits: 40, ..Features::NONE };
        assert_eq!(Geometry::new(Granule::KIB_4, 41, &small), Err(Error::IpaBits { ipa_bits: 41, most: 40 }));
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
