// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One virtual machine without its CPU.
//!
//! Everything here is data: no thread, no clock, no register of a CPU. The embedder passes in what it reads from the
//! machine, and carries out what it gets back. So the same code runs at EL2, on the hosted machine, and under property
//! tests and fuzzers.
//!
//! | module | purpose |
//! |---|---|
//! | [`config`], [`load`], [`device_tree`] | the guest's configuration, its place in memory, its device tree |
//! | [`agreement`] | the features that the guest's CPUs share, and the CPUs that must not run it |
//! | [`psci`] | power calls of the guest |
//! | [`claim`] | a right that only one CPU gets: to switch a vCPU on, to report the end |
//! | [`refusals`] | calls that were refused, the first few with reasons |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agreement;
pub mod claim;
pub mod config;
pub mod device_tree;
pub mod load;
mod primitive;
pub mod psci;
pub mod refusals;
