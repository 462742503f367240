// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The images that QEMU starts: the hypervisor and the bare-metal guest, as `cargo xtask build` makes them.
//!
//! Invariant: images that are returned exist. Those of this workspace are built if they are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// The paths of the images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// The hypervisor as released.
    pub plain: PathBuf,
    /// The hypervisor with the baselines of all techniques.
    pub baselines: PathBuf,
    /// The bare-metal guest.
    pub guest: PathBuf,
}

impl Images {
    /// The images of `directory`, or of this workspace. `doing` is called with a message before a long build.
    ///
    /// # Errors
    ///
    /// An image is missing, and cannot be built.
    pub fn find(directory: Option<&Path>, doing: impl Fn(&str)) -> anyhow::Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let images = Self::in_directory(&directory.map_or_else(|| workspace.join("target/image"), Path::to_owned));
        if directory.is_none() && images.missing().is_some() {
            doing("building the hypervisor's image (cargo xtask build)");
            build(&workspace)?;
        }
        match images.missing() {
            Some(missing) => {
                bail!("there is no {}: run `cargo xtask build`, or name its directory with --images", missing.display())
            }
            None => Ok(images),
        }
    }

    fn in_directory(place: &Path) -> Self {
        Self {
            plain: place.join("twofold.img"),
            baselines: place.join("baselines/twofold.img"),
            guest: place.join("guest.img"),
        }
    }

    fn missing(&self) -> Option<&Path> {
        [&self.plain, &self.baselines, &self.guest].into_iter().find(|image| !image.is_file()).map(PathBuf::as_path)
    }
}

/// Runs `cargo xtask build`, with nothing on standard output.
fn build(workspace: &Path) -> anyhow::Result<()> {
    ensure!(
        workspace.join("xtask").is_dir(),
        "the hypervisor's image is built from this program's sources, which are not here: use --images DIR"
    );
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["xtask", "build"]).current_dir(workspace).stdin(Stdio::null());
    let done = command.output().context("cannot start `cargo xtask build`")?;
    let said = String::from_utf8_lossy(&done.stderr);
    // The first error is the cause. Cargo's last line only says that the command failed.
    let why = said.lines().find(|line| line.starts_with("error")).unwrap_or_default();
    ensure!(done.status.success(), "`cargo xtask build` failed: {why}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let find =
            || Images::find(Some(directory.path()), |_| panic!("nothing is built for a directory that was named"));
        fs::create_dir(directory.path().join("baselines")).unwrap();
        for name in ["twofold.img", "baselines/twofold.img", "guest.img"] {
            assert!(find().unwrap_err().to_string().contains(name), "{name}");
            fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(find().unwrap(), Images::in_directory(directory.path()));
    }
}
