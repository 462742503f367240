// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stage-2 translation tables for arm64: what a hypervisor maps its guests' memory with.
//!
//! `no_std`, no allocator, no knowledge of virtual machines. The user brings a [`Platform`] (on a CPU that is
//! `arm64::Arm64` and where frames are mapped), memory ([`Donated`]) and a source of table pages
//! ([`TableSource`]); [`Stage2`] does the rest: which entries to write, in which order, with which TLB
//! invalidations, barriers and cache operations between.
//!
//! # The rules that are kept here
//!
//! * **Operands and sequences are encoded in this crate and nowhere else** (modules [`tlb`] and `cache`).
//! * A valid entry never changes its output address, type or size without break-before-make (module `map`).
//! * Nothing that an old entry reached is given back before the flush that ends its life has completed: the
//!   types [`Pending`], [`Flushed`] and [`Detached`] say so.
//! * An operation that fails leaves valid tables and can be repeated.
//!
//! # Locking
//!
//! One writer: operations that change a tree take `&mut self`. Hardware walks and updates of access flag and
//! dirty state happen at any time, so every access to an entry is atomic, and every change of a valid leaf a
//! read-modify-write (module `table`).
//!
//! # Not yet
//!
//! Other granules than 4 KiB, changes from several CPUs at once, splitting ahead of need and putting blocks
//! together again.
#![cfg_attr(not(test), no_std)]

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub mod arm64;

pub mod fault;
pub mod platform;
pub mod tlb;
pub mod walk;

mod address;
mod age;
mod attributes;
mod cache;
mod coalesce;
mod descent;
mod descriptor;
mod detached;
mod error;
mod features;
mod flush;
mod frame;
mod geometry;
mod map;
mod map_range;
mod pass;
mod protect;
mod record;
mod registers;
mod relax;
mod split;
mod stage2;
mod table;
mod unmap;

pub use address::{Ipa, IpaRange, Pa, Vmid};
pub use age::Marked;
pub use attributes::{Access, Attributes, Execute, Memory, Shareability};
pub use coalesce::Coalesced;
pub use descriptor::Descriptor;
pub use error::Error;
pub use features::{Features, IdRegisters};
pub use flush::{Flushed, Pending};
pub use frame::{Donated, Root, Run, TablePage, TableSource};
pub use geometry::{Geometry, Granule, Level, Levels};
pub use map::Mapped;
pub use platform::Platform;
pub use record::{Record, RecordRange, Records};
pub use relax::Relaxed;
pub use split::{Split, Stopped};
pub use stage2::{Leaf, Stage2};
pub use tlb::Thresholds;
pub use unmap::{Removed, Unwatched};
