// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls of Cargo as tests.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use twofold_workspace::{Workspace, subprocess};

use super::harness::trial;

/// Returns a call of Cargo in the checkout.
pub fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).args(arguments);
    command
}

/// Adds the hosted machine in strict mode, which needs the engine built with a feature.
pub fn machine(mut command: Command, more: &[&str]) -> Command {
    command.args(["--package", "twofold-machine", "--features", "twofold-machine/strict"]).args(more);
    command
}

/// Returns a test that passes if `command` ends with 0.
pub fn step(name: &str, mut command: Command) -> Trial {
    trial(name, move || {
        let typed = subprocess::shown(&command);
        subprocess::quiet(&mut command).map_err(|error| Failed::from(format!("`{typed}`\n{error:#}")))
    })
}
