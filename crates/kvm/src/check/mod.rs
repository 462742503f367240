// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks of the guest and of this host's KVM, by name. They are this crate's tests, run where it cannot be tested
//! otherwise (an arm64 kernel in QEMU), and run before a figure is trusted.
//!
//! A check compares what the guest wrote, and what KVM's logs report, with what its passes define.

mod case;
mod errors;
mod guests;
mod logs;
mod passes;

use std::io::{self, Write};

pub use case::{Check, Outcome};

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
