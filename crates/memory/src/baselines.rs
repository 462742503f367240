// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory with one technique switched off, as the baseline that the technique is measured against (feature
//! `baselines`, in no release image).
//!
//! | technique | baseline | source |
//! |---|---|---|
//! | a split visits only tables with blocks ([`Split::Records`]) | it walks chunk by chunk; a clear has it walk word by word, as KVM does | Bras 2026 |
//! | the vCPU that maps cleans caches ([`Clean::OnMap`]) | each vCPU that faults cleans, before it looks at the tables | Wang 2021: clean on map |
//! | the block is made, then the table freed ([`Coalesce::InstallFirst`]) | the table is freed first | Wang 2021: install before free |
//! | table pages are taken where a table is missing ([`TablePages::WhenNeeded`]) | each fault first takes as many as it may need | Wang 2021: table pages when needed |
//!
//! Mapping, marking and locking are otherwise the same. A walk splits with no more table pages than KVM has for a
//! chunk, so a block of 1 GiB is split at once or level by level, as in KVM.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;
use twofold_stage2::baselines::{EveryLevel, SkipChildren, SkipLeaves};
use twofold_stage2::{Attributes, Coalesced, Error, Grant, IpaRange, Level, Mapped, Platform, TablePage, TableSource};

use crate::guest::GuestMemory;

/// How each technique is done. The default switches none off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// How a split finds blocks, when a log starts and when it is cleared.
    pub split: Split,
    /// When caches are cleaned for a mapping that a fault makes.
    pub clean: Clean,
    /// In which order a block takes the place of a table.
    pub coalesce: Coalesce,
    /// When table pages are taken.
    pub tables: TablePages,
}

/// How a split finds blocks (Bras 2026).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// By the tables' records, once for a chunk.
    #[default]
    Records,
    /// By a walk that visits all entries.
    EveryLevel,
    /// By a walk that passes over tables that it has just made (Bras RFC 2026).
    SkipChildren,
    /// By a walk that reads no level 3 entries (Bras 2026).
    SkipLeaves,
}

/// When caches are cleaned for a mapping that a fault makes (Wang 2021). CPUs that need no such cleaning (FEAT_S2FWB)
/// show no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clean {
    /// By the vCPU that makes the mapping.
    #[default]
    OnMap,
    /// By each vCPU that faults there, before it reads the tables.
    OnAbort,
}

/// In which order a block takes the place of a table (Wang 2021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coalesce {
    /// The block first.
    #[default]
    InstallFirst,
    /// The table is freed first, while nothing is mapped.
    FreeFirst,
}

/// When table pages are taken (Wang 2021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TablePages {
    /// Where a table is missing.
    #[default]
    WhenNeeded,
    /// At each fault that maps memory: a page for each level below the root. Pages that are left stay with the CPU.
    Always,
}

impl<P: Platform> GuestMemory<P> {
    /// Sets how the techniques are done from now on.
    pub fn set_policies(&mut self, policies: Policies) {
        self.before.policies = policies;
    }

    /// How the techniques are done.
    pub fn policies(&self) -> Policies {
        self.before.policies
    }

    /// Entries of tables and leaves that splits by walks have visited so far. [`Split::Records`] is not counted.
    pub fn split_visits(&self) -> u64 {
        self.before.visits.load(Ordering::Relaxed)
    }

    /// Maps as the policies say.
    #[inline(never)]
    pub(crate) fn map_as_before(
        &self,
        level: Level,
        grant: Grant<'_, P>,
        attributes: &Attributes,
    ) -> Result<Mapped, Error> {
        let mut tables = self.tables();
        let spare = || self.before.spare[this_cpu()].0.try_lock();
        let Some(mut pages) = (self.before.policies.tables == TablePages::Always).then(spare).flatten() else {
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
        grant: Grant<'_, P>,
        attributes: &Attributes,
        tables: &mut impl TableSource,
    ) -> Result<Mapped, Error> {
        match self.before.policies.clean {
            Clean::OnMap => grant.map(level, attributes, tables),
            Clean::OnAbort => grant.map_cleaning_on_abort(level, attributes, tables),
        }
    }

    /// Puts a block in the place of a table, and frees the table first.
    pub(crate) fn coalesce_freeing_first(
        &self,
        level: Level,
        grant: Grant<'_, P>,
        attributes: &Attributes,
    ) -> Result<Coalesced, Error> {
        grant.coalesce_freeing_first(level, attributes, &mut self.tables(), &mut |_| ())
    }

    /// Puts a block in the place of a table, for a fault that has cleaned all of the block's memory.
    pub(crate) fn coalesce_cleaned(
        &self,
        level: Level,
        grant: Grant<'_, P>,
        attributes: &Attributes,
    ) -> Result<Coalesced, Error> {
        let (tables, ignore) = (&mut self.tables(), &mut |_| ());
        if self.before.frees_first() {
            grant.coalesce_cleaned::<true>(level, attributes, tables, ignore)
        } else {
            grant.coalesce_cleaned::<false>(level, attributes, tables, ignore)
        }
    }

    /// Splits blocks by walks, chunk by chunk, as far as there are table pages.
    pub(crate) fn split_as_before(&self, range: IpaRange, chunk: u64) -> Result<(), Error> {
        let mut start = range.start;
        while start < range.end {
            let end = start.align_down(chunk).checked_add(chunk).unwrap_or(range.end).min(range.end);
            let pages = &mut Chunk { source: self.tables(), left: chunk.div_ceil(MIB_2) + chunk.div_ceil(GIB) };
            let split = match self.before.policies.split {
                Split::Records => return Ok(()),
                Split::EveryLevel => self.stage2.split_by::<EveryLevel>(start..end, pages),
                Split::SkipChildren => self.stage2.split_by::<SkipChildren>(start..end, pages),
                Split::SkipLeaves => self.stage2.split_by::<SkipLeaves>(start..end, pages),
            };
            match split {
                Ok(visits) => self.before.visits.fetch_add(visits, Ordering::Relaxed),
                // A block that is left is split when the guest writes to it.
                Err(Error::NoTablePage { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            start = end;
        }
        Ok(())
    }
}

/// What a guest keeps for its baselines.
#[derive(Default)]
pub(crate) struct Before {
    pub(crate) policies: Policies,
    visits: AtomicU64,
    spare: [Pages; CPUS],
}

impl Before {
    /// Whether a fault maps in another way than by default.
    #[inline(always)]
    pub(crate) fn changes_map(&self) -> bool {
        self.cleans_on_abort() || self.policies.tables != TablePages::WhenNeeded
    }

    /// Whether a fault cleans before it reads the tables.
    pub(crate) fn cleans_on_abort(&self) -> bool {
        self.policies.clean == Clean::OnAbort
    }

    /// Whether a table is freed before the block is made.
    pub(crate) fn frees_first(&self) -> bool {
        self.policies.coalesce == Coalesce::FreeFirst
    }

    /// Whether splits are walks.
    pub(crate) fn walks_to_split(&self) -> bool {
        self.policies.split != Split::Records
    }
}

/// Table pages that a CPU has at hand. Aligned so that no two CPUs' pages share a cache line.
#[derive(Default)]
#[repr(align(128))]
struct Pages(Mutex<Vec<TablePage>>);

const CPUS: usize = 32;

/// The index of this CPU's pages. CPUs are distinguished by their stacks, which are some MiB apart. If two CPUs get the
/// same index, and both fault at once, one does without.
fn this_cpu() -> usize {
    let on_stack = 0u8;
    (core::ptr::from_ref(&on_stack).addr() >> 21) % CPUS
}

/// A CPU's pages, and the source behind them.
struct Spare<'a, S> {
    pages: &'a mut Vec<TablePage>,
    source: &'a mut S,
}

impl<S: TableSource> TableSource for Spare<'_, S> {
    fn take(&mut self) -> Option<TablePage> {
        self.pages.pop().or_else(|| self.source.take())
    }

    fn give(&mut self, page: TablePage) {
        self.source.give(page);
    }
}

/// The table pages of a chunk: as many as splitting it may take in KVM.
struct Chunk<S> {
    source: S,
    left: u64,
}

impl<S: TableSource> TableSource for Chunk<S> {
    fn take(&mut self) -> Option<TablePage> {
        self.left = self.left.checked_sub(1)?;
        self.source.take()
    }

    fn give(&mut self, page: TablePage) {
        self.left += 1;
        self.source.give(page);
    }
}

const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
