// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The unforgiving mode: the strictest reading of the architecture, and no stricter.
//!
//! The engine's own code runs here, on threads (`context`) that take turns by a seed, and every access it makes to what
//! CPUs share (`observer`), and every instruction (`platform`), comes to a model (`model`) of what others may see: of words
//! (`cells`), of TLBs (`stale`), of caches (`lines`). What each event means is in `entries`, `pages` and `instructions`.
//! Nothing is left to chance that can be decided: a TLB holds whatever it may hold. The first rule that is broken ends the
//! run with a [`Breach`], which names the rule, the entry, its last changes and the seed that does it again.
//!
//! `docs/mmu-rules.md` has the rules. A run may be recorded (`trace`), for who would rather check it by its text.

mod bbm;
mod breach;
mod by_hand;
mod cells;
mod clock;
mod context;
mod entries;
mod expected;
mod guest;
mod instructions;
mod lines;
mod machine;
mod model;
mod observer;
mod pages;
mod platform;
mod shape;
mod stale;
mod tables;
mod trace;

pub use bbm::Bbm;
pub use breach::{Breach, Change, Rule};
pub use expected::Withdrawn;
pub use guest::Guest;
pub use machine::{CpuHandle, Knowledge, Machine, MachineError, Options, Program};
pub use platform::Hosted;
