// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the guest and of this host's KVM, by name. They are this crate's tests, run where it cannot be tested
//! otherwise (an arm64 kernel in QEMU), and run before a figure is trusted.
//!
//! A check compares what the guest wrote, and what KVM's logs report, with what its passes define.

mod errors;
mod logs;
mod passes;

use std::io::{self, Write};

use twofold_workload::mode::{MODES, Mode};
use twofold_workload::pass::Pass;

use crate::bitmap::Bitmap;
use crate::error::KvmError;
use crate::guest::KvmGuest;
use crate::options::{KvmOptions, Region};

/// A check.
pub struct Check {
    /// The name.
    pub name: String,
    run: Box<dyn Fn() -> Result<(), Stopped> + Send>,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The check passed.
    Passed,
    /// This host cannot run the check, for this reason.
    Skipped(String),
    /// The check failed, in this way.
    Failed(String),
}

/// Returns all checks.
pub fn all() -> Vec<Check> {
    [passes::checks(), logs::checks(), errors::checks()].into_iter().flatten().collect()
}

/// Runs all checks whose names contain `filter`, and writes lines of the Test Anything Protocol. Returns whether no
/// check failed.
///
/// # Errors
///
/// An error is returned if `out` cannot be written.
pub fn tap(filter: &str, out: &mut impl Write) -> io::Result<bool> {
    let checks: Vec<_> = all().into_iter().filter(|check| check.name.contains(filter)).collect();
    writeln!(out, "TAP version 13\n1..{}", checks.len())?;
    let mut held = true;
    for (index, check) in checks.iter().enumerate() {
        let number = index + 1;
        match check.run() {
            Outcome::Passed => writeln!(out, "ok {number} - {}", check.name)?,
            Outcome::Skipped(why) => writeln!(out, "ok {number} - {} # SKIP {}", check.name, why.replace('\n', " "))?,
            Outcome::Failed(how) => {
                held = false;
                writeln!(out, "not ok {number} - {}\n# {}", check.name, how.replace('\n', "\n# "))?;
            }
        }
        out.flush()?;
    }
    Ok(held)
}

impl Check {
    fn new(name: impl Into<String>, run: impl Fn() -> Result<(), Stopped> + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// Runs the check.
    pub fn run(&self) -> Outcome {
        match (self.run)() {
            Ok(()) => Outcome::Passed,
            Err(Stopped::Skip(why)) => Outcome::Skipped(why),
            Err(Stopped::Wrong(how)) => Outcome::Failed(how),
        }
    }
}

/// Why a check ended early.
enum Stopped {
    Skip(String),
    Wrong(String),
}

impl From<KvmError> for Stopped {
    /// A feature that the host lacks is a skip, not a failure.
    fn from(error: KvmError) -> Self {
        match error {
            KvmError::Unavailable(_)
            | KvmError::Missing { .. }
            | KvmError::NoHugePages { .. }
            | KvmError::NoTransparentHugePages
            | KvmError::NoMemory { .. }
            | KvmError::TooMany { .. }
            | KvmError::Mode { .. } => Self::Skip(error.to_string()),
            _ => Self::Wrong(error.to_string()),
        }
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Stopped> {
    if holds { Ok(()) } else { Err(Stopped::Wrong(otherwise())) }
}

/// The mode of most checks: arm64's with 4K granules, x86-64's only one.
const MODE: Mode = KvmOptions::native_mode();
/// Guest pages of a vCPU's region in most checks. Not a multiple of 64, so that a log ends within a word.
const PAGES: u64 = 700;

/// A guest with `PAGES` pages for each vCPU.
fn options(vcpus: u32) -> KvmOptions {
    KvmOptions { vcpus, ..in_mode(MODE) }
}

/// A guest with one vCPU, in another mode.
fn in_mode(mode: Mode) -> KvmOptions {
    KvmOptions::new(mode, PAGES * mode.granule.size())
}

/// A guest with one region of `PAGES` pages for all vCPUs.
fn shared(vcpus: u32) -> KvmOptions {
    KvmOptions { region: Region::Shared(PAGES * MODE.granule.size()), ..options(vcpus) }
}

/// A pass that writes the first word of each page of a vCPU's region.
fn writes(guest: &KvmGuest, vcpu: usize, value: u64) -> Pass {
    let region = guest.region(vcpu);
    let step = guest.mode().granule.size();
    Pass { value, ..Pass::writes(region.start, (region.end - region.start) / step, step) }
}

/// Returns the pages of each slot that these passes write, by `Pass::accesses`.
fn written(guest: &KvmGuest, passes: &[Vec<Pass>]) -> Vec<Bitmap> {
    let mut logs = vec![Bitmap::new(guest.slot_pages()); guest.slots()];
    let writes = passes.iter().flatten().flat_map(Pass::accesses).filter(|access| access.write);
    for place in writes.filter_map(|access| guest.place(access.va)) {
        logs[place.slot].set(place.page);
    }
    logs
}

/// Returns the architecture's modes. The host may lack some of them.
fn modes() -> impl Iterator<Item = Mode> {
    let arm64 = |mode: &Mode| mode.va_bits <= 48 && mode.pa_bits != Some(52);
    MODES.into_iter().filter(move |mode| if cfg!(target_arch = "x86_64") { *mode == MODE } else { arm64(mode) })
}
