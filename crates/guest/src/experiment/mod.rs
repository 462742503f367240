// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `experiment=NAME`: the accesses of KVM's `dirty_log_perf_test` and `kvm_page_table_test`, on one vCPU, divided into
//! phases that the hypervisor counts.
//!
//! Invariant: in a phase the program accesses the test memory as a [`Pass`] says, and otherwise only memory that it has
//! accessed before. So the figures count the cost of these accesses alone.

mod dirty_log;
mod page_table;
mod settings;

use twofold_workload::pass::Pass;

pub use settings::{Settings, WrongWord};

use crate::boot;
use crate::memory::Memory;
use crate::mode;
use crate::uart::println;
use crate::vendor::{self, Refused};
use settings::Name;

/// Why [`run`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Mode(#[from] mode::Failure),
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("the log reports {reported} pages of 4 KiB, but there are only {pages}")]
    TooMany { reported: u64, pages: u64 },
}

/// Runs an experiment.
pub fn run(memory: &Memory, settings: &Settings) -> Result<(), Failure> {
    mode::enter(memory, &settings.mode, settings.ipa_bits, settings.at, settings.bytes)?;
    boot::fetch_everything();
    match settings.name {
        Name::DirtyLog => dirty_log::run(settings)?,
        Name::PageTable => page_table::run(settings)?,
    }
    println!("experiment: {} bytes in mode {}: done", settings.bytes, settings.mode);
    Ok(())
}

/// Makes the accesses of `passes` in the phase of this name.
fn access(name: &'static str, passes: &mut [Pass]) -> Result<(), Refused> {
    phase(name, || {
        passes.iter_mut().for_each(go);
        Ok(())
    })
}

/// Makes the accesses of `pass`, and stores the generator's state in it.
fn go(pass: &mut Pass) {
    let mut accesses = pass.accesses();
    for access in &mut accesses {
        let place = core::ptr::with_exposed_provenance_mut::<u64>(access.va as usize);
        // SAFETY: a word of the test memory, which is mapped and holds no Rust object.
        unsafe {
            if access.write {
                place.write_volatile(pass.value);
            } else {
                place.read_volatile();
            }
        }
    }
    pass.random = accesses.random();
}

/// Runs `what` in the phase of this name.
fn phase<T>(name: &'static str, what: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    vendor::phase(Some(name))?;
    let done = what();
    vendor::phase(None)?;
    done
}
