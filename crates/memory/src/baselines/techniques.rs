// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The techniques, done as a guest's policies say.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use twofold_stage2::baselines::{EveryLevel, SkipChildren, SkipLeaves};
use twofold_stage2::{
    Attributes, Coalesced, Error, Grant, Granule, IpaRange, Level, Mapped, Platform, TablePage, TableSource,
};
use twofold_workload::policies::{Cmo, Policies, Split, Tables};

use crate::guest::GuestMemory;

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Sets how the techniques are done from now on. `this_cpu` returns the number of the CPU that calls it, for table
    /// pages that a CPU has at hand ([`Tables::Always`]). CPUs that share a number do without now and then.
    pub fn set_policies(&mut self, policies: Policies, this_cpu: fn() -> usize) {
        self.baselines.policies = policies;
        self.baselines.this_cpu = this_cpu;
    }

    /// How the techniques are done.
    pub fn policies(&self) -> Policies {
        self.baselines.policies
    }

    /// Entries of tables and leaves that splits by walks have visited so far. [`Split::Records`] is not counted.
    pub fn split_visits(&self) -> u64 {
        self.baselines.visits.load(Ordering::Relaxed)
    }

    /// Maps as the policies say.
    #[inline(never)]
    pub(crate) fn map_by_policies(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
    ) -> Result<Mapped<G>, Error> {
        let mut tables = self.tables();
        let always = self.baselines.policies.tables == Tables::Always;
        let Some(mut pages) = always.then(|| self.baselines.spare_pages()).flatten() else {
            return self.map_and_clean(level, grant, attributes, &mut tables);
        };
        let levels = usize::from(Level::L3.raw() - self.stage2.geometry().root_level().raw());
        while pages.len() < levels {
            let Some(page) = tables.take() else { break };
            pages.push(page);
        }
        self.map_and_clean(level, grant, attributes, &mut Spare { pages: &mut pages, source: &mut tables })
    }

    fn map_and_clean(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        match self.baselines.policies.cmo {
            Cmo::OnMap => grant.map(level, attributes, tables),
            Cmo::OnAbort => grant.map_cleaning_on_abort(level, attributes, tables),
        }
    }

    /// Puts a block in the place of a table, and frees the table first.
    pub(crate) fn coalesce_freeing_first(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
    ) -> Result<Coalesced<G>, Error> {
        grant.coalesce_freeing_first(level, attributes, &mut self.tables(), &mut |_| ())
    }

    /// Puts a block in the place of a table, for a fault that has cleaned all of the block's memory.
    pub(crate) fn coalesce_cleaned(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
    ) -> Result<Coalesced<G>, Error> {
        let (tables, ignore) = (&mut self.tables(), &mut |_| ());
        if self.baselines.frees_first() {
            grant.coalesce_cleaned::<true>(level, attributes, tables, ignore)
        } else {
            grant.coalesce_cleaned::<false>(level, attributes, tables, ignore)
        }
    }

    /// Splits blocks by walks, chunk by chunk, as far as there are table pages.
    pub(crate) fn split_by_policies(&self, range: IpaRange, chunk: u64) -> Result<(), Error> {
        let mut start = range.start;
        while start < range.end {
            let end = start.align_down(chunk).checked_add(chunk).unwrap_or(range.end).min(range.end);
            let pages = &mut Chunk { source: self.tables(), left: chunk.div_ceil(MIB_2) + chunk.div_ceil(GIB) };
            let split = match self.baselines.policies.split {
                Split::Records => return Ok(()),
                Split::EveryLevel => self.stage2.split_by::<EveryLevel>(start..end, pages),
                Split::SkipChildren => self.stage2.split_by::<SkipChildren>(start..end, pages),
                Split::SkipLeaves => self.stage2.split_by::<SkipLeaves>(start..end, pages),
            };
            match split {
                Ok(visits) => self.baselines.visits.fetch_add(visits, Ordering::Relaxed),
                // A block that is left is split when the guest writes to it.
                Err(Error::NoTablePage { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            start = end;
        }
        Ok(())
    }
}

/// A CPU's pages, and the source behind them.
struct Spare<'a, S, G: Granule> {
    pages: &'a mut Vec<TablePage<G>>,
    source: &'a mut S,
}

impl<S: TableSource<G>, G: Granule> TableSource<G> for Spare<'_, S, G> {
    fn take(&mut self) -> Option<TablePage<G>> {
        self.pages.pop().or_else(|| self.source.take())
    }

    fn give(&mut self, page: TablePage<G>) {
        self.source.give(page);
    }
}

/// The table pages of a chunk: as many as splitting it may take in KVM.
struct Chunk<S> {
    source: S,
    left: u64,
}

impl<S: TableSource<G>, G: Granule> TableSource<G> for Chunk<S> {
    fn take(&mut self) -> Option<TablePage<G>> {
        self.left = self.left.checked_sub(1)?;
        self.source.take()
    }

    fn give(&mut self, page: TablePage<G>) {
        self.left += 1;
        self.source.give(page);
    }
}

const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
