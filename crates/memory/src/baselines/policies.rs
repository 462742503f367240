// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How each technique is done, as the embedder chooses.

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
