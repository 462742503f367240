// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts Twofold's image in QEMU and reports how it ended.
//!
//! Every command that boots the hypervisor uses this launcher. In a checkout its image is in [`built`]'s directory. A
//! launch has these steps:
//!
//! 1. [`GuestSettings`] are checked on the host and written as a bundle file (modules [`guest`], [`devices`], [`image`],
//!    [`elf`], [`initrd`], [`layout`], [`swap`], [`bundle`]). What a user writes becomes settings in [`spec`] and [`size`].
//! 2. [`Qemu`] is found and must be new enough; [`Machine`] makes its arguments (modules [`qemu`], [`machine`]).
//! 3. [`run::Launch`] follows the console under a time limit, and leaves nothing running ([`run`], [`child`]).
//! 4. The hypervisor's end is the control channel ([`channel`]). Its lines become a [`Control`] with its [`Report`] of figures ([`report`]).
//!    A launch that is driven, or whose guests have their consoles there, has a session on it ([`session`], [`client`]).
//!    Guests' consoles have any number of readers ([`hub`]): the terminal ([`terminal`]), with the monitor ([`monitor`]), and
//!    those of other processes ([`socket`]), which take figures too ([`sample`]). A stopped guest is saved and restored there ([`saved`]), and is
//!    in a file meanwhile ([`snapshot`]); its disks stay, and have owners ([`owner`]). [`interactive`] is a run with all of them.
//! 5. [`Verdict`] says in one sentence what happened and what to do next ([`verdict`]).
//!
//! An [`Experiment`] does all of that in one call, and returns the figures ([`experiment`]); [`exits::measure`] does so
//! for what events cost at EL2, and [`async_fault::Bm`] for the work of a guest whose pages are in a store.
//!
//! The crate depends on `twofold-abi`, on `twofold-migration` for the stream in a snapshot's file, and on `twofold-workload` for guest modes: only files and lines connect it with
//! the image.

pub mod async_fault;
pub mod built;
pub mod bundle;
pub mod channel;
pub mod check;
pub mod child;
pub mod client;
pub mod devices;
pub mod elf;
pub mod exits;
pub mod experiment;
#[cfg(test)]
mod fake;
pub mod frames;
pub mod guest;
pub mod hub;
pub mod image;
pub mod initrd;
pub mod interactive;
pub mod layout;
pub mod machine;
pub mod migrate;
pub mod monitor;
pub mod outcome;
pub mod owner;
pub mod qemu;
pub mod redis;
pub mod report;
pub mod run;
pub mod sample;
pub mod saved;
pub mod session;
pub mod size;
pub mod snapshot;
pub mod socket;
pub mod spec;
pub mod swap;
pub mod terminal;
pub mod verdict;

pub use bundle::Bundle;
pub use check::Check;
pub use devices::Devices;
pub use experiment::{Counted, Experiment, ExperimentError};
pub use guest::{GuestError, GuestSettings, Pages, TestMemory};
pub use machine::{Loaded, Machine};
pub use outcome::{Console, Outcome};
pub use qemu::{Qemu, QemuError};
pub use report::{Control, Report, Test};
pub use run::{Driver, Launch, RunError, Stop};
pub use swap::Swap;
pub use twofold_workload::policies::Policies;
pub use verdict::Verdict;
