// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `contiguous`.

use std::path::PathBuf;

use clap::Args;

use super::size::GuestSize;

/// Options of `contiguous`.
#[derive(Args, Clone, Debug)]
pub struct ContiguousOptions {
    /// Guest memory in bytes, or with M or G (powers of 1024): a power of two from 1G to 256G
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: GuestSize,
    /// Entries of the modelled TLB for stage 2
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub entries: u32,
    /// Accesses to random addresses, after as many that fill the TLB
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub accesses: u32,
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The help text below the options.
pub const HELP: &str = "\
The engine maps the guest's memory with each granule: by pages, by contiguous groups of pages, by blocks, and by contiguous
groups of blocks. The TLB is modelled: fully associative, it drops the entry that was not used for the longest time, and it
holds a group as one entry. The architecture lets a CPU do so, and requires nothing. No CPU was measured.

Every run prints the same figures.

Examples:
  twofold bench contiguous
  twofold bench contiguous --size 16G --entries 2048";
