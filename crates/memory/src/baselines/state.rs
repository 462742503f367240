// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest keeps for its baselines: its policies, a count, and table pages at hand.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use spin::{Mutex, MutexGuard};
use twofold_stage2::{Granule, TablePage};
use twofold_workload::policies::{Cmo, Coalesce, Policies, Split, Tables};

/// What a guest keeps for its baselines.
pub(crate) struct Baselines<G: Granule> {
    pub(super) policies: Policies,
    /// Returns the number of the CPU that calls it.
    pub(super) this_cpu: fn() -> usize,
    /// Entries that splits by walks have visited.
    pub(super) visits: AtomicU64,
    spare: [SparePages<G>; CPUS],
}

/// Table pages that a CPU has at hand. Aligned so that no two CPUs' pages share a cache line.
#[repr(align(128))]
struct SparePages<G: Granule>(Mutex<Vec<TablePage<G>>>);

/// The number of CPUs that have pages of their own.
const CPUS: usize = 32;

impl<G: Granule> Default for Baselines<G> {
    fn default() -> Self {
        let spare = core::array::from_fn(|_| SparePages(Mutex::default()));
        Self { policies: Policies::default(), this_cpu: || 0, visits: AtomicU64::new(0), spare }
    }
}

impl<G: Granule> Baselines<G> {
    /// Whether a fault maps in another way than by default.
    #[inline(always)]
    pub(crate) fn changes_map(&self) -> bool {
        self.cleans_on_abort() || self.policies.tables != Tables::WhenNeeded
    }

    /// Whether a fault cleans before it reads the tables.
    pub(crate) fn cleans_on_abort(&self) -> bool {
        self.policies.cmo == Cmo::OnAbort
    }

    /// Whether a table is freed before the block is made.
    pub(crate) fn frees_first(&self) -> bool {
        self.policies.coalesce == Coalesce::FreeFirst
    }

    /// Whether splits are walks.
    pub(crate) fn walks_to_split(&self) -> bool {
        self.policies.split != Split::Records
    }

    /// The table pages that this CPU has at hand. `None` if another CPU with the same number modulo [`CPUS`] uses them:
    /// this CPU does without.
    pub(super) fn spare_pages(&self) -> Option<MutexGuard<'_, Vec<TablePage<G>>>> {
        self.spare[(self.this_cpu)() % CPUS].0.try_lock()
    }
}
