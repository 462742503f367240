// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask build`: builds the bare-metal images.

use std::process::ExitCode;

use twofold_workspace::build::{EL2_TESTS, GUEST, HYPERVISOR, MEASURING_HYPERVISOR, images};
use twofold_workspace::install;
use twofold_workspace::install::TARGET;
use twofold_workspace::{Workspace, steps::Steps};

/// `cargo xtask build`.
pub fn command(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let steps = Steps::new(workspace.stop().clone());
    steps.step("target", || {
        install::target(TARGET)?;
        Ok(((), TARGET.to_owned()))
    })?;
    for program in [HYPERVISOR, MEASURING_HYPERVISOR, EL2_TESTS, GUEST] {
        steps.step("build", || {
            let size = images(workspace, &[program])?;
            Ok(((), format!("{} ({} KiB)", workspace.shown(&program.image(workspace)).display(), size.div_ceil(1024))))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
