// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subject of a published number: the measurement of ours that is comparable.

use crate::experiment::page_table::Stage;
use crate::experiment::setup::Backing;
use crate::options::FaultMode;

/// The measurement of ours next to a published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A call that splits, in the dirty log's experiment.
    Split {
        /// Which call.
        scenario: Scenario,
        /// The backing, which sets the size of the mappings.
        backing: Backing,
    },
    /// The split only, as the source timed it inside the kernel.
    SplitAlone {
        /// The backing, which sets the size of the mappings.
        backing: Backing,
    },
    /// A phase of the combined dirty log.
    Log {
        /// The phase.
        part: Part,
    },
    /// A stage of the page table's experiment.
    Stage {
        /// The technique that is switched.
        technique: Technique,
        /// The backing, which sets the size of the mappings.
        backing: Backing,
        /// Total GiB of the published experiment.
        gib: u64,
        /// vCPUs of the published experiment.
        vcpus: usize,
        /// The stage.
        stage: Stage,
    },
    /// The work of `bm` beside mode `off`.
    AsyncFault {
        /// The mode.
        mode: FaultMode,
    },
    /// Redis in a Linux that moves.
    Redis {
        /// The figure.
        figure: RedisFigure,
    },
}

/// The two scenarios of Bras 2026.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// Enabling the log splits the whole memslot, once.
    Enable,
    /// Each clear splits the pages that it clears.
    Clear,
}

/// A phase of the dirty log's experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The guest writes.
    Dirty,
    /// The log reports the dirty pages.
    Get,
    /// The log is cleared.
    Clear,
    /// All three: a cost that moves is not saved.
    Sum,
}

/// A figure of Redis in a Linux that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedisFigure {
    /// The time of the benchmark.
    Benchmark,
    /// The time of the migration.
    Migration,
}

/// The patches of Wang 2021.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Technique {
    /// Patch 1: the vCPU that maps cleans the caches.
    Cmo,
    /// Patch 2: the block is installed before the old tables are freed.
    Coalesce,
}
