// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The granule of the guests' tables, for which the image is built: 4 KiB, or that of the feature `granule-16k` or
//! `granule-64k`. So the image for 4 KiB has no instruction for it.
//!
//! The guest's own tables, and the pages of the control protocol, are of 4 KiB whatever this is. EL2's own tables are, too.

use twofold_memory::GuestMemory;
use twofold_stage2::Granule;

use crate::experiment::EnginePlatform;

#[cfg(not(any(feature = "granule-16k", feature = "granule-64k")))]
pub use twofold_stage2::Kib4 as GuestGranule;
/// A huge page of RAM, 2 MiB, is 128 pages: a contiguous group.
#[cfg(feature = "granule-16k")]
pub type GuestGranule = twofold_stage2::Contiguous<twofold_stage2::Kib16>;
/// A huge page of RAM, 2 MiB, is 32 pages: a contiguous group.
#[cfg(feature = "granule-64k")]
pub type GuestGranule = twofold_stage2::Contiguous<twofold_stage2::Kib64>;

/// The granule of the guests' tables, as a value.
#[cfg(not(any(feature = "granule-16k", feature = "granule-64k")))]
pub const GRANULE: GuestGranule = twofold_stage2::Kib4;
/// The granule of the guests' tables, as a value.
#[cfg(feature = "granule-16k")]
pub const GRANULE: GuestGranule = twofold_stage2::Contiguous(twofold_stage2::Kib16);
/// The granule of the guests' tables, as a value.
#[cfg(feature = "granule-64k")]
pub const GRANULE: GuestGranule = twofold_stage2::Contiguous(twofold_stage2::Kib64);

/// A guest's memory.
pub type Memory = GuestMemory<EnginePlatform, GuestGranule>;

/// Bytes in a page of a guest's tables.
pub const PAGE: u64 = <GuestGranule as Granule>::SIZE;

/// The leaves of each level, as the figures name them.
#[cfg(not(any(feature = "granule-16k", feature = "granule-64k")))]
pub const LEAVES: [&str; 3] = ["pages_4k", "blocks_2m", "blocks_1g"];
/// The leaves of each level, as the figures name them. Level 1 has none without FEAT_LPA2.
#[cfg(feature = "granule-16k")]
pub const LEAVES: [&str; 3] = ["pages_16k", "blocks_32m", "blocks_64g"];
/// The leaves of each level, as the figures name them.
#[cfg(feature = "granule-64k")]
pub const LEAVES: [&str; 3] = ["pages_64k", "blocks_512m", "blocks_4t"];

/// First touches that map a leaf of each level, as the figures name them.
#[cfg(not(any(feature = "granule-16k", feature = "granule-64k")))]
pub const FIRST_TOUCHES: [&str; 3] = ["first_touch_4k", "first_touch_2m", "first_touch_1g"];
/// First touches that map a leaf of each level, as the figures name them.
#[cfg(feature = "granule-16k")]
pub const FIRST_TOUCHES: [&str; 3] = ["first_touch_16k", "first_touch_32m", "first_touch_64g"];
/// First touches that map a leaf of each level, as the figures name them.
#[cfg(feature = "granule-64k")]
pub const FIRST_TOUCHES: [&str; 3] = ["first_touch_64k", "first_touch_512m", "first_touch_4t"];
