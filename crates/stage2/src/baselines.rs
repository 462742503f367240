// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the engine's techniques are measured against: the same engine with one rule changed, as the sources describe
//! the state before them. Behind the feature `baselines`, for benches.
//!
//! | technique | before | source |
//! |---|---|---|
//! | splitting visits tables with blocks only | [`EveryLevel`], [`SkipChildren`]; [`SkipLeaves`] is the source's proposal | S0 |
//! | caches are cleaned by who maps | [`Grant::map_cleaning_on_abort`] | S4 |
//! | the block is made before the old table is freed | [`Grant::coalesce_freeing_first`] | S4 |
//! | table pages only where a table is missing | [`Grant::map_topping_up_always`] | S4 |
//!
//! None of the walks here uses the tables' records: they look at entries alone, as Linux's do.

use crate::cache::{self, Upkeep};
use crate::platform::Platform;
use crate::walk::{Entry, Visitor};
use crate::{
    Attributes, Coalesced, Descriptor, Error, Grant, Ipa, IpaRange, Leaf, Level, Levels, Mapped, Memory, Pool, Stage2,
    TableSource,
};

/// Which entries a split visits.
pub trait SplitPolicy {
    /// Levels that are not even read.
    const SKIP: Levels = Levels::NONE;
    /// Whether a table that was made just now is passed over.
    const PASS_OVER_NEW: bool = false;
}

/// All of them: also pages, which cannot be split, and those of a table that was made just now.
#[derive(Clone, Copy, Debug)]
pub struct EveryLevel;

/// All but those of a table that was made just now (the first version of source S0).
#[derive(Clone, Copy, Debug)]
pub struct SkipChildren;

/// None of level 3 (source S0).
#[derive(Clone, Copy, Debug)]
pub struct SkipLeaves;

impl SplitPolicy for EveryLevel {}

impl SplitPolicy for SkipChildren {
    const PASS_OVER_NEW: bool = true;
}

impl SplitPolicy for SkipLeaves {
    const SKIP: Levels = Levels::NONE.with(Level::L3);
}

impl<P: Platform> Stage2<P> {
    /// Splits all blocks in `range` down to pages by a walk over what `S` says; returns how many entries it visited,
    /// tables and leaves.
    ///
    /// # Errors
    ///
    /// The range is no good, or [`Error::NoTablePage`].
    pub fn split_by<S: SplitPolicy>(&self, range: IpaRange, tables: &mut impl TableSource) -> Result<u64, Error> {
        let mut split =
            SplitWalk { stage2: self, tables, policy: core::marker::PhantomData::<S>, visits: 0, made: None };
        self.walk(range, &mut split)?;
        Ok(split.visits)
    }
}

impl<P: Platform> Grant<'_, P> {
    /// Maps, and cleans before looking whether there is anything to map: each CPU that faults for a block cleans it.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn map_cleaning_on_abort(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        let Self { stage2, ipa, pa, .. } = self;
        let (features, span) = (stage2.features(), stage2.geometry().granule().span(level));
        self.check(span)?;
        stage2.check_leaf(ipa, pa, level)?;
        attributes.access.check(features)?;
        cache::before_map(stage2.platform(), features, (pa, span), Upkeep::new(features, attributes));
        let new = Descriptor::leaf(pa, level, attributes, features);
        // Were it no normal memory, it would have to be noted.
        if attributes.memory == Memory::Normal {
            return stage2.map_with::<false>(ipa, new, level, Upkeep::NONE, tables);
        }
        stage2.map_with::<true>(ipa, new, level, Upkeep::NONE, tables)
    }

    /// Coalesces, and frees the old table while nothing is mapped: other CPUs fault there all that time.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn coalesce_freeing_first(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error> {
        self.coalesce_in_order::<true, false>(level, attributes, tables, dirty)
    }

    /// Coalesces what a fault has cleaned before it looked ([`map_cleaning_on_abort`](Self::map_cleaning_on_abort)): nothing is
    /// cleaned again. The old table is freed first if it is to be `FREE_FIRST`.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn coalesce_cleaned<const FREE_FIRST: bool>(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource,
        dirty: &mut dyn FnMut(Leaf),
    ) -> Result<Coalesced, Error> {
        self.coalesce_in_order::<FREE_FIRST, true>(level, attributes, tables, dirty)
    }

    /// Maps, and fills the pool before, as if each fault might need a table at every level.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    #[inline(always)]
    pub fn map_topping_up_always<S: TableSource, const N: usize>(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut Pool<S, N>,
    ) -> Result<Mapped, Error> {
        tables.top_up(usize::from(Level::L3.raw() - self.stage2.geometry().root_level().raw()));
        self.map(level, attributes, tables)
    }
}

struct SplitWalk<'a, P: Platform, T, S> {
    stage2: &'a Stage2<P>,
    tables: &'a mut T,
    policy: core::marker::PhantomData<S>,
    visits: u64,
    /// Where a table was made last.
    made: Option<Ipa>,
}

impl<P: Platform, T: TableSource, S: SplitPolicy> Visitor for SplitWalk<'_, P, T, S> {
    const TABLE_BEFORE: bool = true;
    const SKIP: Levels = S::SKIP;
    type Error = Error;

    #[inline(always)]
    fn table_before(&mut self, _: &Entry) -> Result<(), Error> {
        self.visits += 1;
        Ok(())
    }

    #[inline(always)]
    fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
        self.visits += 1;
        if entry.level < Level::L3 && entry.descriptor.is_valid() {
            self.split(entry)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn passes_over(&self, entry: &Entry) -> bool {
        S::PASS_OVER_NEW && self.made == Some(entry.ipa)
    }
}

impl<P: Platform, T: TableSource, S> SplitWalk<'_, P, T, S> {
    fn split(&mut self, entry: &Entry) -> Result<(), Error> {
        let place = self.stage2.descend(entry.ipa, entry.level);
        if place.entry.is_leaf(entry.level) && self.stage2.split_block(entry.ipa, &place, Level::L3, self.tables)? {
            self.made = Some(entry.ipa);
        }
        Ok(())
    }
}
