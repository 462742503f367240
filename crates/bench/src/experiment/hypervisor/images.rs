// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The images that QEMU starts: the hypervisor and the bare-metal guest, as `cargo xtask build` makes them.
//!
//! Invariant: images that are returned exist. Those of this workspace are built if they are missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use twofold_launch::built;

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
        let images = Self::in_directory(&directory.map_or_else(built::images, Path::to_owned));
        if directory.is_none() && images.missing().is_some() {
            doing("building the hypervisor's image (cargo xtask build)");
            build(&["build"])?;
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

/// A Linux guest that runs `bm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxImages {
    /// Its kernel.
    pub kernel: PathBuf,
    /// Its initrd.
    pub initrd: PathBuf,
}

impl LinuxImages {
    /// The guest of `directory`, or of this workspace. `doing` is called with a message before a long build.
    ///
    /// # Errors
    ///
    /// A file is missing, and cannot be made.
    pub fn find(directory: Option<&Path>, doing: impl Fn(&str)) -> anyhow::Result<Self> {
        let [kernel, initrd] = made_by(&["build", "--linux-bm"], ["linux.img", "bm.cpio"], directory, || {
            doing("making a Linux guest with bm (cargo xtask build --linux-bm)");
        })?;
        Ok(Self { kernel, initrd })
    }
}

/// The hypervisor as released, of `directory` or of this workspace.
///
/// # Errors
///
/// It is missing, and cannot be built.
pub fn released(directory: Option<&Path>, doing: impl Fn(&str)) -> anyhow::Result<PathBuf> {
    let [image] = made_by(&["build"], ["twofold.img"], directory, || {
        doing("building the hypervisor's image (cargo xtask build)");
    })?;
    Ok(image)
}

/// The files of this name in `directory`, or those that `cargo xtask` with these words makes in this workspace. `doing` is called
/// before it makes them.
///
/// # Errors
///
/// A file is missing, and cannot be made.
pub fn made_by<const N: usize>(
    words: &[&str],
    names: [&str; N],
    directory: Option<&Path>,
    doing: impl Fn(),
) -> anyhow::Result<[PathBuf; N]> {
    let place = directory.map_or_else(built::images, Path::to_owned);
    let files = names.map(|name| place.join(name));
    let missing = || files.iter().find(|file| !file.is_file());
    if directory.is_none() && missing().is_some() {
        doing();
        build(words)?;
    }
    if let Some(missing) = missing() {
        bail!(
            "there is no {}: run `cargo xtask {}`, or name its directory with --images",
            missing.display(),
            words.join(" ")
        );
    }
    Ok(files)
}

/// Runs `cargo xtask` with these words, with nothing on standard output.
fn build(words: &[&str]) -> anyhow::Result<()> {
    let checkout = built::checkout();
    ensure!(
        checkout.join("xtask").is_dir(),
        "the hypervisor's image is built from this program's sources, which are not here: use --images DIR"
    );
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.arg("xtask").args(words).current_dir(checkout).stdin(Stdio::null());
    let name = format!("cargo xtask {}", words.join(" "));
    let done = command.output().with_context(|| format!("cannot start `{name}`"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    // The first error is the cause. Cargo's last line only says that the command failed.
    let why = said.lines().find(|line| line.starts_with("error")).unwrap_or_default();
    ensure!(done.status.success(), "`{name}` failed: {why}");
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

    #[test]
    fn what_is_missing_of_a_linux_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let find = || LinuxImages::find(Some(directory.path()), |_| panic!("nothing is made for this directory"));
        for name in ["linux.img", "bm.cpio"] {
            assert!(find().unwrap_err().to_string().contains(name), "{name}");
            fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(find().unwrap().initrd, directory.path().join("bm.cpio"));
    }
}
