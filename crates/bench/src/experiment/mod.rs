// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments: what the guest does, what its hypervisor does meanwhile, and which parts are timed. Each experiment
//! is written once, and runs on every [`Target`](target::Target).
//!
//! `async_fault`, `dirty_log`, `migrate`, `migrate_model`, `migrate_redis` and `page_table` go one way: the options of the command line become
//! a plan, the plan is measured, the runs are judged, and the results are reported. What they share is here: [`setup`] names
//! a variant, [`target`] is what an experiment needs of a platform, [`runner`] finds the platform, and [`record`] adds what
//! a run took to the results.

pub mod async_fault;
pub mod dirty_log;
pub mod exits;
pub mod host_clock;
pub mod hypervisor;
pub mod kvm;
pub mod machine;
pub mod migrate;
pub mod migrate_model;
pub mod migrate_pass;
pub mod migrate_redis;
pub mod page_table;
pub mod progress;
pub mod record;
pub mod runner;
pub mod setup;
pub mod target;
pub mod threads;
pub mod window;
