// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why there is no arena: what was needed, what there is, and what would do instead.

use rustix::io::Errno;
use twofold_stage2::Pa;

use super::Backing;

/// Why there is no arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The first physical address is 0 or no multiple of 1 GiB.
    #[error("the machine's memory starts at {base}: it has to start at a multiple of 1 GiB, 0x40000000 at least")]
    Base {
        /// That address.
        base: Pa,
    },
    /// No dense memory was asked for.
    #[error("the machine needs memory for tables at least: take 2 MiB")]
    Empty,
    /// It ends behind what 48 bits of physical address reach.
    #[error("{} MiB from {base} on do not fit into 48 bits of physical address", dense.saturating_add(*sparse) >> 20)]
    TooWide {
        /// The first physical address.
        base: Pa,
        /// Bytes of dense memory that were asked for.
        dense: u64,
        /// Bytes of sparse memory that were asked for.
        sparse: u64,
    },
    /// Linux does not say how much memory is free, so none is taken.
    #[error("/proc/meminfo has no MemAvailable: nobody can tell whether the machine's memory would fit")]
    NoFigures,
    /// More memory would be needed than is free, or than the control group may have.
    #[error(
        "the machine's memory needs {} MiB, and {} MiB are free here: {}",
        needed.div_ceil(1 << 20), free >> 20, smaller(*instead)
    )]
    NoMemory {
        /// Bytes that all of it needs, with records and the host's own tables.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes of dense memory that would fit.
        instead: u64,
    },
    /// The pool does not have so many huge pages.
    #[error(
        "the machine's memory needs {needed} huge pages of {} MiB, and {free} are free: write {needed} to \
         /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages as root, or take {instead}",
        size >> 20, size >> 10
    )]
    NoHugePages {
        /// Bytes of a page.
        size: u64,
        /// How many are needed.
        needed: u64,
        /// How many are free.
        free: u64,
        /// The largest pages that there are.
        instead: Backing,
    },
    /// They are switched off.
    #[error("transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled): take {instead}")]
    NoTransparentHugePages {
        /// The largest pages that there are.
        instead: Backing,
    },
    /// The system refused.
    #[error("cannot {what} for {} MiB of the machine's memory: {errno}", size.div_ceil(1 << 20))]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// For how many bytes.
        size: u64,
        /// What it said.
        errno: Errno,
    },
}

fn smaller(instead: u64) -> String {
    if instead == 0 { "nothing of that kind would fit".into() } else { format!("{} MiB would fit", instead >> 20) }
}
