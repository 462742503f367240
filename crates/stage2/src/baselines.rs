// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Baselines: the same engine with one rule changed, as the sources (`docs/sources.md`) describe the state before their
//! technique. Behind the feature `baselines`, for benches.
//!
//! | technique | baseline | source |
//! |---|---|---|
//! | a split visits only tables with blocks | [`EveryLevel`], [`SkipChildren`]; proposed: [`SkipLeaves`] | Bras 2026 |
//! | the CPU that maps cleans the caches | [`Grant::map_cleaning_on_abort`] | Wang 2021 |
//! | the block is made before the old table is freed | [`Grant::coalesce_freeing_first`] | Wang 2021 |
//! | table pages only when a table is missing | [`Grant::map_topping_up_always`] | Wang 2021 |
//!
//! No walk here uses the tables' metadata: they look at entries only, as Linux does.

use crate::cache::{self, CacheMaintenance};
use crate::platform::Platform;
use crate::walk::{Entry, Visitor};
use crate::{
    Attributes, Coalesced, Descriptor, Error, Grant, Granule, Ipa, IpaRange, Leaf, Level, Levels, Mapped, Memory, Pool,
    Stage2, TableSource,
};

/// Which entries a split visits.
pub trait SplitPolicy {
    /// Levels that the walk does not read.
    const SKIP: Levels = Levels::NONE;
    /// Whether the walk skips the table that it has just made.
    const PASS_OVER_NEW: bool = false;
}

/// All entries: also pages, which cannot be split, and the entries of a table that was just made.
#[derive(Clone, Copy, Debug)]
pub struct EveryLevel;

/// All entries but those of a table that was just made. Bras 2026 tried this, and found it slightly slower.
#[derive(Clone, Copy, Debug)]
pub struct SkipChildren;

/// All entries but those of level 3 (Bras 2026).
#[derive(Clone, Copy, Debug)]
pub struct SkipLeaves;

impl SplitPolicy for EveryLevel {}

impl SplitPolicy for SkipChildren {
    const PASS_OVER_NEW: bool = true;
}

impl SplitPolicy for SkipLeaves {
    const SKIP: Levels = Levels::NONE.with(Level::L3);
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Splits all blocks in `range` down to pages, by a walk that visits the entries that `S` selects. Returns the
    /// number of entries that it visited, tables and leaves.
    ///
    /// # Errors
    ///
    /// As [`walk`](Self::walk), or [`Error::NoTablePage`].
    pub fn split_by<S: SplitPolicy>(&self, range: IpaRange, tables: &mut impl TableSource<G>) -> Result<u64, Error> {
        let mut split =
            SplitWalk { stage2: self, tables, policy: core::marker::PhantomData::<S>, visits: 0, made: None };
        self.walk(range, &mut split)?;
        Ok(split.visits)
    }
}

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// Cleans, and then maps if nothing is mapped yet: each CPU that faults on a block cleans it.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn map_cleaning_on_abort(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        let Self { stage2, ipa, pa, sample, .. } = self;
        let (features, span) = (stage2.features(), stage2.geometry().granule().span(level));
        self.check(span)?;
        stage2.check_leaf(ipa, pa, level)?;
        attributes.check::<G>(features)?;
        cache::before_map(stage2.platform(), features, (pa, span), CacheMaintenance::new(features, attributes));
        let new = Descriptor::leaf(pa, level, attributes, features);
        // Only a leaf that is not normal memory has to be noted in its table's metadata.
        if attributes.memory == Memory::Normal {
            return stage2.map_with::<false>(ipa, new, sample, level, CacheMaintenance::NONE, tables);
        }
        stage2.map_with::<true>(ipa, new, sample, level, CacheMaintenance::NONE, tables)
    }

    /// Coalesces, and frees the old table while nothing is mapped: the guest faults there all that time.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn coalesce_freeing_first(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error> {
        self.coalesce_in_order::<true, false>(level, attributes, tables, dirty)
    }

    /// Coalesces memory that the fault has cleaned already ([`map_cleaning_on_abort`](Self::map_cleaning_on_abort)):
    /// nothing is cleaned again. With `FREE_FIRST` the old table is freed before the block is made.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn coalesce_cleaned<const FREE_FIRST: bool>(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
        dirty: &mut dyn FnMut(Leaf<G>),
    ) -> Result<Coalesced<G>, Error> {
        self.coalesce_in_order::<FREE_FIRST, true>(level, attributes, tables, dirty)
    }

    /// Fills the pool as if each fault needed a table at every level, and then maps.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    #[inline(always)]
    pub fn map_topping_up_always<S: TableSource<G>, const N: usize>(
        self,
        level: Level,
        attributes: &Attributes,
        tables: &mut Pool<S, N, G>,
    ) -> Result<Mapped<G>, Error> {
        tables.top_up(usize::from(Level::L3.raw() - self.stage2.geometry().root_level().raw()));
        self.map(level, attributes, tables)
    }
}

struct SplitWalk<'a, P: Platform, G: Granule, T, S> {
    stage2: &'a Stage2<P, G>,
    tables: &'a mut T,
    policy: core::marker::PhantomData<S>,
    visits: u64,
    /// The address of the last table that was made.
    made: Option<Ipa>,
}

impl<P: Platform, G: Granule, T: TableSource<G>, S: SplitPolicy> Visitor<G> for SplitWalk<'_, P, G, T, S> {
    const TABLE_BEFORE: bool = true;
    const SKIP: Levels = S::SKIP;
    type Error = Error;

    #[inline(always)]
    fn table_before(&mut self, _: &Entry<G>) -> Result<(), Error> {
        self.visits += 1;
        Ok(())
    }

    #[inline(always)]
    fn leaf(&mut self, entry: &Entry<G>) -> Result<(), Error> {
        self.visits += 1;
        if entry.level < Level::L3 && entry.descriptor.is_valid() {
            self.split(entry)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn passes_over(&self, entry: &Entry<G>) -> bool {
        S::PASS_OVER_NEW && self.made == Some(entry.ipa)
    }
}

impl<P: Platform, G: Granule, T: TableSource<G>, S> SplitWalk<'_, P, G, T, S> {
    fn split(&mut self, entry: &Entry<G>) -> Result<(), Error> {
        let location = self.stage2.lockless_walk(entry.ipa, entry.level);
        if location.entry.is_leaf(entry.level)
            && self.stage2.split_block(entry.ipa, &location, Level::L3, self.tables)?
        {
            self.made = Some(entry.ipa);
        }
        Ok(())
    }
}
