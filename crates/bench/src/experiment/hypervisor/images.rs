// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The images that QEMU starts: the hypervisor's and the bare-metal guest's, as `cargo xtask build` leaves them.
//!
//! Invariant: images are there when they are told of; those of this program's own sources are built where they are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

/// Where the images are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// The hypervisor, as it is released.
    pub plain: PathBuf,
    /// The hypervisor that can do what was before each technique.
    pub baselines: PathBuf,
    /// The bare-metal guest.
    pub guest: PathBuf,
}

impl Images {
    /// Those of `directory`, or of this program's own sources. `doing` is told of what takes its time.
    ///
    /// # Errors
    ///
    /// They are not there, and cannot be built.
    pub fn find(directory: Option<&Path>, doing: impl Fn(&str)) -> anyhow::Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let images = Self::in_directory(&directory.map_or_else(|| workspace.join("target/image"), Path::to_owned));
        if directory.is_none() && images.missing().is_some() {
            doing("building the hypervisor's image (cargo xtask build)");
            build(&workspace)?;
        }
        match images.missing() {
            Some(missing) => {
                bail!("there is no {}: `cargo xtask build` makes it, --images says where it is", missing.display())
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

/// `cargo xtask build`, with nothing on standard output.
fn build(workspace: &Path) -> anyhow::Result<()> {
    ensure!(
        workspace.join("xtask").is_dir(),
        "the hypervisor's image is built from this program's sources, which are not here: give --images DIR"
    );
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["xtask", "build"]).current_dir(workspace).stdin(Stdio::null());
    let done = command.output().context("cannot start `cargo xtask build`")?;
    let said = String::from_utf8_lossy(&done.stderr);
    // What came first is why; Cargo's own last word is that it failed.
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
