// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Twofold's EL2 image: a small hypervisor that runs one guest, and maps its memory as it is touched.
//!
//! An image is a binary that names its main function with [`entry!`]:
//!
//! ```ignore
//! twofold_hypervisor::entry!(main);
//! fn main(board: &'static Board) -> ! { ... }
//! ```
//!
//! The upper half is the virtual machine:
//!
//! | module | is |
//! |---|---|
//! | [`start`] | from a bundle to a running guest |
//! | [`survey`], [`agreement`] | what the guest's CPUs have in common, and which must not run it |
//! | [`vm`] | the virtual machine: what its vCPUs share, and its end |
//! | [`config`], [`load`], [`device_tree`] | what the guest is to be, where it goes, what it is told |
//! | [`vcpu`] | enter, leave, answer, enter again |
//! | [`psci`], [`inject`] | what the guest asks for, and what is done to it |
//! | [`abort`], [`translate`], [`stage1`] | an abort that wants a look at the guest's own stage 1 |
//! | [`claim`] | what only one CPU gets: a vCPU to switch on, the end to report |
//! | [`refusals`] | calls that were refused, the first of them with reasons |
//! | [`vendor`] | calls by which a guest measures itself |
//! | [`log_calls`], [`phases`] | its dirty log, which it drives itself; an experiment's phases, which it tells apart |
//! | [`stats`] | what it all cost |
//! | [`memory`], [`platform`] | RAM and instructions for the engine |
//!
//! The lower half is everything between that and the machine:
//!
//! | module | is |
//! |---|---|
//! | [`boot`] | from the boot loader's jump to `main` |
//! | [`el2_mmu`] | the image's own translation tables |
//! | [`board`] | the machine, as its device tree describes it |
//! | [`cpus`] | the other CPUs, and each CPU's stacks |
//! | [`registers`] | which control registers there are, and what each is set to |
//! | [`world`], [`context`] | the switch into the guest and back, and what is switched |
//! | [`vectors`] | where exceptions arrive |
//! | [`exception_table`], [`at`] | instructions of EL2's that a guest can make abort |
//! | [`panic`](mod@panic) | the one report before the end |
//! | [`console`], [`control`], [`semihosting`] | who hears about it |
//! | [`power`] | PSCI calls to the firmware, and the end |
//! | [`heap`] | `alloc` |
//! | [`pmu`], [`count`] | counts instructions at EL2; refuses a count that cannot be |
//! | [`sysreg`] | reads and writes system registers |
//!
//! With the feature `trace` there is `trace`, too: what the engine does, line by line. With the feature `oracle` there is
//! `oracle`: it holds the dirty log against the guest's memory; with `record` there is `record`: it keeps what the log tells.
//! Both come in by `translation_registers`. With `baselines`, that one has techniques done as they were before.
//!
//! EL2 runs with interrupts masked and without FP/SIMD registers; both belong to the guest.
#![no_std]

extern crate alloc;

pub mod abort;
pub mod agreement;
pub mod at;
#[cfg(feature = "baselines")]
pub mod baselines;
pub mod board;
pub mod boot;
pub mod claim;
pub mod config;
pub mod console;
pub mod context;
pub mod control;
pub mod count;
pub mod cpus;
pub mod device_tree;
pub mod el2_mmu;
pub mod exception_table;
pub mod heap;
pub mod inject;
pub mod load;
pub mod log_calls;
pub mod memory;
#[cfg(feature = "oracle")]
pub mod oracle;
pub mod panic;
pub mod phases;
pub mod platform;
pub mod pmu;
pub mod power;
pub mod psci;
#[cfg(feature = "record")]
pub mod record;
pub mod refusals;
pub mod registers;
pub mod semihosting;
pub mod stage1;
pub mod start;
pub mod stats;
pub mod survey;
pub mod sysreg;
#[cfg(feature = "trace")]
pub mod trace;
pub mod translate;
#[cfg(any(feature = "oracle", feature = "record"))]
pub mod translation_registers;
pub mod vcpu;
pub mod vectors;
pub mod vendor;
pub mod vm;
pub mod world;

/// The atomic that [`claim`] is made of. A host test puts another in its place, which lets a second CPU in between.
pub(crate) mod primitive {
    pub use core::sync::atomic::{AtomicBool, Ordering};
}
