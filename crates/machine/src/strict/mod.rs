// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The strict mode: the strictest reading of the architecture, and no stricter.
//!
//! The engine's own code runs here, on threads (`context`) that take turns by a seed. Every access of the engine to
//! shared memory (`observer`), and every instruction (`platform`), is an event of a model (`model`). The model knows
//! what each CPU may see: words (`cells`), TLBs (`stale`) and caches (`lines`). `entries`, `pages` and `instructions`
//! define the events. The model leaves nothing to chance that it can decide: a TLB holds every entry that it may hold.
//! The first broken rule ends the run with a [`Breach`], which names the rule, the entry, its last changes and the seed
//! that reproduces it.
//!
//! `docs/mmu-rules.md` lists the rules. A run may be recorded as text (`trace`) and checked from that.

mod bbm;
mod breach;
mod by_hand;
mod cells;
mod clock;
mod context;
mod entries;
mod expected;
mod groups;
mod guards;
mod instructions;
mod lines;
mod machine;
mod model;
mod observer;
mod options;
mod pages;
mod platform;
pub(crate) mod relay;
mod shape;
mod shared;
mod stale;
mod tables;
mod trace;
mod vcpu;

pub use bbm::Bbm;
pub use breach::{Breach, Change, Executed, Rule};
pub use expected::Withdrawn;
pub use machine::{CpuHandle, Knowledge, Machine, Program};
pub use options::{MachineError, Options};
pub use platform::Hosted;
pub use vcpu::StrictVcpu;
