// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fetches Debian's arm64 kernel and busybox for a guest, and caches them.
//!
//! A private apt configuration uses the host's sources and proxies for another architecture. It has its own state and
//! cache and none of the host's hooks, so it changes nothing on the host. Invariant: the cache is complete or absent,
//! because it is made in a directory beside its place and then renamed.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use twofold_launch::image::Image;

use crate::output;
use crate::subprocess;
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
    let package = match (apt.kernel_package(), updated) {
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
/// The meta package of the series, and the one that depends on the series if Debian's stable kernel is of it.
const KERNEL_PACKAGES: [&str; 2] = ["linux-image-6.12-cloud-arm64", "linux-image-cloud-arm64"];
const KERNEL_SERIES: &str = "linux-image-6.12.";

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

/// apt with its own state, cache and configuration.
pub struct Apt {
    configuration: PathBuf,
    directory: PathBuf,
}

impl Apt {
    /// Creates the state, the cache and the configuration below `directory`.
    pub fn new(directory: &Path) -> anyhow::Result<Self> {
        let directory = directory.join("apt");
        for part in ["state/lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(directory.join(part)).context("cannot write the cache")?;
        }
        fs::write(directory.join("status"), "")?;
        let configuration = directory.join("apt.conf");
        let path = directory.to_str().filter(|path| !path.contains(['"', '\n']));
        let path = path.context("apt cannot use this directory's name; move the checkout to a plain path")?;
        fs::write(&configuration, private_configuration(path))?;
        Ok(Self { configuration, directory })
    }

    /// Downloads the package lists.
    pub fn update(&self) -> anyhow::Result<()> {
        subprocess::read(self.apt_get()?.arg("update")).map(drop)
    }

    /// Returns the package of the newest kernel of the series.
    fn kernel_package(&self) -> anyhow::Result<String> {
        for meta in KERNEL_PACKAGES {
            let depends = subprocess::read(self.command(tool("apt-cache")?).args(["depends", meta]));
            if let Some(package) = depends.ok().as_deref().and_then(kernel_in) {
                return Ok(package);
            }
        }
        bail!(
            "the host's package sources have no arm64 kernel {KERNEL_SERIES}*: they are not Debian's, or not for arm64"
        )
    }

    /// Downloads `package` and unpacks it; returns the directory and the package's version.
    pub fn unpack(&self, package: &str) -> anyhow::Result<(PathBuf, String)> {
        let packages = self.directory.join("packages").join(package);
        fs::create_dir_all(&packages)?;
        let mut download = self.apt_get()?;
        subprocess::read(download.current_dir(&packages).args(["download", package]))
            .with_context(|| format!("{package} cannot be downloaded"))?;
        let file = fs::read_dir(&packages)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get downloaded no file for {package}"))?;
        let mut query = Command::new(tool("dpkg-deb")?);
        let version = subprocess::read(query.arg("-f").arg(&file).arg("Version"))?.trim().to_owned();
        let tree = packages.join("tree");
        subprocess::read(Command::new(tool("dpkg")?).arg("-x").arg(&file).arg(&tree))
            .with_context(|| format!("{package} cannot be unpacked"))?;
        Ok((tree, version))
    }

    /// Downloads `package` and all its dependencies, and unpacks them into one directory; returns the directory and the
    /// package's version.
    pub fn unpack_all(&self, package: &str) -> anyhow::Result<(PathBuf, String)> {
        let mut download = self.apt_get()?;
        subprocess::read(download.args(["install", "--yes", "--no-install-recommends", "--download-only", package]))
            .with_context(|| format!("{package} cannot be downloaded"))?;
        let tree = self.directory.join("packages").join("tree");
        let mut version = None;
        for file in fs::read_dir(self.directory.join("cache/archives"))?.flatten().map(|entry| entry.path()) {
            if file.extension().is_none_or(|extension| extension != "deb") {
                continue;
            }
            subprocess::read(Command::new(tool("dpkg")?).arg("-x").arg(&file).arg(&tree))
                .with_context(|| format!("{} cannot be unpacked", file.display()))?;
            let field = |name| -> anyhow::Result<String> {
                let mut query = Command::new(tool("dpkg-deb")?);
                Ok(subprocess::read(query.arg("-f").arg(&file).arg(name))?.trim().to_owned())
            };
            if field("Package")? == package {
                version = Some(field("Version")?);
            }
        }
        Ok((tree, version.with_context(|| format!("apt-get downloaded no file for {package}"))?))
    }

    fn apt_get(&self) -> anyhow::Result<Command> {
        let named = env::var_os("TWOFOLD_APT_GET").filter(|name| !name.is_empty());
        Ok(self.command(named.map_or_else(|| tool("apt-get"), |path| Ok(path.into()))?))
    }

    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        // APT_CONFIG would override -c. This program and the user read the messages, so their language is fixed.
        command.env_remove("APT_CONFIG").env("LC_ALL", "C.UTF-8").arg("-c").arg(&self.configuration).arg("-q");
        command
    }
}

/// apt reads this after the host's configuration. The host's sources and proxies remain; its architectures and hooks
/// are cleared.
fn private_configuration(directory: &str) -> String {
    format!(
        "APT::Architecture \"arm64\";\n\
         #clear APT::Architectures;\n\
         APT::Architectures {{ \"arm64\"; }};\n\
         #clear APT::Update;\n\
         #clear DPkg::Pre-Invoke;\n\
         #clear DPkg::Post-Invoke;\n\
         #clear DPkg::Pre-Install-Pkgs;\n\
         #clear Acquire::IndexTargets::deb::DEP-11;\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"2\";\n\
         Acquire::http::Timeout \"20\";\n\
         Acquire::https::Timeout \"20\";\n\
         APT::Sandbox::User \"root\";\n\
         Dir::State \"{directory}/state\";\n\
         Dir::State::status \"{directory}/status\";\n\
         Dir::Cache \"{directory}/cache\";\n"
    )
}

/// Finds the kernel's package in the output of `apt-cache depends`.
fn kernel_in(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with(KERNEL_SERIES) && package.ends_with("-cloud-arm64"))
        .map(str::to_owned)
}

fn tool(name: &str) -> anyhow::Result<PathBuf> {
    subprocess::find(name).ok_or_else(|| anyhow!("there is no {name} here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_kernel_among_dependencies() {
        let depends = "linux-image-6.12-cloud-arm64\n  Depends: linux-image-6.12.117+deb12-cloud-arm64\n";
        assert_eq!(kernel_in(depends).as_deref(), Some("linux-image-6.12.117+deb12-cloud-arm64"));
        assert_eq!(kernel_in("linux-image-cloud-arm64\n  Depends: linux-image-6.1.0-30-cloud-arm64\n"), None);
        assert_eq!(kernel_in("linux-image-arm64\n  Depends: linux-image-6.12.1-arm64\n"), None);
        assert_eq!(kernel_in(""), None);
    }

    #[test]
    fn the_configuration_changes_nothing_of_the_host() {
        let text = private_configuration("/d");
        for line in [
            "#clear APT::Update;",
            "Dir::State \"/d/state\";",
            "Dir::State::status \"/d/status\";",
            "Dir::Cache \"/d/cache\";",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
    }

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
