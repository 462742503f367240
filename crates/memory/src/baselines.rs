// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory with one of its techniques as it was before: what each is measured against (feature `baselines`, in no
//! image that is released).
//!
//! | technique | before | source |
//! |---|---|---|
//! | a split looks only where blocks are ([`Split::Records`]) | it walks, chunk by chunk; a clear has it walk word by word, as KVM does | S0 |
//! | caches are cleaned by who maps ([`Clean::OnMap`]) | by who faults, before it looks | S4 |
//! | the block is made, then the table freed ([`Coalesce::InstallFirst`]) | the other way round | S4 |
//! | table pages are taken where a table is missing ([`TablePages::WhenNeeded`]) | each fault has so many at hand as it may need | S4 |
//!
//! All the rest is the same: who maps, who marks, who is locked out. What a walk splits is bounded by the pages that KVM has
//! for a chunk, so that a block of 1 GiB goes down at once or level by level as there.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Mutex;
use twofold_stage2::baselines::{EveryLevel, SkipChildren, SkipLeaves};
use twofold_stage2::{Attributes, Coalesced, Error, Grant, IpaRange, Level, Mapped, Platform, TablePage, TableSource};

use crate::guest::GuestMemory;

/// How each technique is done. By default: as everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// How blocks are found that are to be split, when a log starts and when it is cleared.
    pub split: Split,
    /// When caches are cleaned for what a fault maps.
    pub clean: Clean,
    /// In which order a block takes the place of a table.
    pub coalesce: Coalesce,
    /// When table pages are taken.
    pub tables: TablePages,
}

/// How blocks are found that are to be split (source S0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// By the tables' records, once for a chunk.
    #[default]
    Records,
    /// By a walk that visits all entries.
    EveryLevel,
    /// By one that passes over tables it has made just now: the source's first version.
    SkipChildren,
    /// By one that reads no pages' entries: the source's proposal.
    SkipLeaves,
}

/// When caches are cleaned for what a fault maps (source S4). Without a difference where CPUs need no such cleaning
/// (FEAT_S2FWB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clean {
    /// By the one vCPU that maps it.
    #[default]
    OnMap,
    /// By each that faults there, before it looks what is mapped.
    OnAbort,
}

/// In which order a block takes the place of a table (source S4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coalesce {
    /// The block first.
    #[default]
    InstallFirst,
    /// The table is freed first, while nothing is mapped.
    FreeFirst,
}

/// When table pages are taken (source S4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TablePages {
    /// Where a table is missing.
    #[default]
    WhenNeeded,
    /// For each fault that maps something: a page for each level below the root. What is left stays with the CPU.
    Always,
}

impl<P: Platform> GuestMemory<P> {
    /// Has the techniques done like this, from now on.
    pub fn set_policies(&mut self, policies: Policies) {
        self.before.policies = policies;
    }

    /// How the techniques are done.
    pub fn policies(&self) -> Policies {
        self.before.policies
    }

    /// Entries, of tables and leaves, that splits have visited so far by walks. What goes by records ([`Split::Records`])
    /// is not counted.
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

    /// Puts a block in the place of a table, which is freed first.
    pub(crate) fn coalesce_freeing_first(
        &self,
        level: Level,
        grant: Grant<'_, P>,
        attributes: &Attributes,
    ) -> Result<Coalesced, Error> {
        grant.coalesce_freeing_first(level, attributes, &mut self.tables(), &mut |_| ())
    }

    /// Puts a block in the place of a table for a fault that has cleaned all of it.
    pub(crate) fn coalesce_cleaned(
        &self,
        level: Level,
        grant: Grant<'_, P>,
        attributes: &Attributes,
    ) -> Result<Coalesced, Error> {
        let (tables, nobody) = (&mut self.tables(), &mut |_| ());
        if self.before.frees_first() {
            grant.coalesce_cleaned::<true>(level, attributes, tables, nobody)
        } else {
            grant.coalesce_cleaned::<false>(level, attributes, tables, nobody)
        }
    }

    /// Splits what blocks there are by walks, chunk by chunk, as far as there are table pages.
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
                // What is left is split when the guest writes there.
                Err(Error::NoTablePage { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            start = end;
        }
        Ok(())
    }
}

/// What a guest keeps for it.
#[derive(Default)]
pub(crate) struct Before {
    pub(crate) policies: Policies,
    visits: AtomicU64,
    spare: [Pages; CPUS],
}

impl Before {
    /// Whether a fault maps in another way.
    #[inline(always)]
    pub(crate) fn changes_map(&self) -> bool {
        self.cleans_on_abort() || self.policies.tables != TablePages::WhenNeeded
    }

    /// Whether a fault cleans before it looks.
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

/// Pages that a CPU has at hand, alone in their lines.
#[derive(Default)]
#[repr(align(128))]
struct Pages(Mutex<Vec<TablePage>>);

const CPUS: usize = 32;

/// Which of them are this CPU's: CPUs are told apart by their stacks, some MiB from each other. Where two have the same ones,
/// and both are at it, one does without.
fn this_cpu() -> usize {
    let on_stack = 0u8;
    (core::ptr::from_ref(&on_stack).addr() >> 21) % CPUS
}

/// A CPU's pages, and where others come from, and go to.
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

/// The pages of a chunk: as many as splitting it may take.
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
