// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `experiment=NAME`: the accesses of KVM's `dirty_log_perf_test` and `kvm_page_table_test`, on one vCPU, divided into
//! phases that the hypervisor counts.
//!
//! Invariant: in a phase the program accesses the test memory as a [`Pass`](twofold_workload::pass::Pass) says, and otherwise only memory that it has
//! accessed before. So the figures count the cost of these accesses alone.

mod dirty_log;
mod failure;
mod page_table;
mod phase;
mod settings;

pub use failure::Failure;
pub use settings::{Settings, WrongWord};

use crate::image;
use crate::memory::Memory;
use crate::mode;
use crate::uart::println;
use settings::Name;

/// Runs an experiment.
pub fn run(memory: &Memory, settings: &Settings) -> Result<(), Failure> {
    mode::enter(memory, &settings.mode, settings.ipa_bits, settings.at, settings.bytes)?;
    image::fetch_everything();
    match settings.name {
        Name::DirtyLog => dirty_log::run(settings)?,
        Name::PageTable => page_table::run(settings)?,
    }
    println!("experiment: {} bytes in mode {}: done", settings.bytes, settings.mode);
    Ok(())
}
