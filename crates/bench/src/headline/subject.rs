// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a published number is of, in the words of our experiments.

use crate::experiment::page_table::Stage;
use crate::experiment::setup::Backing;

/// Which measurement of ours stands beside a published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A call that splits, in the dirty log's experiment.
    Split {
        /// Which call.
        scenario: Scenario,
        /// What the memory is mapped by.
        backing: Backing,
    },
    /// The split alone, as the source timed it inside the kernel.
    SplitAlone {
        /// What the memory is mapped by.
        backing: Backing,
    },
    /// A phase of the dirty log, by software and hardware combined.
    Log {
        /// Which.
        part: Part,
    },
    /// A stage of the page table's experiment.
    Stage {
        /// What is switched.
        technique: Technique,
        /// What the memory is mapped by.
        backing: Backing,
        /// GiB in all, there.
        gib: u64,
        /// vCPUs, there.
        vcpus: usize,
        /// Which stage.
        stage: Stage,
    },
    /// Of what is not here yet.
    Later(&'static str),
}

/// S0's two scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// The log's start splits all of the slot, once.
    Enable,
    /// Each clear splits what it clears.
    Clear,
}

/// What the dirty log's experiment is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The guest writes.
    Dirty,
    /// The log tells.
    Get,
    /// And is cleared.
    Clear,
    /// All three: what was moved is not saved.
    Sum,
}

/// S4's patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Technique {
    /// Caches are cleaned by who maps.
    Cmo,
    /// The block is installed before the old tables are freed.
    Coalesce,
}
