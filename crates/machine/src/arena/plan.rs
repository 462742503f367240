// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The size of an arena: what its options lead to, and whether that fits.

use twofold_stage2::{Pa, TableMetadata};

use super::backing::{Backing, FRAME, GIB, MIB_2};
use super::error::ArenaError;
use super::system::System;

/// The size and kind of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaOptions {
    /// The physical address of its first byte, a multiple of 1 GiB.
    pub base: Pa,
    /// Bytes that have frames of their own. Rounded up to whole pages of the backing, and to 2 MiB.
    pub dense: u64,
    /// The kind of memory behind these frames.
    pub backing: Backing,
    /// Bytes of sparse memory behind the dense memory, which share a few frames; 0 for none. Rounded up.
    pub sparse: u64,
    /// The number of bytes, from the first on, that may become tables. Only these have metadata. `None`: all dense
    /// memory.
    pub tables: Option<u64>,
}

impl ArenaOptions {
    /// Dense memory from 1 GiB on, as the RAM of QEMU's `virt`. All of it may become tables.
    pub const fn new(dense: u64, backing: Backing) -> Self {
        Self { base: Pa::new(GIB), dense, backing, sparse: 0, tables: None }
    }
}

/// The sizes that the options lead to, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) dense: u64,
    pub(super) sparse: u64,
    /// The size of the file that the sparse memory repeats.
    pub(super) chunk: u64,
    pub(super) metadata: u64,
    /// Bytes that come from the host's free memory.
    needed: u64,
}

impl Plan {
    pub(super) fn of(options: &ArenaOptions, system: &System) -> Result<Self, ArenaError> {
        if !options.base.is_aligned(GIB) || options.base.raw() == 0 {
            return Err(ArenaError::Base { base: options.base });
        }
        if options.dense == 0 {
            return Err(ArenaError::Empty);
        }
        let wide = ArenaError::TooWide { base: options.base, dense: options.dense, sparse: options.sparse };
        let most = MOST.checked_sub(options.base.raw()).ok_or(wide)?;
        if options.dense > most || options.sparse > most {
            return Err(wide);
        }
        // At most half of the mappings that a process may have; the rest of the process needs some too.
        let chunk = options.sparse.div_ceil(system.most_mappings() / 2).next_power_of_two().max(MIB_2);
        let plan = Self::with(options, chunk);
        if plan.dense + plan.sparse > most { Err(wide) } else { Ok(plan) }
    }

    fn with(options: &ArenaOptions, chunk: u64) -> Self {
        let dense = options.dense.next_multiple_of(unit(options.backing));
        let sparse = options.sparse.next_multiple_of(chunk);
        let tables = options.tables.unwrap_or(dense).min(dense).div_ceil(FRAME);
        let metadata = (tables * size_of::<TableMetadata>() as u64).next_multiple_of(FRAME);
        let taken = if options.backing.is_from_pool() { 0 } else { dense };
        let repeated = if sparse > 0 { chunk } else { 0 };
        // The host's own page tables: 8 bytes for each 4 KiB, if the host maps no larger pages.
        let needed = taken + repeated + metadata + (dense + sparse) / 512;
        Self { dense, sparse, chunk, metadata, needed }
    }

    /// Checks that the memory fits, before any of it is touched.
    pub(super) fn check(&self, options: &ArenaOptions, system: &System) -> Result<(), ArenaError> {
        if options.backing == Backing::AnonymousThp && !system.has_transparent_huge_pages() {
            return Err(ArenaError::NoTransparentHugePages { instead: Backing::Anonymous });
        }
        let free = system.available().ok_or(ArenaError::NoFigures)?;
        // A sixteenth stays free for the rest of the process.
        let usable = free - free / 16;
        if self.needed <= usable {
            return Ok(());
        }
        let fits = |units| {
            let dense = units * unit(options.backing);
            Self::with(&ArenaOptions { dense, ..*options }, self.chunk).needed <= usable
        };
        let (mut fit, mut beyond) = (0, self.dense / unit(options.backing));
        while beyond - fit > 1 {
            let middle = fit.midpoint(beyond);
            *(if fits(middle) { &mut fit } else { &mut beyond }) = middle;
        }
        Err(ArenaError::NoMemory { needed: self.needed, free, instead: fit * unit(options.backing) })
    }
}

/// The size that dense memory is a multiple of.
const fn unit(backing: Backing) -> u64 {
    if backing.page() > MIB_2 { backing.page() } else { MIB_2 }
}

/// The end of what a stage-2 table can map: 52 bits of physical address.
const MOST: u64 = 1 << 52;
