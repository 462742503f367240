// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contiguous hint: how many neighbouring leaves make a group, and the granule whose tables use it.
//!
//! A *group* is a run of neighbouring leaves of one table that map neighbouring memory and have the contiguous bit (Arm
//! ARM DDI 0487K.a, D8.7.1). A TLB may hold the whole group as one entry. The length of a group depends on the granule and
//! the level; a group is aligned to its size in both address spaces.
//!
//! | granule | level 1 | level 2 | level 3 |
//! |---|---|---|---|
//! | 4 KiB | 16 of 1 GiB | 16 of 2 MiB | 16 of 4 KiB |
//! | 16 KiB | | 32 of 32 MiB | 128 of 16 KiB |
//! | 64 KiB | | 32 of 512 MiB | 32 of 64 KiB |
//!
//! A group is to the engine what a block is: a leaf that is split before a part of it is changed. Module `group` has the
//! rules.

use core::fmt;
use core::ops::Range;

use crate::granule::{Format, sealed};
use crate::{Granule, Kib4, Level};

/// A granule whose tables may hold contiguous groups: `Stage2<P, Contiguous<Kib4>>`, of a geometry that
/// `Geometry::new(Contiguous(Kib4), 40, &features)` makes.
///
/// The type decides, so tables without it pay nothing. With it,
///
/// * [`Grant::map_range`](crate::Grant::map_range) makes groups wherever they fit, and
///   [`Grant::map_group`](crate::Grant::map_group) makes one, also of leaves that are mapped already;
/// * an operation on a part of a group first clears the hint of its leaves: [`unmap`](crate::Stage2::unmap),
///   [`protect`](crate::Stage2::protect), [`relax_page`](crate::Stage2::relax_page) and [`Grant::map`](crate::Grant::map).
///   [`split`](crate::Stage2::split) does this for all groups of a range;
/// * [`write_protect`](crate::Stage2::write_protect), [`relax`](crate::Stage2::relax) and [`age`](crate::Stage2::age)
///   change the whole group, as they do with a block. Hardware may set the access flag of any leaf of a group, so `age`
///   reports all of them if one has it;
/// * no leaf with DBM is in a group, since hardware may record a write in any leaf of it: setting DBM clears the hint.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Contiguous<G: Granule = Kib4>(
    /// The granule.
    pub G,
);

impl<G: Granule> sealed::Sealed for Contiguous<G> {}

impl<G: Granule> Granule for Contiguous<G> {
    const SHIFT: u32 = G::SHIFT;
    const FORMAT: Format = G::FORMAT;
    const NAME: &'static str = G::NAME;
    const GROUPS: bool = true;
}

impl<G: Granule> fmt::Debug for Contiguous<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contiguous({:?})", self.0)
    }
}

/// The number of leaves of a group at `level`; 1 if there are no groups.
#[inline(always)]
pub const fn group_length<G: Granule>(level: Level) -> usize {
    if !G::GROUPS {
        return 1;
    }
    if cfg!(loom) {
        // Tables have two entries.
        return if level.raw() == 3 { 2 } else { 1 };
    }
    match (G::SHIFT, level.raw()) {
        (12, 1..) => 16,
        (14, 3) => 128,
        (14, 2) | (16, 2..) => 32,
        _ => 1,
    }
}

/// The most leaves of a group, at any level.
pub(crate) const MOST_GROUPED: usize = 128;

/// The indexes of the leaves that make a group with the one at `index`, if they are one.
#[inline(always)]
pub(crate) const fn group_around<G: Granule>(index: usize, level: Level) -> Range<usize> {
    let length = group_length::<G>(level);
    let start = index & !(length - 1);
    start..start + length
}

/// The bytes that a group at `level` maps.
#[inline(always)]
pub(crate) const fn group_size<G: Granule>(level: Level) -> u64 {
    (group_length::<G>(level) as u64) << crate::granule::span_shift::<G>(level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kib4Lpa2, Kib16, Kib64};

    /// Arm ARM DDI 0487K.a, D8.7.1.
    #[test]
    fn lengths_of_groups() {
        fn lengths<G: Granule>() -> [usize; 4] {
            [Level::L0, Level::L1, Level::L2, Level::L3].map(group_length::<G>)
        }
        assert_eq!(lengths::<Kib4>(), [1; 4], "only the type that says so has groups");
        assert_eq!(lengths::<Contiguous<Kib4>>(), [1, 16, 16, 16]);
        assert_eq!(lengths::<Contiguous<Kib4Lpa2>>(), [1, 16, 16, 16]);
        assert_eq!(lengths::<Contiguous<Kib16>>(), [1, 1, 32, 128]);
        assert_eq!(lengths::<Contiguous<Kib64>>(), [1, 1, 32, 32]);
        assert_eq!(group_size::<Contiguous<Kib16>>(Level::L3), 2 << 20);
        assert_eq!(group_size::<Contiguous<Kib64>>(Level::L2), 16 << 30);
        assert_eq!(group_around::<Contiguous<Kib16>>(300, Level::L3), 256..384);
    }
}
