// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of the tables, computed from the granule and the IPA size.
//!
//! A table has `granule / 8` entries, so each level resolves `log2(granule) - 3` bits. At stage 2, up to 16 contiguous
//! tables of the root level may be used as one (Arm ARM DDI 0487K.a, D8.2, "concatenated translation tables"). That
//! saves a level: the root is at the deepest level at which 16 tables cover the IPA space.

use core::fmt;

use crate::{Error, Features, Ipa, IpaRange};

/// The translation granule: the size of a page and of a table. There is one so far. Its size is a constant, so the
/// compiler does the arithmetic of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granule(());

impl Granule {
    /// Pages of 4 KiB; blocks of 2 MiB and 1 GiB.
    pub const KIB_4: Self = Self(());

    const SHIFT: u32 = 12;
    /// Under the model checker a table has two entries: it then runs every step of every operation in few repetitions.
    const STRIDE: u32 = if cfg!(loom) { 1 } else { Self::SHIFT - 3 };

    /// The size of a page in bytes.
    pub const fn size(self) -> u64 {
        1 << Self::SHIFT
    }

    /// log2 of the page size.
    pub const fn shift(self) -> u32 {
        Self::SHIFT
    }

    /// The number of address bits that one level resolves.
    pub(crate) const fn stride(self) -> u32 {
        Self::STRIDE
    }

    /// Entries of one table.
    pub const fn entries(self) -> usize {
        1 << Self::STRIDE
    }

    /// log2 of the bytes that one entry of a table at `level` covers.
    pub const fn span_shift(self, level: Level) -> u32 {
        Self::SHIFT + Self::STRIDE * (3 - level.0 as u32)
    }

    /// Bytes that one entry of a table at `level` covers.
    pub const fn span(self, level: Level) -> u64 {
        1 << self.span_shift(level)
    }
}

/// A level of the translation: level 3 holds the pages, level 0 is the farthest from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// 512 GiB an entry with the 4 KiB granule. Its entries are tables only.
    pub const L0: Self = Self(0);
    /// 1 GiB an entry with the 4 KiB granule.
    pub const L1: Self = Self(1);
    /// 2 MiB an entry with the 4 KiB granule.
    pub const L2: Self = Self(2);
    /// Pages.
    pub const L3: Self = Self(3);

    /// The level from its number; `None` above 3.
    pub const fn new(raw: u8) -> Option<Self> {
        if raw <= 3 { Some(Self(raw)) } else { None }
    }

    /// Its number.
    pub const fn raw(self) -> u8 {
        self.0
    }

    /// The next level down, where a table of this level points; `None` at the pages.
    pub const fn below(self) -> Option<Self> {
        if self.0 < 3 { Some(Self(self.0 + 1)) } else { None }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of levels. The levels that a walk skips are known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// No level.
    pub const NONE: Self = Self(0);

    /// The set with `level` added.
    pub const fn with(self, level: Level) -> Self {
        Self(self.0 | 1 << level.0)
    }

    /// Whether `level` is in the set.
    pub const fn contains(self, level: Level) -> bool {
        self.0 & 1 << level.0 != 0
    }
}

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
        let least = if cfg!(loom) { Granule::SHIFT + Granule::STRIDE } else { 32 };
        if ipa_bits < least || ipa_bits > most {
            return Err(Error::IpaBits { ipa_bits, most });
        }
        let mut levels = 1;
        while Granule::SHIFT + levels * Granule::STRIDE + CONCATENATED_BITS < ipa_bits {
            levels += 1;
        }
        let root_level = Level((4 - levels) as u8);
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
        if level.0 == self.root_level.0 {
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

    #[test]
    fn spans_of_the_4k_granule() {
        assert_eq!(Granule::KIB_4.span(Level::L3), 4 << 10);
        assert_eq!(Granule::KIB_4.span(Level::L2), 2 << 20);
        assert_eq!(Granule::KIB_4.span(Level::L1), 1 << 30);
        assert_eq!(Granule::KIB_4.span(Level::L0), 512 << 30);
    }

    #[test]
    fn there_are_four_levels() {
        let levels = [Level::L0, Level::L1, Level::L2, Level::L3].map(Some);
        assert_eq!([0, 1, 2, 3].map(Level::new), levels);
        assert_eq!([4, 5, 255].map(Level::new), [None; 3]);
        assert_eq!(levels.map(|level| level.and_then(Level::below)), [levels[1], levels[2], levels[3], None]);
        let some = Levels::NONE.with(Level::L1).with(Level::L3);
        assert_eq!(levels.map(|level| level.is_some_and(|level| some.contains(level))), [false, true, false, true]);
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
