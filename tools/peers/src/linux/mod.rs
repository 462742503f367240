// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `peers linux`: KVM's stage-2 page-table code, compiled for this machine, beside the engine.
//!
//! `program` builds it, `turns` asks both programs for one operation after the other, `targets` has what ours should
//! reach, and `report` compares.

mod program;
mod report;
mod run;
mod spread;
mod targets;
mod turns;

pub use run::{HELP, Options, command};
