// SPDX-License-Identifier: Apache-2.0 OR MIT
#![doc = include_str!("../README.md")]
//!
//! * [`mode`]: guest modes, by the names and numbers of KVM's selftests.
//! * [`stage1`]: the guests' stage-1 tables.
//! * [`pass`]: one pass of a vCPU over memory, access by access.
//! * [`key_value`]: a key-value store under load, request by request.
//! * [`policies`]: the techniques and baselines that an experiment can vary.
//!
//! Invariant: the fields of a pass alone determine its accesses. So two platforms that run the same passes have the
//! same dirty pages, and a guest program in assembly only has to implement [`Pass::accesses`](pass::Pass::accesses).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod key_value;
pub mod mode;
pub mod pass;
pub mod policies;
pub mod stage1;
