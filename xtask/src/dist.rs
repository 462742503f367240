// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask dist`: builds the command `twofold` as one static file, with the hypervisor's image in it.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::Context;
use twofold_workspace::static_program::{Architecture, Profile, TWOFOLD, build_with};
use twofold_workspace::steps::Steps;
use twofold_workspace::table::thousands;
use twofold_workspace::{Workspace, build, install, output, subprocess};

use crate::arguments::DistOptions;

/// `cargo xtask dist`.
pub fn command(workspace: &Workspace, options: &DistOptions) -> anyhow::Result<ExitCode> {
    let steps = Steps::new(workspace.stop().clone());
    let architectures: &[_] = match &options.architecture {
        Some(one) => std::slice::from_ref(one),
        None => &[Architecture::Aarch64, Architecture::X86_64],
    };
    steps.step("image", || {
        install::target(install::TARGET)?;
        let size = build::images(workspace, &[build::HYPERVISOR])?;
        Ok(((), format!("the hypervisor ({} bytes)", thousands(size))))
    })?;
    let image = build::HYPERVISOR.image(workspace);
    let mut sums = Vec::new();
    for architecture in architectures {
        steps.step("target", || {
            install::target(architecture.target())?;
            Ok(((), architecture.target().to_owned()))
        })?;
        let file = steps.step("build", || {
            let built = build_with(workspace, TWOFOLD, *architecture, Profile::Release, Some(&image))?;
            let file = workspace.dist().join(format!("{}-{}", TWOFOLD.name, architecture.name()));
            fs::copy(&built, &file).with_context(|| format!("cannot write {}", file.display()))?;
            let size = fs::metadata(&file)?.len();
            let words = format!("{} ({} bytes)", workspace.shown(&file).display(), thousands(size));
            Ok((file, words))
        })?;
        sums.push(subprocess::read(
            Command::new("sha256sum").arg(workspace.shown(&file)).current_dir(workspace.root()),
        )?);
    }
    output::line(&format!("\nsha256:\n{}", sums.concat().trim_end()))?;
    Ok(ExitCode::SUCCESS)
}
