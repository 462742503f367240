// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Linux module of `guests/linux-apf`, built for the kernel of most guests: Debian's own, without a change.
//!
//! The kernel's headers are from the packages that Debian builds beside it. Invariant: as for every cache here, the headers
//! are complete or absent. A module is built in a directory of its own, so that two builds do not meet.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow};

use crate::apt::Apt;
use crate::fetch;
use crate::install;
use crate::subprocess;
use crate::workspace::Workspace;

/// The module's file, without its folder.
pub const NAME: &str = "twofold-apf.ko";

/// A module that was built.
#[derive(Clone, Debug)]
pub struct Module {
    /// The module, without debug information.
    pub path: PathBuf,
    /// The release of the kernel that takes it.
    pub release: String,
}

/// Builds the module for the kernel in the cache. Fetches that kernel and its headers if they are not there.
pub fn build(workspace: &Workspace) -> anyhow::Result<Module> {
    install::arm64_kernel_compiler()?;
    install::program("make", "make")?;
    let release = fetch::fetch(workspace, false)?.versions.kernel;
    let headers = headers(workspace, &release)?;
    let cache = workspace.guest_cache();
    let directory = tempfile::Builder::new().prefix("module-").tempdir_in(&cache).context("cannot write the cache")?;
    copy_sources(&workspace.root().join(SOURCES), directory.path())?;
    let mut make = Command::new("make");
    make.arg("--silent").arg("-C").arg(headers.join(OWN)).arg(format!("M={}", directory.path().display()));
    // The headers name a version of the compiler. BTF needs a program that Debian's packages do not bring.
    make.arg(format!("CC={}", install::ARM64_COMPILER)).args(["KCFLAGS=-Werror", "CONFIG_DEBUG_INFO_BTF_MODULES="]);
    subprocess::read(make.arg("modules")).with_context(|| format!("{SOURCES} cannot be built for Linux {release}"))?;
    let built = directory.path().join(NAME);
    subprocess::read(Command::new(STRIP).arg("--strip-debug").arg(&built))?;
    let path = cache.join(NAME);
    fs::rename(&built, &path).with_context(|| format!("there is no {NAME}"))?;
    Ok(Module { path, release })
}

/// The module as a file of an initramfs whose first process loads it, if the guest has asynchronous page faults.
pub fn files(workspace: &Workspace) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let path = build(workspace)
        .context("`--async-fault pv` loads a module in Linux, which cannot be built; `--async-fault halt` needs none")?
        .path;
    let module = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BTreeMap::from([(NAME.to_owned(), module)]))
}

const SOURCES: &str = "guests/linux-apf";
const STRIP: &str = "aarch64-linux-gnu-strip";
const PLACE: &str = "headers";
/// The parts of the headers: of the flavour, of all flavours, and the programs that build.
const OWN: &str = "own";
const COMMON: &str = "common";
const BUILDING: &str = "kbuild";

/// Copies what a module is built from. The kernel's build leaves its files beside the sources.
fn copy_sources(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|extension| extension == "c" || extension == "h");
        if let Some(name) = path.file_name().filter(|name| is_source || *name == "Kbuild") {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// Returns the directory with the headers of a kernel. Fetches them if they are not in the cache.
fn headers(workspace: &Workspace, release: &str) -> anyhow::Result<PathBuf> {
    let place = workspace.guest_cache().join(PLACE).join(release);
    if place.is_dir() {
        return Ok(place);
    }
    let cache = place.parent().expect("the place is in a directory");
    fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let directory = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache).context("cannot write the cache")?;
    let new = directory.path().join("new");
    fs::create_dir(&new)?;
    fetch_headers(directory.path(), release, &new).with_context(|| {
        format!("the headers of Linux {release} cannot be fetched (`cargo xtask run --refresh --check` fetches the newest kernel)")
    })?;
    fetch::put(&new, &place, &directory.path().join("old"))?;
    Ok(place)
}

fn fetch_headers(directory: &Path, release: &str, new: &Path) -> anyhow::Result<()> {
    let version = version(release).ok_or_else(|| anyhow!("{release} is no release of Debian's"))?;
    let (apt, own_apt) = (Apt::new(directory)?, Apt::of_this_machine(directory)?);
    let updated = apt.update().and_then(|()| own_apt.update());
    let folder = |name: &str| format!("usr/src/linux-headers-{name}");
    for (apt, package, path, part) in [
        (&apt, format!("linux-headers-{release}"), folder(release), OWN),
        (&apt, format!("linux-headers-{version}-common"), folder(&format!("{version}-common")), COMMON),
        (&own_apt, format!("linux-kbuild-{version}"), format!("usr/lib/linux-kbuild-{version}"), BUILDING),
    ] {
        let (tree, _) = match (apt.unpack(&package), &updated) {
            (Ok(unpacked), _) => unpacked,
            // A package source that failed may not be the one with the kernel.
            (Err(error), Err(update)) => return Err(error.context(format!("{update:#}"))),
            (Err(error), Ok(())) => return Err(error),
        };
        fs::rename(tree.join(&path), new.join(part)).with_context(|| format!("{package} has no {path}"))?;
    }
    // The packages refer to each other where dpkg installs them.
    for part in [OWN, COMMON] {
        for folder in ["scripts", "tools"] {
            let link = new.join(part).join(folder);
            fs::remove_file(&link).with_context(|| format!("there is no link {}", link.display()))?;
            symlink(Path::new("..").join(BUILDING).join(folder), link)?;
        }
    }
    fs::write(new.join(OWN).join("Makefile"), format!("include ../{COMMON}/Makefile\n"))?;
    Ok(())
}

/// The part of a release that all flavours of a kernel share.
fn version(release: &str) -> Option<&str> {
    let flavour = ["-cloud-arm64", "-rt-arm64", "-arm64"].into_iter().find(|flavour| release.ends_with(flavour))?;
    release.strip_suffix(flavour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flavours_have_a_version_in_common() {
        for (release, wanted) in [
            ("6.12.117+deb12-cloud-arm64", Some("6.12.117+deb12")),
            ("6.12.117+deb12-rt-arm64", Some("6.12.117+deb12")),
            ("6.1.0-56-arm64", Some("6.1.0-56")),
            ("6.1.0-56-amd64", None),
        ] {
            assert_eq!(version(release), wanted);
        }
    }

    #[test]
    fn sources_are_copied_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        fs::create_dir_all(&to).unwrap();
        for name in ["one.c", "two.h", "Kbuild", "Makefile", "one.o", "README.md"] {
            fs::write(from.join(name), name).unwrap();
        }
        copy_sources(&from, &to).unwrap();
        let mut copied: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        copied.sort();
        assert_eq!(copied, ["Kbuild", "one.c", "two.h"]);
    }
}
