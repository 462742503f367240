// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the kernel's source, as Debian packages it: fetched once, and kept in a cache.
//!
//! Invariant: the cache is complete or absent, because it is made in a directory beside its place and then renamed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use twofold_workspace::apt::Apt;
use twofold_workspace::fetch;
use twofold_workspace::{Workspace, install, subprocess};

/// Debian's package with the source.
pub const PACKAGE: &str = "linux-source-6.12";

/// Parts of the source in the cache.
#[derive(Debug)]
pub struct Source {
    /// The directory with the parts.
    pub directory: PathBuf,
    /// The package's version.
    pub version: String,
    /// Whether the source was in the cache already.
    pub cached: bool,
}

/// The parts of the source that a peer needs.
pub struct Wanted<'a> {
    /// The name of the cache's directory.
    pub name: &'a str,
    /// Files and folders of the kernel's tree.
    pub parts: &'a [&'a str],
    /// Files that a complete cache has.
    pub kept: &'a [&'a str],
    /// Moves the parts of a tree to where they are kept, and returns that directory.
    pub arrange: fn(&Path) -> anyhow::Result<PathBuf>,
}

impl Wanted<'_> {
    /// Returns the source from the cache. Fetches it from Debian if it is not cached or if `refresh` is set.
    pub fn fetch(&self, workspace: &Workspace, refresh: bool) -> anyhow::Result<Source> {
        let cache = workspace.peers();
        let place = cache.join(self.name);
        if let (false, Some(source)) = (refresh, self.cached(&place)) {
            return Ok(source);
        }
        fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let directory =
            tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot write the cache")?;
        let (tree, version) = unpack(directory.path(), self.parts)?;
        let new = (self.arrange)(&tree).with_context(|| format!("{PACKAGE} {version}"))?;
        fs::write(new.join(VERSION), format!("{version}\n"))?;
        fetch::put(&new, &place, &directory.path().join("old"))?;
        let source = self.cached(&place).context("the cache vanished while it was made")?;
        Ok(Source { cached: false, ..source })
    }

    fn cached(&self, place: &Path) -> Option<Source> {
        let version = fs::read_to_string(place.join(VERSION)).ok()?.trim().to_owned();
        let is_complete = self.kept.iter().all(|file| place.join(file).is_file());
        is_complete.then(|| Source { directory: place.to_owned(), version, cached: true })
    }
}

const VERSION: &str = "version";

/// Moves a part of a tree, and makes the directory around its new place.
pub fn rename(part: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::rename(part, to).with_context(|| format!("there is no {}", part.display()))
}

/// Fetches the package and unpacks `parts` of the source below `directory`. Returns the top of the source tree and the
/// package's version.
fn unpack(directory: &Path, parts: &[&str]) -> anyhow::Result<(PathBuf, String)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_cache_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let kept = ["one.c", "asm/two.h"];
        let wanted = Wanted { name: "", parts: &[], kept: &kept, arrange: |tree| Ok(tree.to_owned()) };
        fs::create_dir(directory.path().join("asm")).unwrap();
        for name in kept.into_iter().chain([VERSION]) {
            assert!(wanted.cached(directory.path()).is_none(), "{name} is missing");
            fs::write(directory.path().join(name), "6.12\n").unwrap();
        }
        assert_eq!(wanted.cached(directory.path()).unwrap().version, "6.12");
        fs::remove_file(directory.path().join(VERSION)).unwrap();
        assert!(wanted.cached(directory.path()).is_none());
    }
}
