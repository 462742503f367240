// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping by addresses alone, through [`Window`]s that the tests vouch for.
//!
//! The guests of these tests access nothing, a model of memory, or an arena of their own. So no address reaches other
//! memory of this process.
#![allow(dead_code, reason = "each test uses its own part")]

use twofold_stage2::{
    Attributes, Coalesced, Error, Granule, Ipa, IpaRange, Kib4, Leaf, Level, Mapped, Pa, Platform, Stage2, TableSource,
    Window,
};

/// A window of physical memory from `pa` on.
pub const fn window(pa: Pa, size: u64) -> Window {
    // SAFETY: see the module's documentation.
    unsafe { Window::new(pa, size) }
}

/// A window of a device's registers from `pa` on.
pub const fn device(pa: Pa) -> Window {
    window(pa, u64::MAX)
}

/// The operations that map, by address.
pub trait ByAddress<G: Granule = Kib4> {
    fn map(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error>;

    fn map_range(
        &self,
        range: IpaRange,
        pa: Pa,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<(), Error>;

    fn coalesce(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error>;
}

impl<P: Platform, G: Granule> ByAddress<G> for Stage2<P, G> {
    #[inline(always)]
    fn map(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        self.open(device(pa), ipa).map(level, attributes, tables)
    }

    fn map_range(
        &self,
        range: IpaRange,
        pa: Pa,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<(), Error> {
        let size = range.end.raw().saturating_sub(range.start.raw());
        self.open(window(pa, size), range.start).map_range(largest, attributes, tables)
    }

    fn coalesce(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error> {
        self.open(device(pa), ipa).coalesce(level, attributes, tables, dirty)
    }
}
