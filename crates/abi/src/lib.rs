// SPDX-License-Identifier: Apache-2.0 OR MIT
#![doc = include_str!("../README.md")]
//!
//! This crate holds what two sides must agree on. It has no logic and depends on no other crate of the workspace.
//!
//! * [`async_fault`]: asynchronous page faults, the calls and the area of each vCPU.
//! * [`bundle`]: the file that carries a guest's kernel, initrd and settings to the hypervisor.
//! * [`canary`]: patterns that a hostile guest must not find.
//! * [`channel`]: the framed control channel, with consoles and commands of several guests.
//! * [`control`]: the lines that the hypervisor writes for its launcher.
//! * [`exit`]: the exit statuses of the image under QEMU.
//! * [`pv_time`]: stolen time, the calls and the structure of each vCPU.
//! * [`section`]: the head of each part of a guest's state.
//! * [`exits`]: what a guest prints that measures what events cost.
//! * [`trace`]: the lines of a trace, written and read.
//! * [`vendor`]: calls of Twofold's own guests, beside PSCI.
//! * [`virt`]: the memory map that every guest sees.
#![no_std]

pub mod async_fault;
pub mod bundle;
pub mod canary;
pub mod channel;
pub mod control;
pub mod exit;
pub mod exits;
pub mod pv_time;
pub mod section;
pub mod trace;
pub mod vendor;
pub mod virt;
