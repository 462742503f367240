// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory, as a migration reads and writes it.
//!
//! [`GuestRam`] is the memory of `twofold-memory`, with any of its trackers. The traits are here so that a test can
//! break one of their promises, and see that the migration is found wrong.

mod access;
mod ahead;
mod guest;

pub use access::{Away, PageRead, PageWrite, Queued, RamError, SourceRam, TargetRam};
pub(crate) use ahead::AHEAD;
pub use ahead::Ahead;
pub use guest::{GuestRam, QueuedPage};
