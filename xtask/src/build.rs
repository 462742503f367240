// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask build`: builds the bare-metal images, the Linux module, or a Linux guest that runs `bm` or serves Redis.

use std::process::ExitCode;

use twofold_workspace::build::{EL2_TESTS, GUEST, HYPERVISOR, MEASURING_HYPERVISOR, images};
use twofold_workspace::install::TARGET;
use twofold_workspace::{Workspace, steps::Steps};
use twofold_workspace::{install, linux_bm, linux_module};

use crate::arguments::BuildOptions;
use crate::redis_guest;

/// `cargo xtask build`.
pub fn command(workspace: &Workspace, options: &BuildOptions) -> anyhow::Result<ExitCode> {
    let steps = Steps::new(workspace.stop().clone());
    if options.linux_module {
        steps.step("module", || {
            let module = linux_module::build(workspace)?;
            let path = workspace.shown(&module.path).display().to_string();
            Ok(((), format!("{path} for Linux {}", module.release)))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.linux_bm {
        steps.step("guest", || {
            let guest = linux_bm::build(workspace)?;
            let [kernel, initrd] =
                [&guest.kernel, &guest.initrd].map(|path| workspace.shown(path).display().to_string());
            Ok(((), format!("{kernel}, {initrd}: Linux {} that runs bm", guest.release)))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.linux_redis {
        steps.step("guest", || {
            let guest = redis_guest::build(workspace)?;
            let [kernel, initrd] =
                [&guest.kernel, &guest.initrd].map(|path| workspace.shown(path).display().to_string());
            Ok(((), format!("{kernel}, {initrd}: Linux {} with Redis {}", guest.release, guest.redis)))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
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
