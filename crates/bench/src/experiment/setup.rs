// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment is set up with.
//!
//! Invariant: what is here names a variant; two variants that are compared differ in one field.

use twofold_memory::dirty::Tracker;
use twofold_pattern::mode::Mode;

/// A guest, its memory, and the rules of its hypervisor.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// How its stage 1 is set up.
    pub mode: Mode,
    /// vCPUs.
    pub vcpus: usize,
    /// Bytes of a region: of each vCPU's, or where they overlap, of the one that they share.
    pub region: u64,
    /// Whether all vCPUs share one region.
    pub overlap: bool,
    /// Slots that the memory is divided among.
    pub slots: usize,
    /// What the memory is made of, and with that how large its mappings may be.
    pub backing: Backing,
    /// How writes are tracked.
    pub tracker: Tracker,
    /// How much is split at once ahead of the guest's writes; 0: nothing.
    pub chunk: u64,
    /// Each of the techniques, or what was before it.
    pub policies: Policies,
    /// Whether the CPU forces guests' accesses to be write-back (FEAT_S2FWB), so that no cache needs cleaning.
    pub forced_write_back: bool,
}

/// What a guest's memory is made of, by the names of KVM's selftests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Backing {
    /// Anonymous memory, mapped by pages of 4 KiB
    Anonymous,
    /// Anonymous memory in transparent huge pages, mapped by blocks of 2 MiB
    AnonymousThp,
    /// Huge pages of 2 MiB from the system's pool
    #[value(name = "anonymous_hugetlb_2mb")]
    AnonymousHugetlb2M,
    /// Huge pages of 1 GiB: on the machine made of any memory that is contiguous, as only its tables see it
    #[value(name = "anonymous_hugetlb_1gb")]
    AnonymousHugetlb1G,
    /// A memory file, mapped by pages of 4 KiB
    Shmem,
    /// Huge pages of a shared pool, of the system's default size
    SharedHugetlb,
}

/// The techniques of the sources, each as it is or as it was before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// Which entries a split visits (S0).
    pub split: Split,
    /// Who cleans caches (S4).
    pub cmo: Cmo,
    /// When the old tables go (S4).
    pub coalesce: Coalesce,
    /// When table pages are taken (S4).
    pub tables: Tables,
}

/// Which entries a split visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Split {
    /// Tables that have blocks below them, by their records
    #[default]
    Records,
    /// None of level 3 (S0)
    SkipLeaves,
    /// All but those of a table that was made just now (S0's first version)
    SkipChildren,
    /// All, as Linux 6.12
    EveryLevel,
}

/// Who cleans caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Cmo {
    /// The vCPU that maps
    #[default]
    OnMap,
    /// Each vCPU that faults
    OnAbort,
}

/// When the tables go that a block takes the place of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Coalesce {
    /// After the block is there
    #[default]
    InstallFirst,
    /// Before
    FreeFirst,
}

/// When table pages are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Tables {
    /// Where a table is missing
    #[default]
    WhenNeeded,
    /// At each fault, as many as it might need
    Always,
}
