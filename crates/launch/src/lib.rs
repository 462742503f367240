// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts Twofold's image in QEMU and says how it ended.
//!
//! There is one launcher, used by every command that boots the hypervisor. A launch is:
//!
//! 1. [`Guest`] is checked on the host and written as a bundle file (modules [`guest`], [`image`], [`layout`]).
//! 2. [`Qemu`] is found and must be new enough; [`Machine`] says what it starts (modules [`qemu`], [`machine`]).
//! 3. [`run::Launch`] follows the console under a time limit, and leaves nothing running ([`run`], [`child`]).
//! 4. The control channel's lines become a [`Control`] with its [`Report`] of figures ([`report`]).
//! 5. [`Verdict`] says in one sentence what happened and what to do next ([`verdict`]).
//!
//! An [`Experiment`] is all of that at once, for figures ([`experiment`]).
//!
//! The room knows `twofold-abi`, and of `twofold-pattern` guest modes: it speaks with the image through files and lines only.

pub mod check;
pub mod child;
pub mod experiment;
pub mod guest;
pub mod image;
pub mod layout;
pub mod machine;
pub mod qemu;
pub mod report;
pub mod run;
pub mod verdict;

pub use check::Check;
pub use experiment::{Counted, Experiment, ExperimentError};
pub use guest::{Bundle, Guest, GuestError, Pages, TestMemory};
pub use machine::{Loaded, Machine};
pub use qemu::{Qemu, QemuError};
pub use report::{Control, Report, Test};
pub use run::{Console, Launch, Outcome, RunError, Stop};
pub use verdict::Verdict;
