// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One virtual machine without its CPU.
//!
//! Everything here is data: no thread, no clock, no register of a CPU. The embedder passes in what it reads from the
//! machine, and carries out what it gets back. So the same code runs at EL2, on the hosted machine, and under property
//! tests and fuzzers.
//!
//! | module | purpose |
//! |---|---|
//! | [`bundle`], [`name`] | all guests of the image, read from the bundle; a guest's name |
//! | [`config`], [`load`], [`program`], [`device_tree`] | one guest's configuration, its place in memory, a program in the place of a kernel, its device tree |
//! | [`guests`], [`images`] | several guests on one machine: what fits, and whether images are what they are given as |
//! | [`agreement`] | the features that the guest's CPUs share, and the CPUs that must not run it |
//! | [`calls`] | a guest's calls by HVC and SMC: which service answers, and what can be discovered |
//! | [`mitigation`] | mitigations of speculation that firmware announces: for a guest, and between two guests |
//! | [`power`] | the power states of vCPUs that share CPUs, and PSCI 1.1 |
//! | [`life`] | whether a guest runs, is stopped, starts anew or has ended, and its time |
//! | [`saved`] | what a guest is besides its memory, as bytes |
//! | [`restart`] | how a guest begins, and begins anew after a reset |
//! | [`trng`] | random numbers for a guest |
//! | [`scheduler`] | which vCPU or task runs on which CPU, and for how long |
//! | [`session`], [`console`] | the hypervisor\'s end of a session on the control channel; a guest's console on it |
//! | [`switch`] | a network between guests: bounded queues, and addresses that no other card can take |
//! | [`memory_store`] | a store for a guest's pages in the machine's memory, with a stated delay |
//! | [`places`] | which places of a page store are free |
//! | [`read_ahead`] | which absent pages are read before the guest asks for them |
//! | [`refusals`] | calls that were refused, the first few with reasons |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agreement;
pub mod balance;
pub mod bundle;
pub mod calls;
pub mod config;
pub mod console;
pub mod device_tree;
pub mod guests;
pub mod images;
pub mod life;
pub mod load;
pub mod memory_store;
pub mod mitigation;
pub mod name;
pub mod places;
pub mod power;
pub mod program;
pub mod read_ahead;
pub mod refusals;
pub mod restart;
pub mod saved;
pub mod scheduler;
pub mod session;
pub mod switch;
pub mod trng;
