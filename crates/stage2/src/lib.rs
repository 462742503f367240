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
//! * Nothing that an old entry reached is given back before the flush that ends its life has completed: table pages
//!   are inside a [`Pending`] until [`Pending::complete`] makes it a [`Flushed`], which is spent to free them.
//! * An operation that fails leaves valid tables and can be repeated.
//!
//! # Locking
//!
//! Operations take `&self`. Faults on different tables never wait for each other, and maintenance runs beside them.
//!
//! **What is shared, and who may write it.** Each table has a lock, which is in its [`Record`] together with the
//! table's counts (valid entries, tables among them, leaves that may be written, leaves whose writes hardware records,
//! busy entries). Software changes an entry of a table that is in the tree under that table's lock only. Hardware walks
//! all the time, and sets access flags, and dirty state where DBM is set: there, changes are read-modify-writes;
//! elsewhere they are stores, and an access flag that is set in the same moment may be lost.
//!
//! **Descending.** Nobody locks on the way down. A count of the tables that were ever taken out of the tree is read
//! before, and again before what was read is followed or believed; if it has moved, the descent begins anew (module
//! `descent`, which has the argument). Who locks the table at the end and finds the count still the same has a table
//! that is in the tree, and stays until it is unlocked. So a table's page is given away as soon as its flush is complete:
//! there is no grace period, readers register nowhere, and a descent costs no atomic read-modify-write and no fence. What
//! it asks of the embedder is that donated frames stay mapped for the engine ([`Platform`]).
//!
//! **Locks are held for a moment.** For one change, or one pass over the entries of one table, or of those below one that
//! is coalesced; never while a TLB is flushed, a block's lines are cleaned, a callback runs or a page is taken from a
//! [`TableSource`]. What takes longer makes
//! the entry *busy*: invalid for hardware, and nobody else's to change. Who finds it so looks again, and a table with a
//! busy entry is not taken out.
//!
//! **Order.** A table, then the one below it; never upward. Three places hold two: taking a table out, taking out what is
//! below it, and coalescing, which holds all below the table that it takes out (module `below`). Making a busy entry is
//! the only thing its owner has to do with a lock, and it holds no other then, so waiting for it under the lock of the
//! table above is safe.
//!
//! **Taking a table out.** Lock the table above and the table, when nothing in it is busy; break the entry; count; wait
//! for whoever is inside a table below, by its lock; unlock. From then on nobody comes in. Its leaves are looked at after
//! the flush, when hardware is out too. A coalesce, whose guest is to find a block there again, locks the tables below
//! before the break: what takes time is not between break and make.
//!
//! **Between a change and its flush.** [`Pending`] holds no lock. What was unmapped is *stale*: invalid for hardware, and
//! marked, so that whoever makes something of it, before the flush or after, invalidates first (break-before-make has its
//! invalidation in the middle, whoever does either). Changes of access that are not flushed yet are counted: one that
//! completes beside others invalidates all that it was asked for, since it may have found done what another one did.
//!
//! **A lost race is an outcome**: a fault that finds the entry changed looks again, and ends as
//! [`Mapped::Already`] or [`Relaxed::Already`]. A maintenance pass waits for what is busy instead of stepping over it,
//! since what it becomes may be what the pass has to change. It passes over a table only where the table's counts say
//! that there is nothing to do, and that table was in the tree when they were read.
//!
//! # What may be mapped
//!
//! A guest reaches what its tables map, and the engine cleans it. So it maps only what a [`Grant`] says, and no safe call makes
//! one for memory that its caller has not vouched for:
//!
//! * Donated memory ([`Donated::new`] is unsafe) is lent to a tree by value. While it is lent it is no table, no part of
//!   another tree, and in no pool of free frames. *The engine* gives it back as a [`Run`] only when nothing of it is mapped and
//!   the flush is complete ([`Stage2::vacate`], [`Stage2::destroy`]).
//! * Devices, and RAM that is not donated, are vouched for by [`Window::new`], which is unsafe and says what is promised.
//!
//! *The caller* keeps VMIDs of guests apart, and loads no tables that are destroyed: see [`Stage2::new`] and
//! [`Stage2::destroy`].
//!
//! # Caches
//!
//! The owner of memory reaches it by a cacheable mapping, so lines of it may be filled at any time, whatever a guest does.
//! Cleaning and invalidating (`DC CIVAC`) is what the two sides owe each other.
//!
//! *The engine* cleans and invalidates the lines of
//!
//! * a leaf that is about to be made, if it is non-cacheable, or normal memory without FEAT_S2FWB: what the owner wrote is in
//!   memory, and is not written back later;
//! * such a leaf that goes, after the flush that ends the guest's access: the owner reads what the guest wrote. A leaf alone is
//!   cleaned before it is told of, a leaf of a table that goes as a whole before its [`Flushed`] has freed that;
//! * a leaf whose memory type changes at the same address ([`Grant::map`], [`Grant::coalesce`]), between its break and its
//!   make, whichever the types are.
//!
//! Nothing of this is done for normal memory that FEAT_S2FWB forces to be cached: all accesses to it are coherent.
//!
//! *The caller*
//!
//! * writes memory through its own mapping before it is mapped, or while FEAT_S2FWB forces it to be cached. While memory is
//!   mapped otherwise, the line that such a write makes dirty overwrites what the guest wrote beside it;
//! * cleans and invalidates RAM that it maps as [`Memory::Device`], before it is mapped and after the flush that ends that:
//!   the engine never touches the lines of a device, which may have no cacheable mapping at all.
//!
//! # Not yet
//!
//! Other granules than 4 KiB.
#![cfg_attr(not(test), no_std)]

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub mod arm64;
#[cfg(feature = "baselines")]
pub mod baselines;

pub mod fault;
pub mod platform;
pub mod tlb;
pub mod walk;

mod address;
mod age;
mod arm;
mod attributes;
#[cfg(feature = "checked")]
mod audit;
mod below;
mod cache;
mod coalesce;
mod descent;
mod descriptor;
mod detached;
mod error;
mod features;
mod flush;
mod frame;
mod frame_map;
mod geometry;
mod grant;
mod holes;
mod kept;
mod lines;
mod lock;
#[cfg(all(test, loom))]
mod loom;
mod map;
mod map_range;
mod pass;
mod pool;
pub mod primitive;
mod protect;
mod record;
mod registers;
mod relax;
mod removed;
mod split;
mod stage2;
mod table;
mod unmap;

pub use address::{Ipa, IpaRange, Pa, Vmid};
pub use age::Marked;
pub use attributes::{Access, Attributes, Execute, Memory, Shareability};
#[cfg(feature = "checked")]
pub use audit::Miscounted;
pub use coalesce::Coalesced;
pub use descriptor::Descriptor;
pub use error::Error;
pub use features::{Features, IdRegisters};
pub use flush::{Flushed, Pending};
pub use frame::{Donated, Root, Run, TablePage, TableSource};
pub use frame_map::FrameMap;
pub use geometry::{Geometry, Granule, Level, Levels};
pub use grant::{Grant, Lent, Vacated, Window};
pub use lock::{Lock, LockGuard};
pub use map::Mapped;
pub use platform::Platform;
pub use pool::Pool;
pub use record::{Record, RecordRange, Records};
pub use relax::Relaxed;
pub use removed::{Broken, Freed, Join, Narrowed, Removed, Unwatched};
pub use split::{Split, Stopped};
pub use stage2::{Leaf, Stage2};
pub use tlb::Thresholds;
