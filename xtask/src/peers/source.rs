// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unpacks parts of the kernel's source, as Debian packages it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use twofold_workspace::fetch::Apt;
use twofold_workspace::{install, subprocess};

/// Debian's package with the source.
pub const PACKAGE: &str = "linux-source-6.12";

/// Fetches the package and unpacks `parts` of the source (files or folders) below `directory`. Returns the top of the
/// source tree and the package's version.
pub fn unpack(directory: &Path, parts: &[&str]) -> anyhow::Result<(PathBuf, String)> {
    install::program("xz", "xz-utils")?;
    install::program("tar", "tar")?;
    let apt = Apt::new(directory)?;
    let updated = apt.update();
    // The package source that failed may not be the one with the kernel. So the update's error counts only if unpacking
    // fails.
    let (tree, version) = match (apt.unpack(PACKAGE), updated) {
        (Ok(unpacked), _) => unpacked,
        (Err(_), Err(update)) => return Err(update),
        (Err(error), Ok(())) => return Err(error),
    };
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(tree.join(format!("usr/src/{PACKAGE}.tar.xz"))).arg("-C").arg(directory);
    tar.args(parts.iter().map(|part| format!("{PACKAGE}/{part}")));
    subprocess::read(&mut tar).context("the source cannot be unpacked")?;
    Ok((directory.join(PACKAGE), version))
}
