// SPDX-License-Identifier: Apache-2.0 OR MIT
#![doc = include_str!("../README.md")]
//!
//! # Example
//!
//! Every operation takes `&self`, so any CPU may call any of them at any time. `examples/minimal.rs` is a whole embedder.
//!
//! ```
//! # use core::ops::ControlFlow;
//! # use twofold_stage2::*;
//! fn maintain<P: Platform>(
//!     stage2: &Stage2<P>,
//!     (lent, ipa): (&Lent, Ipa),
//!     (slot, other, mask): (IpaRange, Ipa, u64),
//!     tables: &mut impl TableSource,
//! ) -> Result<(), Error> {
//!     // The right to map memory that was lent to these tables, for these addresses.
//!     let Some(grant) = stage2.grant(lent, ipa, 2 << 20) else { return Ok(()) };
//!     let _ = grant.map(Level::L2, &Attributes::ram(Access::READ_WRITE), tables)?;
//!     let _ = stage2.split(slot.clone(), 1 << 30, tables, |_, _| ControlFlow::Continue(()))?;
//!
//!     let mut pending = stage2.write_protect(slot.clone())?;
//!     // If this call fails, `pending` is dropped, which flushes.
//!     pending.join(stage2.write_protect_mask(other, mask)?);
//!     let _ = pending.complete(); // one flush for both
//!
//!     let mut removed = Vec::new();
//!     let pending = stage2.unmap(slot, tables, |leaf| removed.push(leaf))?;
//!     let flushed = pending.complete();
//!     let freed = flushed.free(tables); // does not compile before the flush
//!     for leaf in removed.iter().filter_map(|leaf| leaf.open(&freed)) {
//!         println!("{} is free", leaf.descriptor.address()); // does not compile before `freed`
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # The rules that this crate keeps
//!
//! * **This crate encodes every operand and orders every sequence** (modules [`tlb`] and `cache`). The platform only
//!   executes.
//! * A valid entry never changes its output address, type or size without break-before-make (Arm ARM DDI 0487K.a, D8.16.1;
//!   module `map`).
//! * Nothing that an old entry reached is given back before the flush that ends its life is complete. Table pages stay
//!   inside a [`Pending`] until [`Pending::complete`] turns it into a [`Flushed`], and freeing them consumes that.
//! * An operation that fails leaves valid tables, and can be repeated.
//!
//! # Locking
//!
//! Walks take no lock, an entry is changed under its table's lock, and no lock of a linked table is held during a flush or a
//! callback, with one exception (FEAT_BBM level 2). Page [`pages::locking`] has the protocol, whose steps (W1 to W4, U1 to
//! U6, M1 to M5, T1 to T7) the modules refer to.
//!
//! # What may be mapped
//!
//! A guest reaches what its tables map, and the engine cleans it. So only a [`Grant`] maps, and no safe call makes a grant for
//! memory that its caller has not vouched for:
//!
//! * Donated memory ([`Donated::new`] is unsafe) is lent to a tree by value. While it is lent it is no table, no part of
//!   another tree, and in no pool of free frames. *The engine* returns it as a [`Run`] only when nothing of it is mapped and
//!   the flush is complete ([`Stage2::withdraw`], [`Stage2::vacate`], [`Stage2::destroy`]). Grants that were made before a
//!   withdrawal map nothing afterwards.
//! * The embedder vouches for devices, and for RAM that is not donated, by [`Window::new`], which is unsafe and states what is
//!   promised.
//!
//! *The caller* gives each guest its own VMID, or has them shared ([`Vmids`]), and loads no tables that are destroyed: see
//! [`Stage2::new`] and [`Stage2::destroy`].
//!
//! # Caches
//!
//! The owner of memory reaches it by a cacheable mapping, so the cache may fill lines of it at any time, whatever a guest does.
//!
//! *The engine* cleans and invalidates (`DC CIVAC`) the lines of
//!
//! * a leaf that it is about to make, if the leaf is non-cacheable, or normal memory without FEAT_S2FWB: what the owner wrote
//!   is in memory then, and no later write-back overwrites what the guest writes. A caller may have a block's memory cleaned
//!   before, in pieces ([`CleanedPieces`]), and treats what it writes after that separately;
//! * such a leaf that goes, after the flush that ends the guest's access: the owner reads what the guest wrote. A single leaf
//!   is cleaned before it is reported. The leaves of a table that goes as a whole are cleaned before its [`Flushed`] is freed;
//! * a leaf whose memory type changes at the same address ([`Grant::map`], [`Grant::coalesce`]), between its break and its
//!   make, whichever the types are.
//!
//! Normal memory that FEAT_S2FWB forces to be cached needs none of this: all accesses to it are coherent.
//!
//! *The caller*
//!
//! * writes memory through its own mapping only before it is mapped, or while FEAT_S2FWB forces it to be cached. Otherwise
//!   the write-back of the dirty line overwrites what the guest wrote to the same line;
//! * cleans and invalidates RAM that it maps as [`Memory::Device`], before it is mapped and after the flush that ends that.
//!   The engine never touches the lines of a device, which may have no cacheable mapping at all.
//!
//! # Geometry
//!
//! Tables have a granule of 4, 16 or 64 KiB, which is a type: `Stage2<P, Kib16>`. Without it, they are [`Kib4`]. FEAT_LPA2
//! (52 bits with 4 and 16 KiB) changes the format of descriptors, so it is a type of its own: [`Kib4Lpa2`], [`Kib16Lpa2`].
//! [`Kib64`] has 52 bits where the CPU has FEAT_LPA. The trait [`Granule`] has the table.
//!
//! [`Geometry::new`] refuses a granule that stage 2 of the CPU does not have, and an IPA space that is larger than the CPU's
//! physical addresses or than the granule's descriptors hold. Mapping refuses a level that has no blocks
//! ([`Error::NoLeafAtLevel`]), and with FEAT_LPA2 each shareability but inner shareable, which descriptors do not hold.
//!
//! Limits that are the engine's and not the architecture's:
//!
//! * IPA spaces have at least 32 bits, and roots are at level 2 or above. A root has at most 8192 entries, so 4 tables of
//!   16 KiB are concatenated at most, and none of 64 KiB: some sizes take one level more than they need. On a CPU with less
//!   than 42 bits of physical address, IPA spaces of the 16 KiB granule have at most 38 bits.
//! * A block of level 0 (512 GiB, [`Kib4Lpa2`]) is mapped, split and unmapped, but replaces no table: unmap the range first.
//! * [`FrameMap`] and [`CleanedPieces`] are of 2 MiB, as blocks of the 4 KiB granule.
//!
//! Tables of [`Contiguous<Kib4>`](Contiguous), or of another granule in its place, use the contiguous hint: neighbouring leaves
//! make a group, which a TLB may hold as one entry.
#![cfg_attr(not(test), no_std)]

#[cfg(feature = "hosted")]
extern crate std;

#[cfg(any(doc, all(target_arch = "aarch64", not(miri))))]
pub mod arm64;
#[cfg(feature = "baselines")]
pub mod baselines;

pub mod fault;
#[cfg(all(feature = "hosted", not(loom)))]
pub mod hosted;
pub mod pages;
pub mod platform;
pub mod tlb;
pub mod walk;

mod address;
mod age;
mod attributes;
mod cache;
mod clean_ahead;
mod coalesce;
mod content;
mod contiguous;
mod counts;
mod dbm;
mod deferred_free;
mod descriptor;
mod encoding;
mod error;
mod feature_setters;
mod features;
mod flush;
mod frame;
mod frame_map;
mod geometry;
mod grant;
mod granule;
mod group;
mod holes;
mod instructions;
#[cfg(any(feature = "checked", loom, mutants))]
mod instrumented;
mod leaf;
mod leaf_iterator;
mod leaves;
mod level;
mod lines;
mod lock;
mod lockless_walk;
mod look_up;
mod map;
mod map_group;
mod map_range;
mod metadata;
mod pass;
mod pool;
pub mod primitive;
mod protect;
mod registers;
mod relax;
mod removal;
mod resize;
mod sequence;
mod split;
mod stage2;
mod table;
mod table_lock;
mod tables_below;
mod unlinked;
mod unmap;
mod vmids;
mod withdraw;

pub use address::{Ipa, IpaRange, Pa, Vmid};
pub use age::Marked;
pub use attributes::{Access, Attributes, Execute, Memory, Shareability};
pub use clean_ahead::CleanedPieces;
pub use coalesce::Coalesced;
pub use contiguous::{Contiguous, group_length};
pub use descriptor::Descriptor;
pub use error::Error;
pub use features::{Features, IdRegisters};
pub use flush::{Flushed, Pending};
pub use frame::{Donated, Root, Run, TablePage, TableSource};
pub use frame_map::FrameMap;
pub use geometry::Geometry;
pub use grant::{Grant, Lent, Vacated, Window};
pub use granule::{Granule, Kib4, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64};
#[cfg(feature = "checked")]
pub use instrumented::audit::Miscounted;
pub use leaf::Leaf;
pub use leaf_iterator::Leaves;
pub use level::{Level, Levels};
pub use lock::{Lock, LockGuard};
pub use map::Mapped;
pub use map_group::Grouped;
pub use metadata::{MetadataMap, MetadataRange, TableMetadata};
pub use platform::Platform;
pub use pool::Pool;
pub use relax::Relaxed;
pub use removal::{Broken, Downgrade, Freed, Join, RemovalWatcher, Unwatched};
pub use split::{Split, Stopped};
pub use stage2::Stage2;
pub use vmids::{VmidInUse, VmidSlot, Vmids};
pub use withdraw::Withdrawal;
