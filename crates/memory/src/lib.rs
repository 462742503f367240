// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest's memory: what is where (slots), what is behind it (frames), and what a fault leads to.
//!
//! [`GuestMemory`] owns the guest's [`Stage2`](twofold_stage2::Stage2) tables. A fault comes in as data and its
//! answer goes out as data ([`Answer`]), so the same path serves a hypervisor, a hosted machine and a test.
//!
//! # The rules that are kept here
//!
//! * A guest sees no byte that another one wrote: a frame is zeroed before it is first mapped, and keeps its
//!   content as long as its slot lives, mapped or not (module `ram`). What the embedder gives ([`Backing::Given`]) is its own
//!   affair.
//! * A mapping is as large as slot, backing and policy allow ([`GuestMemory::fault`]): also where smaller ones were left by a
//!   dirty log.
//! * Execution is granted only when the guest fetches, so that instruction caches are maintained for code alone
//!   (source S4), unless the CPU needs no such maintenance.
//! * No unsafe code: memory is reached through `stage2` only.
//!
//! # Locking
//!
//! Everything but adding and removing slots takes `&self`: faults of several vCPUs run beside each other, and beside
//! maintenance of the tables. Slots come and go while no vCPU runs, so nobody locks to find one. Three kinds of
//! [`Lock`](twofold_stage2::Lock) are left, and they are taken in this order:
//!
//! 1. **A slot's dirty log** (module [`dirty`]): held by who starts, stops, reads or clears it, or unmaps some of the slot.
//!    Faults do not take it.
//! 2. **A RAM slot's backing** (module `ram`): held while a page gets frames and is made ready, so a page is zeroed by one
//!    vCPU, and whoever finds it ready sees the zeroes. Faults in other slots, on devices, and in memory that was given, do
//!    not wait for it.
//! 3. **The frames** (module `frames`): held for the moment in which some are taken or given back.
//!
//! The last two are not held while the engine works on the tables. A table page that it asks for is taken from the frames under
//! their lock, as whatever else is ([`GuestMemory::tables`]).
//!
//! So two vCPUs may fault at the same page at once. One finds it not ready and zeroes it, while the other waits; then both
//! map it, in any order: to one of them the engine answers that the same is mapped there already, so it relaxes instead,
//! as after any stale fault. That a page is ready and not mapped, in between or because table pages ran out, is of no
//! importance to anybody: it has its frames and its content, and whoever faults there next maps it.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(feature = "baselines")]
pub mod baselines;
pub mod dirty;
mod fault;
mod frames;
mod given;
mod guest;
mod ram;
mod slots;

pub use fault::{Answer, Done, GuestFault};
pub use frames::Frames;
pub use guest::{Counts, Error, GuestMemory, Pages};
pub use ram::SECTION;
pub use slots::{Backing, Refused, Slot, SlotError, SlotId};
