// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's memory: host memory behind physical addresses, and metadata for each frame that may become a table.
//!
//! Invariants:
//!
//! * The memory of an arena stays mapped, readable and writable, as long as the arena lives. It is reached only by
//!   atomic or volatile accesses through the arena's pointers. The only Rust references to it are to atomic words.
//! * A frame is congruent: its physical and its virtual address are the same modulo 1 GiB. So a block of the guest can
//!   be a huge page of the host.
//! * No physical address equals the pointer to it (physical addresses are lower), so code that confuses them fails.
//! * No memory is touched before the arena is known to fit. A size that does not fit is an error, and never leads to
//!   the OOM killer.
//!
//! Dense memory has frames of its own. Sparse memory may follow it: one small file, mapped repeatedly. Sparse memory
//! allows guests larger than the host, whose content is not checked.

mod backing;
mod error;
mod mapping;
mod memory;
mod plan;
mod system;

pub use backing::Backing;
pub use error::ArenaError;
pub use memory::Arena;
pub use plan::ArenaOptions;
