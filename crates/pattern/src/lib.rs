// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guests of the experiments do, the same wherever they run: on the hosted machine, under the hypervisor, under KVM.
//!
//! * [`mode`]: guest modes, by the names and numbers of KVM's selftests.
//! * [`stage1`]: their tables.
//! * [`pass`]: one pass of a vCPU over memory, access by access.
//!
//! Invariant: what a pass accesses follows from its fields alone. So two machines that were given the same passes have the
//! same pages dirty, and a program in assembly that does as [`Pass::accesses`](pass::Pass::accesses) says is as good as any.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod mode;
pub mod pass;
pub mod stage1;
