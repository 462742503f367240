// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fetches Debian's arm64 kernel and busybox for a guest, and caches them.
//!
//! Invariant: the cache is complete or absent, because it is made in a directory beside its place and then renamed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use twofold_launch::image::Image;

use crate::apt::Apt;
use crate::kernels::Kernel;
use crate::output;
use crate::workspace::Workspace;

/// The fetched parts of a Linux guest.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The kernel, an uncompressed arm64 Image.
    pub kernel: PathBuf,
    /// busybox, a static arm64 program.
    pub busybox: PathBuf,
    /// The versions of both.
    pub versions: Versions,
    /// Whether both were in the cache already.
    pub cached: bool,
}

/// The versions of the cached packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Versions {
    /// The kernel's release: `6.12.1+deb12-cloud-arm64`.
    pub kernel: String,
    /// The version of each package, by its name.
    pub packages: BTreeMap<String, String>,
}

/// Returns the cached guest, if it is complete.
pub fn cached(workspace: &Workspace) -> Option<Fetched> {
    let place = workspace.guest_cache().join(PLACE);
    let versions = serde_json::from_slice(&fs::read(place.join(VERSIONS)).ok()?).ok()?;
    let (kernel, busybox) = (place.join(KERNEL), place.join(BUSYBOX));
    (kernel.is_file() && busybox.is_file()).then_some(Fetched { kernel, busybox, versions, cached: true })
}

/// Returns the guest from the cache. Fetches it from Debian if it is not cached or if `refresh` is set. If a refresh
/// fails, prints the reason and returns the cached guest.
pub fn fetch(workspace: &Workspace, refresh: bool) -> anyhow::Result<Fetched> {
    if let (false, Some(fetched)) = (refresh, cached(workspace)) {
        return Ok(fetched);
    }
    match (fetch_new(workspace), cached(workspace)) {
        (Err(error), Some(kept)) if !workspace.stop().is_requested() => {
            output::line(&format!("not fetched again, so the guest in the cache is used: {}", in_one_line(&error)))?;
            Ok(kept)
        }
        (fetched, _) => fetched,
    }
}

/// Returns `error` and its causes in one line.
pub fn in_one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fetch_new(workspace: &Workspace) -> anyhow::Result<Fetched> {
    let cache = workspace.guest_cache();
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let directory = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot write the cache")?;
    let stop = || if workspace.stop().is_requested() { Err(anyhow!("stopped")) } else { Ok(()) };

    let apt = Apt::new(directory.path())?;
    let updated = apt.update();
    stop()?;
    // The source that failed may not be the one with the kernel. So the update's error counts only if no kernel is
    // found.
    let package = match (Kernel::DEFAULT.package(&apt), updated) {
        (Ok(package), _) => package,
        (Err(_), Err(update)) => return Err(update),
        (Err(error), Ok(())) => return Err(error),
    };
    let new = directory.path().join("new");
    fs::create_dir(&new)?;
    let mut versions = Versions::default();
    let release = package.trim_start_matches("linux-image-").to_owned();
    for (package, file, place) in [
        (package.as_str(), format!("boot/vmlinuz-{release}"), KERNEL),
        (BUSYBOX_PACKAGE, "bin/busybox".to_owned(), BUSYBOX),
    ] {
        let (tree, version) = apt.unpack(package)?;
        stop()?;
        // Debian 13 installs all programs below /usr.
        let found = [tree.join(&file), tree.join("usr").join(&file)].into_iter().find(|path| path.is_file());
        let found = found.ok_or_else(|| anyhow!("{package} {version} has no {file} in it"))?;
        fs::copy(&found, new.join(place)).with_context(|| format!("cannot copy {file}"))?;
        versions.packages.insert(package.to_owned(), version);
    }
    versions.kernel = release;
    Image::open(&new.join(KERNEL)).context("the fetched kernel is not usable")?;
    fs::write(new.join(VERSIONS), serde_json::to_string_pretty(&versions)? + "\n")?;
    put(&new, &cache.join(PLACE), &directory.path().join("old"))?;
    cached(workspace)
        .map(|fetched| Fetched { cached: false, ..fetched })
        .context("the cache vanished while it was made")
}

const PLACE: &str = "debian";
const KERNEL: &str = "vmlinuz";
const BUSYBOX: &str = "busybox";
const VERSIONS: &str = "versions.json";
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// Renames `new` to `place`. An existing `place` is first renamed to `old`.
pub fn put(new: &Path, place: &Path, old: &Path) -> anyhow::Result<()> {
    if place.exists() {
        fs::rename(place, old).context("cannot replace the cache")?;
    }
    match fs::rename(new, place) {
        // Another `run` has put its cache there first, which is as good.
        Err(_) if place.is_dir() => Ok(()),
        renamed => renamed.context("cannot put the cache in its place"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["first", "second"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join(VERSIONS), name).unwrap();
            put(&path(name), &path("place"), &path("old")).unwrap();
            assert_eq!(fs::read_to_string(path("place").join(VERSIONS)).unwrap(), name);
        }
        assert_eq!(fs::read_to_string(path("old").join(VERSIONS)).unwrap(), "first");
    }

    #[test]
    fn versions_survive_a_file() {
        let versions = Versions {
            kernel: "6.12.1-cloud-arm64".to_owned(),
            packages: BTreeMap::from([("busybox-static".to_owned(), "1.35".to_owned())]),
        };
        let text = serde_json::to_string(&versions).unwrap();
        assert_eq!(serde_json::from_str::<Versions>(&text).unwrap(), versions);
    }
}
