// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The translation granule, and the format of its descriptors, as types.
//!
//! Tables of one granule are one type (`Stage2<P, Kib16>`), so the compiler does the arithmetic of each walk, and a page or
//! a descriptor of another granule does not fit. If nothing is said, the granule is [`Kib4`].
//!
//! | type | pages | blocks | output address |
//! |---|---|---|---|
//! | [`Kib4`] | 4 KiB | 2 MiB, 1 GiB | 48 bits |
//! | [`Kib4Lpa2`] | 4 KiB | 2 MiB, 1 GiB, 512 GiB | 52 bits |
//! | [`Kib16`] | 16 KiB | 32 MiB | 48 bits |
//! | [`Kib16Lpa2`] | 16 KiB | 32 MiB, 64 GiB | 52 bits |
//! | [`Kib64`] | 64 KiB | 512 MiB, and 4 TiB with FEAT_LPA | 48 bits, and 52 with FEAT_LPA |
//!
//! FEAT_LPA2 (`VTCR_EL2.DS`) gives descriptors another format, so tables with it are of a type of their own. FEAT_LPA only
//! uses bits that are zero without it.

use core::fmt;

use crate::{Features, Level};

/// A translation granule: the size of a page and of a table, and the format of descriptors.
///
/// Five types are all that the architecture has at stage 2. [`Contiguous`](crate::Contiguous) makes each of them use
/// the contiguous hint.
pub trait Granule: sealed::Sealed + Copy + Default + Eq + fmt::Debug + Send + Sync + 'static {
    /// log2 of the page size.
    const SHIFT: u32;
    /// Where a descriptor holds its address.
    #[doc(hidden)]
    const FORMAT: Format;
    /// The name of the granule in errors.
    #[doc(hidden)]
    const NAME: &'static str;
    /// Whether leaves may be contiguous groups ([`Contiguous`](crate::Contiguous)).
    #[doc(hidden)]
    const GROUPS: bool = false;

    /// The size of a page in bytes.
    const SIZE: u64 = 1 << Self::SHIFT;
    /// The number of address bits that one level resolves. Under the model checker a table has two entries: it then runs
    /// every step of every operation in few repetitions.
    #[doc(hidden)]
    const STRIDE: u32 = if cfg!(loom) { 1 } else { Self::SHIFT - 3 };
    /// Entries of one table.
    const ENTRIES: usize = 1 << Self::STRIDE;
    /// Whether an output address is one field of a descriptor, so that it can be added to.
    #[doc(hidden)]
    const IS_PLAIN: bool = matches!(Self::FORMAT, Format::Bits48);
    /// The level of the largest blocks without FEAT_LPA.
    #[doc(hidden)]
    const LARGEST: Level = match (Self::SHIFT, Self::FORMAT) {
        (12, Format::Lpa2) => Level::L0,
        (12, _) | (14, Format::Lpa2) => Level::L1,
        _ => Level::L2,
    };

    /// The size of a page in bytes.
    #[inline(always)]
    fn size(self) -> u64 {
        Self::SIZE
    }

    /// log2 of the page size.
    #[inline(always)]
    fn shift(self) -> u32 {
        Self::SHIFT
    }

    /// Entries of one table.
    #[inline(always)]
    fn entries(self) -> usize {
        Self::ENTRIES
    }

    /// log2 of the bytes that one entry of a table at `level` covers.
    #[inline(always)]
    fn span_shift(self, level: Level) -> u32 {
        span_shift::<Self>(level)
    }

    /// Bytes that one entry of a table at `level` covers.
    #[inline(always)]
    fn span(self, level: Level) -> u64 {
        1 << span_shift::<Self>(level)
    }
}

/// Where a descriptor holds its address (Arm ARM DDI 0487K.a, D8.3.1 and D8.3.2).
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Bits 47 and below are in their places.
    Bits48,
    /// Bits 49 and below are in their places, bits 51 and 50 in bits 9 and 8. There is no field for shareability.
    Lpa2,
    /// Bits 47 to 16 are in their places, bits 51 to 48 in bits 15 to 12.
    Lpa,
}

/// log2 of the bytes that one entry of a table at `level` covers.
#[inline(always)]
pub(crate) const fn span_shift<G: Granule>(level: Level) -> u32 {
    G::SHIFT + G::STRIDE * (3 - level.raw() as u32)
}

/// The level of the largest blocks on a CPU with these features.
pub(crate) const fn largest_block<G: Granule>(features: &Features) -> Level {
    if matches!(G::FORMAT, Format::Lpa) && features.pa_bits > 48 { Level::L1 } else { G::LARGEST }
}

/// The number of bits of an output address: those of the CPU, as far as descriptors of the granule hold them.
pub(crate) const fn pa_bits<G: Granule>(features: &Features) -> u32 {
    let held = descriptor_bits::<G>();
    if features.pa_bits < held { features.pa_bits } else { held }
}

/// The number of bits of an address in a descriptor of the granule.
pub(crate) const fn descriptor_bits<G: Granule>() -> u32 {
    if matches!(G::FORMAT, Format::Bits48) { 48 } else { 52 }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

macro_rules! granules {
    ($($(#[$doc:meta])* $name:ident: $shift:literal, $format:ident, $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl sealed::Sealed for $name {}

        impl Granule for $name {
            const SHIFT: u32 = $shift;
            const FORMAT: Format = Format::$format;
            const NAME: &'static str = $text;
        }

        impl $name {
            /// Bytes that one entry of a table at `level` covers, as a constant.
            pub const fn span(self, level: Level) -> u64 {
                1 << span_shift::<Self>(level)
            }

            /// The size of a page in bytes, as a constant.
            pub const fn size(self) -> u64 {
                <Self as Granule>::SIZE
            }

            /// log2 of the page size, as a constant.
            pub const fn shift(self) -> u32 {
                <Self as Granule>::SHIFT
            }

            /// Entries of one table, as a constant.
            pub const fn entries(self) -> usize {
                <Self as Granule>::ENTRIES
            }
        }
    )*};
}

granules! {
    /// Pages of 4 KiB, and addresses of at most 48 bits.
    Kib4: 12, Bits48, "4 KiB";
    /// Pages of 4 KiB with FEAT_LPA2: addresses of at most 52 bits, and blocks of 512 GiB.
    Kib4Lpa2: 12, Lpa2, "4 KiB with FEAT_LPA2";
    /// Pages of 16 KiB, and addresses of at most 48 bits.
    Kib16: 14, Bits48, "16 KiB";
    /// Pages of 16 KiB with FEAT_LPA2: addresses of at most 52 bits, and blocks of 64 GiB.
    Kib16Lpa2: 14, Lpa2, "16 KiB with FEAT_LPA2";
    /// Pages of 64 KiB. With FEAT_LPA, addresses of at most 52 bits, and blocks of 4 TiB.
    Kib64: 16, Lpa, "64 KiB";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arm ARM DDI 0487K.a, D8.2: what an entry of each level covers.
    #[test]
    fn spans_of_every_granule() {
        fn spans<G: Granule>() -> [u64; 4] {
            [Level::L0, Level::L1, Level::L2, Level::L3].map(|level| G::default().span(level))
        }
        assert_eq!(spans::<Kib4>(), [512 << 30, 1 << 30, 2 << 20, 4 << 10]);
        assert_eq!(spans::<Kib4Lpa2>(), spans::<Kib4>());
        assert_eq!(spans::<Kib16>(), [128 << 40, 64 << 30, 32 << 20, 16 << 10]);
        assert_eq!(spans::<Kib16Lpa2>(), spans::<Kib16>());
        assert_eq!(spans::<Kib64>()[1..], [4 << 40, 512 << 20, 64 << 10]);
        assert_eq!((Kib64.span(Level::L2), Kib64.size(), Kib16::ENTRIES), (512 << 20, 65536, 2048));
    }

    /// Arm ARM DDI 0487K.a, D8.3.2: which levels have blocks.
    #[test]
    fn largest_blocks() {
        let largest = |pa_bits| {
            let features = &Features { pa_bits, ..Features::NONE };
            [
                largest_block::<Kib4>(features),
                largest_block::<Kib4Lpa2>(features),
                largest_block::<Kib16>(features),
                largest_block::<Kib16Lpa2>(features),
                largest_block::<Kib64>(features),
            ]
            .map(Level::raw)
        };
        assert_eq!(largest(48), [1, 0, 2, 1, 2]);
        assert_eq!([49, 52].map(largest), [[1, 0, 2, 1, 1]; 2], "more than 48 is FEAT_LPA");
    }
}
