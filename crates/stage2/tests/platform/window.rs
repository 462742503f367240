// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping by addresses alone, through [`Window`]s that the tests vouch for.
//!
//! The guests of these tests access nothing, a model of memory, or an arena of their own. So no address reaches other
//! memory of this process.
#![allow(dead_code, reason = "each test uses its own part")]

use twofold_stage2::{
    Attributes, Coalesced, Error, Ipa, IpaRange, Leaf, Level, Mapped, Pa, Platform, Stage2, TableSource, Window,
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
pub trait ByAddress {
    fn map(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error>;

    fn map_range(
        &self,
        range: IpaRange,
        pa: Pa,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<(), Error>;

    fn coalesce(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error>;
}

impl<P: Platform> ByAddress for Stage2<P> {
    #[inline(always)]
    fn map(
        &self,
        ipa: Ipa,
        pa: Pa,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        self.open(device(pa), ipa).map(level, attributes, tables)
    }

    fn map_range(
        &self,
        range: IpaRange,
        pa: Pa,
        largest: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
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
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error> {
        self.open(device(pa), ipa).coalesce(level, attributes, tables, dirty)
    }
}
