// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the checks of the guest under this host's KVM, and prints TAP lines. An argument selects the checks whose names
//! contain it. Exit status 0: no check failed; 1: a check failed; 4: this host cannot run a guest under KVM.

use std::process::ExitCode;
use std::{env, io};

use twofold_kvm::{Host, check};

fn main() -> io::Result<ExitCode> {
    if let Err(error) = twofold_kvm::available() {
        println!("1..0 # SKIP {error}");
        return Ok(ExitCode::from(4));
    }
    let host = Host::this();
    for line in format!("{host:#?}").lines() {
        println!("# {line}");
    }
    let filter = env::args().nth(1).unwrap_or_default();
    let held = check::tap(&filter, &mut io::stdout().lock())?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
