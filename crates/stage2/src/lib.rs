// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stage-2 translation tables for arm64: what a hypervisor maps its guests' memory with.
//!
//! `no_std`, no allocator, no knowledge of virtual machines. The embedder supplies a [`Platform`] (the architecture's
//! instructions, and a pointer to each frame), memory ([`Donated`]) and a source of table pages ([`TableSource`]). On a CPU
//! the platform is [`arm64::Arm64`]. [`Stage2`] does the rest: which entries to
//! write, in which order, with which TLB invalidations, barriers and cache operations between them.
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
//! Faults on different tables never wait for each other, and maintenance runs beside them.
//!
//! **Data.** Each table has a [`TableMetadata`] beside its frame. One word of it is the table's lock, and counts of its valid
//! entries, tables, writable leaves, hardware-tracked leaves (DBM) and busy entries. The tree has a *sequence count* of the
//! tables that were ever unlinked from it; the same word counts withdrawals.
//!
//! **Writers.** Software changes an entry of a linked table only under that table's lock. Hardware changes entries without a
//! lock: it sets access flags, and the dirty state of leaves with DBM. So a leaf with DBM is changed by a read-modify-write.
//! Any other entry is changed by a store, which may lose an access flag that hardware sets in the same moment.
//!
//! **Lockless walk** (module `lockless_walk`):
//!
//! * W1: read the sequence count.
//! * W2: load an entry with acquire.
//! * W3: before following or using the entry, read the sequence count again. If it changed, go back to W1.
//! * W4: to change the entry, lock its table, then read the sequence count again. If it changed, unlock and go back to W1.
//!
//! After W4 the table is linked, and it stays linked until it is unlocked: unlinking takes the same lock (U1) and counts
//! (U3) before it releases it. The walk writes nothing and registers nowhere, so there is no grace period: a table page is
//! free as soon as its flush is complete. In return the embedder keeps donated frames mapped for the engine ([`Platform`]), since
//! a late walk may still read a frame that is no table any more.
//!
//! **Busy entries.** A lock is held for one change, or for one pass over the entries of one table. It is never held while a
//! TLB is flushed, a block's lines are cleaned, a callback runs, or a page is taken from a [`TableSource`]. An operation
//! that takes longer makes the entry *busy*: invalid for hardware, and reserved for the operation. A CPU that finds a
//! busy entry retries. A table with a busy entry is not unlinked.
//!
//! On a CPU with FEAT_BBM level 2 that raises no conflict abort, a block and a table replace each other without a break
//! (module `resize`). A split then makes no entry busy, and flushes nothing. A coalesce of a full table of pages keeps the
//! parent locked during its flush, the one exception to the rule above.
//!
//! **Unlinking a table:**
//!
//! * U1: lock the parent, then the table. If an entry of the table is busy, unlock both and retry.
//! * U2: break the parent's entry.
//! * U3: increment the sequence count, with release.
//! * U4: take and release the lock of each table below, so that every CPU that was inside one has left.
//! * U5: unlock. No walk can enter from here on (W4).
//! * U6: flush. When the flush is complete, hardware cannot reach the tables either, and their leaves are final.
//!
//! A coalesce locks the tables below (U4) before the break (U2), and unlocks all (U5) after it has made the block. So only
//! the flush lies between break and make.
//!
//! **Lock order.** A table, then a table below it. Three operations hold more than one lock: unlinking, its step U4, and the
//! coalesce, which holds the siblings below the table that it unlinks (module `tables_below`). The owner of a busy entry needs only
//! that entry's table lock to make it, so waiting for it under a lock further up cannot deadlock. It holds no other lock, except
//! those of the tables that it has unlinked by this entry. A CPU that waits for one of those holds none: to wait with the lock of
//! a table above, it would have to find the way through the busy entry.
//!
//! **Between a change and its flush.** [`Pending`] holds no lock. An unmapped entry is marked *stale*: invalid for hardware,
//! and any CPU that maps there invalidates first, so that break-before-make holds whichever CPU completes it. Permission
//! downgrades whose flush is pending are counted. An operation that completes beside others flushes its whole range, since it
//! may have found an access gone whose flush is still to come.
//!
//! **Lost races.** A fault that finds its entry changed retries, and returns [`Mapped::Already`] or [`Relaxed::Already`]. A
//! maintenance pass waits for a busy entry, since the new entry may need the change too. A pass skips a table only where the
//! table's counts say that it has nothing to do there, and the table was linked when they were read.
//!
//! **Withdrawn memory** (module `withdraw`). Lent memory may leave while other CPUs hold grants of it:
//!
//! * M1: a grant of lent memory samples the count of withdrawals, which shares a word with the sequence count.
//! * M2 to M5: the mapper locks the table, checks the count, writes the entry, and unlocks.
//! * T1, T2: the withdrawing CPU takes the lent run by value, and counts.
//! * T3 to T5: it locks the deepest table of each part of the range, even where the entry is empty, breaks what is there, and
//!   unlocks.
//! * T6, T7: it flushes, and returns the run.
//!
//! A mapper that gets the lock first has its leaf broken. A mapper that gets it later finds the count changed, and returns
//! [`Error::Withdrawn`].
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
//! *The caller* gives each guest its own VMID, and loads no tables that are destroyed: see [`Stage2::new`] and
//! [`Stage2::destroy`].
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
//! # Not yet
//!
//! The contiguous hint, and changes of size without a break (FEAT_BBM).
#![cfg_attr(not(test), no_std)]

#[cfg(any(doc, all(target_arch = "aarch64", not(miri))))]
pub mod arm64;
#[cfg(feature = "baselines")]
pub mod baselines;

pub mod fault;
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
mod counts;
mod dbm;
mod deferred_free;
mod descriptor;
mod error;
mod feature_setters;
mod features;
mod flush;
mod frame;
mod frame_map;
mod geometry;
mod grant;
mod granule;
mod holes;
mod instructions;
#[cfg(any(feature = "checked", loom, mutants))]
mod instrumented;
mod leaf;
mod leaves;
mod level;
mod lines;
mod lock;
mod lockless_walk;
mod look_up;
mod map;
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
mod withdraw;

pub use address::{Ipa, IpaRange, Pa, Vmid};
pub use age::Marked;
pub use attributes::{Access, Attributes, Execute, Memory, Shareability};
pub use clean_ahead::CleanedPieces;
pub use coalesce::Coalesced;
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
pub use level::{Level, Levels};
pub use lock::{Lock, LockGuard};
pub use map::Mapped;
pub use metadata::{MetadataMap, MetadataRange, TableMetadata};
pub use platform::Platform;
pub use pool::Pool;
pub use relax::Relaxed;
pub use removal::{Broken, Downgrade, Freed, Join, RemovalWatcher, Unwatched};
pub use split::{Split, Stopped};
pub use stage2::Stage2;
pub use withdraw::Withdrawal;
