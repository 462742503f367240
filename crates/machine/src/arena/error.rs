// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reason why an arena cannot be made: what it needs, what the host has, and what would work instead.

use rustix::io::Errno;
use twofold_stage2::Pa;

use super::backing::Backing;

/// The reason why an arena cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The first physical address is 0 or not a multiple of 1 GiB.
    #[error("the machine's memory starts at {base}: it has to start at a multiple of 1 GiB, 0x40000000 at least")]
    Base {
        /// The address that was asked for.
        base: Pa,
    },
    /// The options ask for no dense memory.
    #[error("the machine needs memory for tables at least: take 2 MiB")]
    Empty,
    /// The memory ends beyond 48 bits of physical address.
    #[error("{} MiB from {base} on do not fit into 48 bits of physical address", dense.saturating_add(*sparse) >> 20)]
    TooWide {
        /// The first physical address.
        base: Pa,
        /// Bytes of dense memory that were asked for.
        dense: u64,
        /// Bytes of sparse memory that were asked for.
        sparse: u64,
    },
    /// Linux does not report how much memory is free, so none is taken.
    #[error("/proc/meminfo has no MemAvailable, so it is unknown whether the machine's memory would fit")]
    NoFigures,
    /// The arena needs more memory than the host has free, or than the control group allows.
    #[error(
        "the machine's memory needs {} MiB, and {} MiB are free here: {}",
        needed.div_ceil(1 << 20), free >> 20, smaller(*instead)
    )]
    NoMemory {
        /// Bytes that the arena needs, including metadata and the host's own page tables.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes of dense memory that would fit.
        instead: u64,
    },
    /// The pool does not have enough free huge pages.
    #[error(
        "the machine's memory needs {needed} huge pages of {} MiB, and {free} are free: write {needed} to \
         /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages as root, or take {instead}",
        size >> 20, size >> 10
    )]
    NoHugePages {
        /// Bytes of a page.
        size: u64,
        /// The number of pages that the arena needs.
        needed: u64,
        /// The number of free pages.
        free: u64,
        /// The kind of memory with the largest pages that the host can give.
        instead: Backing,
    },
    /// Transparent huge pages are off.
    #[error("transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled): take {instead}")]
    NoTransparentHugePages {
        /// The kind of memory with the largest pages that the host can give.
        instead: Backing,
    },
    /// The host refused a system call.
    #[error("cannot {what} for {} MiB of the machine's memory: {errno}", size.div_ceil(1 << 20))]
    Refused {
        /// The action that the host refused.
        what: &'static str,
        /// The number of bytes it was for.
        size: u64,
        /// The error that the host returned.
        errno: Errno,
    },
}

fn smaller(instead: u64) -> String {
    if instead == 0 { "no memory of that kind would fit".into() } else { format!("{} MiB would fit", instead >> 20) }
}
