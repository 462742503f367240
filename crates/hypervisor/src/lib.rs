// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Twofold's EL2 image: a small hypervisor that runs one guest, and maps its memory on first touch.
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
//! | module | purpose |
//! |---|---|
//! | [`start`] | from a bundle to a running guest |
//! | [`survey`], [`agreement`] | the features that the guest's CPUs share, and the CPUs that must not run it |
//! | [`vm`] | the virtual machine: the state that its vCPUs share, and its end |
//! | [`config`], [`load`], [`device_tree`] | the guest's configuration, its place in memory, its device tree |
//! | [`vcpu`] | enter, exit, answer, enter again |
//! | [`psci`], [`inject`] | power calls of the guest, and exceptions that EL2 raises in it |
//! | [`abort`], [`translate`], [`stage1`] | aborts whose answer needs the guest's own stage 1 |
//! | [`claim`] | a right that only one CPU gets: to switch a vCPU on, to report the end |
//! | [`refusals`] | calls that were refused, the first few with reasons |
//! | [`stats`] | counters, and the report |
//! | [`memory`], [`platform`] | RAM and instructions for the engine |
//! | [`experiment`] | what only experiments need: the observer of exits, and the calls by which a guest measures itself |
//!
//! The lower half is everything between the virtual machine and the hardware:
//!
//! | module | purpose |
//! |---|---|
//! | [`boot`] | from the boot loader's jump to `main` |
//! | [`el2_mmu`] | the image's own translation tables |
//! | [`board`] | the machine, as its device tree describes it |
//! | [`cpus`] | the other CPUs, and each CPU's stacks |
//! | [`registers`] | the control registers, and the value of each |
//! | [`world`], [`context`] | the switch into the guest and back, and the switched registers |
//! | [`vectors`] | the exception vectors |
//! | [`exception_table`], [`at`] | instructions of EL2 that a guest can make abort |
//! | [`panic`](mod@panic) | the one report before the end |
//! | [`console`], [`control`], [`semihosting`] | the outputs |
//! | [`power`], [`shutdown`] | PSCI calls to the firmware; the exit of the image |
//! | [`heap`] | `alloc` |
//! | [`pmu`], [`count`] | counts instructions at EL2, and rejects impossible counts |
//! | [`sysreg`] | reads and writes system registers |
//!
//! EL2 runs with interrupts masked and without FP/SIMD registers; both belong to the guest.
#![no_std]

extern crate alloc;

pub mod abort;
pub mod agreement;
pub mod at;
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
pub mod experiment;
pub mod heap;
pub mod inject;
pub mod load;
pub mod memory;
pub mod panic;
pub mod platform;
pub mod pmu;
pub mod power;
pub mod psci;
pub mod refusals;
pub mod registers;
pub mod semihosting;
pub mod shutdown;
pub mod stage1;
pub mod start;
pub mod stats;
pub mod survey;
pub mod sysreg;
pub mod translate;
pub mod vcpu;
pub mod vectors;
pub mod vm;
pub mod world;

/// The atomic of [`claim`]. A host test replaces it with one that lets a second CPU in between.
pub(crate) mod primitive {
    pub use core::sync::atomic::{AtomicBool, Ordering};
}
