// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experiments: what a guest does, what its hypervisor does meanwhile, and what of it is timed. Each is written once, and runs
//! on every [`Target`](target::Target).

pub mod setup;
pub mod target;
