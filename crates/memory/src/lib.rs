// SPDX-License-Identifier: Apache-2.0 OR MIT
#![doc = include_str!("../README.md")]
//!
//! `no_std` and no unsafe code, but the crate needs an allocator (`alloc`): for the list of memslots, for what it keeps
//! of each range of frames, for 128 MiB of a slot at their first touch, and for dirty bitmaps. A fault takes memory
//! from the heap only at such a first touch.
//!
//! [`GuestMemory`] owns the guest's [`Stage2`](twofold_stage2::Stage2) tables. A fault comes in as data, and its answer
//! goes out as data ([`Answer`]), so the same path serves a hypervisor, a hosted machine and a test.
//!
//! # Geometry
//!
//! A guest's tables have a granule of 4, 16 or 64 KiB, which is a type, as in `twofold-stage2`: `GuestMemory<P, Kib16>`.
//! Without it, they are [`Kib4`](twofold_stage2::Kib4). What a page is follows: slots, mappings and dirty logs are of pages of
//! the granule.
//!
//! | | 4 KiB | 16 KiB | 64 KiB |
//! |---|---|---|---|
//! | a page, and what a dirty log counts | 4 KiB | 16 KiB | 64 KiB |
//! | RAM takes its frames in ([`HUGE_PAGE`]) | 2 MiB | 2 MiB | 2 MiB |
//! | RAM is mapped by | pages, and blocks of 2 MiB | pages | pages |
//! | with contiguous groups ([`Contiguous`](twofold_stage2::Contiguous)) | the same | pages, and groups of 2 MiB | pages, and groups of 2 MiB |
//! | preallocated memory is mapped by | pages, 2 MiB, 1 GiB | pages, 32 MiB | pages, 512 MiB |
//! | a page store ([`swap`]) | yes | refused | refused |
//!
//! To back RAM by blocks of 32 MiB or 512 MiB would zero so much in one fault, and take so much for one byte that a guest
//! uses. 2 MiB are what the contiguous hint joins with both granules: in tables with groups, a first touch maps so much at once,
//! and a TLB may hold it as one entry. A log takes the groups apart as it does blocks; afterwards faults, and
//! [`coalesce_range`](dirty::DirtyLog::coalesce_range), join them again.
//!
//! # The rules that this crate keeps
//!
//! * A guest sees no byte that another guest wrote. A frame is zeroed before it is first mapped, and keeps its content
//!   as long as its slot lives, mapped or not (module `ram`). Preallocated memory ([`Backing::Preallocated`]) keeps what it
//!   holds; what that is, is the embedder's choice.
//! * A mapping is as large as slot, backing and policy allow ([`GuestMemory::fault`]), even where a dirty log left
//!   smaller mappings.
//! * Execution is granted only when the guest fetches, so that instruction caches are maintained for code alone (Wang
//!   2021). If the CPU needs no such maintenance, all RAM may be executed.
//! * Memory is accessed through `twofold-stage2` only.
//! * A page's frame is freed only when its content is in the store, or is zero (module [`swap`]).
//!
//! # Which of `written`, `dirty`, `clean`, `get` do I call?
//!
//! To copy a guest's memory, use a dirty log ([`dirty::DirtyLog`]), and call nothing of `twofold-stage2` for it: first
//! [`get`](dirty::DirtyLog::get), then [`clear`](dirty::DirtyLog::clear), then read the pages. The other three are for
//! an embedder that has tables ([`Stage2`](twofold_stage2::Stage2)) and no [`GuestMemory`]. They read what hardware
//! recorded in the tables (DBM):
//!
//! | call | reports | changes | when |
//! |---|---|---|---|
//! | [`DirtyLog::get`](dirty::DirtyLog::get) | pages written since they were last cleared, however that was found out | the log: nothing, except that [`Tracker::WriteProtect`](dirty::Tracker::WriteProtect) clears them | once a round |
//! | [`Stage2::clean`](twofold_stage2::Stage2::clean) | hardware-tracked leaves that were written | makes them clean, so that the next write is recorded anew | once a round; read the memory after its flush |
//! | [`Stage2::dirty`](twofold_stage2::Stage2::dirty) | the same leaves | nothing | at any time; while the guest runs the answer is a hint |
//! | [`Stage2::written`](twofold_stage2::Stage2::written) | all leaves that may be written, hardware-tracked or not | nothing | after [`Stage2::clear_dbm`](twofold_stage2::Stage2::clear_dbm) and its flush, when nothing is added any more |
//!
//! While a dirty log runs, do not call `clean` for its slot: the log would never see the writes that `clean` takes
//! away.
//!
//! # Locking
//!
//! All operations but adding and removing slots take `&self`: faults of several vCPUs run beside each other, and beside
//! maintenance of the tables. Slots come and go only while no vCPU runs, so finding one takes no lock. Three kinds of
//! [`Lock`](twofold_stage2::Lock) are left. They are taken in this order:
//!
//! 1. **A slot's dirty log** (module [`dirty`]): to start, stop, get or clear it, to coalesce, and to unmap a part of
//!    the slot. Faults do not take it.
//! 2. **A RAM slot's backing** (module `ram`): while a page gets frames and is zeroed. So one vCPU zeroes a page, and
//!    every CPU that finds it ready sees the zeroes. Faults in other slots, on devices and in preallocated memory do
//!    not wait for it.
//! 3. **The frames** (module `frames`): while some are taken or given back. With [`SharedFrames`] or a
//!    [`FramePool`], theirs after this one.
//!
//! With a page store, two more are taken in place of the frames, not with them: the entries that wait for pages, and
//! spare memory for the states of pages (module [`swap`]).
//!
//! The last two are not held while the engine works on the tables. When the engine asks for a table page, the page is
//! taken under the frames' lock, as any other frame is ([`GuestMemory::tables`]).
//!
//! If two vCPUs fault at the same page at once, one finds it not ready and zeroes it, while the other waits. Then both
//! map it, in any order. The engine answers the second that the same is mapped already, so the second relaxes the leaf
//! instead, as after any stale fault. A page may be ready and not mapped, between these steps or because table pages
//! ran out. That is harmless: the page keeps its frames and its content, and the next fault there maps it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod answer;
pub mod async_fault;
#[cfg(feature = "baselines")]
pub mod baselines;
mod clear;
pub mod dirty;
mod fault;
mod frame_of;
mod frames;
mod give_up;
mod guest;
mod guest_fault;
mod pool;
mod preallocated;
mod ram;
mod release;
mod shared;
mod slots;
pub mod swap;

pub use answer::{Answer, Done};
pub use frames::{Frames, HUGE_PAGE};
pub use give_up::GivenUp;
pub use guest::{Counts, Error, GuestMemory, Pages};
pub use guest_fault::GuestFault;
pub use pool::FramePool;
pub use shared::SharedFrames;
pub use slots::{Backing, Refused, Slot, SlotError, SlotId};
