// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One guest's memory: what is where (slots), what is behind it (frames), and what a fault leads to.
//!
//! [`GuestMemory`] owns the guest's [`Stage2`](twofold_stage2::Stage2) tables. A fault comes in as data and its
//! answer goes out as data ([`Answer`]), so the same path serves a hypervisor, a hosted machine and a test.
//!
//! # The rules that are kept here
//!
//! * A guest sees no byte that another one wrote: a frame is zeroed before it is first mapped, and keeps its
//!   content as long as its slot lives, mapped or not (module `ram`).
//! * A mapping is as large as slot, backing and policy allow ([`GuestMemory::fault`]).
//! * Execution is granted only when the guest fetches, so that instruction caches are maintained for code alone
//!   (source S4), unless the CPU needs no such maintenance.
//! * No unsafe code: memory is reached through `stage2` only.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod fault;
mod frames;
mod guest;
mod ram;
mod slots;

pub use fault::{Answer, Done, GuestFault};
pub use frames::Frames;
pub use guest::{Counts, Error, GuestMemory, Pages};
pub use ram::SECTION;
pub use slots::{Backing, Slot, SlotError};
