// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's kernels for arm64, each with the modules that a guest needs before its disk is mounted.
//!
//! Invariant: as for every cache here, a kernel is complete or absent (`fetch`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow, bail};
use twofold_launch::image::Image;

use crate::apt::Apt;
use crate::fetch::{self, Versions};
use crate::install;
use crate::subprocess;
use crate::workspace::Workspace;

/// A kernel of Debian's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The series: `6.12`.
    pub series: &'static str,
    /// The flavour: `cloud-arm64`.
    pub flavour: &'static str,
}

/// A kernel in the cache.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The kernel as Debian ships it, an uncompressed arm64 Image.
    pub kernel: PathBuf,
    /// The modules for an initramfs, compressed or not, in the order in which they are loaded.
    pub modules: Vec<PathBuf>,
    /// The kernel's release and its package's version.
    pub versions: Versions,
}

impl Kernel {
    /// The kernel of most guests: small, and of the newest series of Debian 12.
    pub const DEFAULT: Self = Self { series: "6.12", flavour: "cloud-arm64" };

    /// All kernels that guests are tested with.
    pub const ALL: [Self; 6] = [
        Self { series: "6.1", flavour: "arm64" },
        Self { series: "6.1", flavour: "cloud-arm64" },
        Self { series: "6.1", flavour: "rt-arm64" },
        Self { series: "6.12", flavour: "arm64" },
        Self::DEFAULT,
        Self { series: "6.12", flavour: "rt-arm64" },
    ];

    /// Returns the package of the newest kernel of the series and flavour.
    pub fn package(&self, apt: &Apt) -> anyhow::Result<String> {
        let Self { series, flavour } = self;
        // The meta package of the series, and the one that depends on the series if Debian's stable kernel is of it.
        for meta in [format!("linux-image-{series}-{flavour}"), format!("linux-image-{flavour}")] {
            if let Some(package) = apt.depends(&meta).ok().as_deref().and_then(|depends| self.find(depends)) {
                return Ok(package);
            }
        }
        bail!(
            "the host's package sources have no arm64 kernel linux-image-{series}.*-{flavour}: they are not Debian's, \
             or not for arm64, or of another release"
        )
    }

    /// Returns the kernel from the cache. Fetches it from Debian if it is not cached or if `refresh` is set.
    pub fn fetch(&self, workspace: &Workspace, refresh: bool) -> anyhow::Result<Fetched> {
        let place = workspace.guest_cache().join(PLACE).join(format!("{}-{}", self.series, self.flavour));
        if let (false, Some(fetched)) = (refresh, cached(&place)) {
            return Ok(fetched);
        }
        let cache = place.parent().expect("the place is in a directory");
        fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
        let directory =
            tempfile::Builder::new().prefix("fetch-").tempdir_in(cache).context("cannot write the cache")?;
        let apt = Apt::new(directory.path())?;
        // The source that failed may not be the one with the kernel.
        let updated = apt.update();
        let package = match (self.package(&apt), updated) {
            (Ok(package), _) => package,
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
        };
        let new = directory.path().join("new");
        let (tree, version) = apt.unpack(&package)?;
        keep(&tree, &package, version, &new).with_context(|| format!("{package} is not usable"))?;
        fetch::put(&new, &place, &directory.path().join("old"))?;
        cached(&place).context("the cache vanished while it was made")
    }

    /// Finds the kernel's package in the output of `apt-cache depends`.
    fn find(&self, depends: &str) -> Option<String> {
        let (prefix, suffix) = (format!("linux-image-{}.", self.series), format!("-{}", self.flavour));
        // The plain flavour's name is the end of the others' too.
        let version = |package: &str| -> Option<String> {
            Some(package.strip_prefix(&prefix)?.strip_suffix(&suffix)?.rsplit('-').next()?.to_owned())
        };
        let is_it = |package: &&str| version(package).is_some_and(|last| !["cloud", "rt"].contains(&&*last));
        depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).find(is_it).map(str::to_owned)
    }
}

/// The package of depmod.
pub const KMOD: &str = "kmod";

const PLACE: &str = "kernels";
const KERNEL: &str = "vmlinuz";
const MODULES: &str = "modules";
const VERSIONS: &str = "versions.json";

/// The devices that a guest of ours has, and what mounts its disk. What a kernel has built in has no module.
const WANTED: [&str; 7] =
    ["virtio_mmio", "virtio_blk", "virtio_net", "virtio_rng", "virtio_balloon", "crc32c_generic", "ext4"];

fn cached(place: &Path) -> Option<Fetched> {
    let versions = serde_json::from_slice(&fs::read(place.join(VERSIONS)).ok()?).ok()?;
    let mut modules: Vec<_> = fs::read_dir(place.join(MODULES)).ok()?.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    let kernel = place.join(KERNEL);
    kernel.is_file().then_some(Fetched { kernel, modules, versions })
}

/// Puts what is needed of an unpacked kernel into `new`.
fn keep(tree: &Path, package: &str, version: String, new: &Path) -> anyhow::Result<()> {
    let release = package.trim_start_matches("linux-image-").to_owned();
    fs::create_dir_all(new.join(MODULES))?;
    let kernel = format!("boot/vmlinuz-{release}");
    fs::copy(tree.join(&kernel), new.join(KERNEL)).with_context(|| format!("it has no {kernel}"))?;
    Image::open(&new.join(KERNEL))?;
    let modules = modules(tree, &release)?;
    for (number, path) in load_order(&dependencies(&modules, &release)?, &WANTED).iter().enumerate() {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        // The number keeps the order of loading.
        fs::copy(modules.join(path), new.join(MODULES).join(format!("{number:02}-{name}")))?;
    }
    let versions = Versions { kernel: release, packages: BTreeMap::from([(package.to_owned(), version)]) };
    Ok(fs::write(new.join(VERSIONS), serde_json::to_string_pretty(&versions)? + "\n")?)
}

/// Returns the directory of the modules in an unpacked kernel, with their lists made by depmod.
pub(crate) fn modules(tree: &Path, release: &str) -> anyhow::Result<PathBuf> {
    // Debian 13 installs modules below /usr.
    let base = [tree.to_owned(), tree.join("usr")].into_iter().find(|base| base.join("lib/modules").is_dir());
    let base = base.ok_or_else(|| anyhow!("it has no lib/modules"))?;
    subprocess::read(Command::new(install::system_program("depmod", KMOD)?).arg("-b").arg(&base).arg(release))?;
    Ok(base.join("lib/modules").join(release))
}

/// Reads which modules each module needs, by their paths.
fn dependencies(modules: &Path, release: &str) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let list = modules.join("modules.dep");
    let text = fs::read_to_string(&list).with_context(|| format!("depmod made no list of the modules of {release}"))?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(path, needs)| (path.to_owned(), needs.split_whitespace().map(str::to_owned).collect())).collect())
}

/// Returns the paths of the wanted modules and of all that they need, in the order in which they can be loaded.
fn load_order(dependencies: &BTreeMap<String, Vec<String>>, wanted: &[&str]) -> Vec<String> {
    let name = |path: &str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.split('.').next().unwrap_or(file).replace('-', "_")
    };
    let mut order: Vec<String> = Vec::new();
    for wanted in wanted {
        let Some((path, needs)) = dependencies.iter().find(|(path, _)| name(path) == *wanted) else { continue };
        // depmod lists a module before the ones that it needs itself.
        for path in needs.iter().rev().chain([path]) {
            if !order.contains(path) {
                order.push(path.clone());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_kernel_among_dependencies() {
        let found = |series, flavour, depends: &str| Kernel { series, flavour }.find(depends);
        let cloud = "linux-image-6.12-cloud-arm64\n  Depends: linux-image-6.12.117+deb12-cloud-arm64\n";
        assert_eq!(found("6.12", "cloud-arm64", cloud).as_deref(), Some("linux-image-6.12.117+deb12-cloud-arm64"));
        let old = "linux-image-cloud-arm64\n  Depends: linux-image-6.1.0-30-cloud-arm64\n";
        assert_eq!(found("6.12", "cloud-arm64", old), None);
        assert_eq!(found("6.1", "cloud-arm64", old).as_deref(), Some("linux-image-6.1.0-30-cloud-arm64"));
        for other in [cloud, old, "x\n  Depends: linux-image-6.1.0-30-rt-arm64\n", ""] {
            assert_eq!((found("6.1", "arm64", other), found("6.12", "arm64", other)), (None, None), "{other}");
        }
        let plain = "linux-image-arm64\n  Depends: linux-image-6.1.0-56-arm64\n";
        assert_eq!(found("6.1", "arm64", plain).as_deref(), Some("linux-image-6.1.0-56-arm64"));
    }

    #[test]
    fn a_module_comes_after_all_that_it_needs() {
        let dependencies = [
            ("fs/ext4.ko.xz", "lib/crc16.ko.xz fs/jbd2.ko.xz"),
            ("net/virtio_net.ko.xz", "net/net_failover.ko.xz net/failover.ko.xz"),
            ("char/virtio-rng.ko", ""),
            ("lib/crc16.ko.xz", ""),
        ];
        let dependencies = dependencies
            .map(|(path, needs)| (path.to_owned(), needs.split_whitespace().map(str::to_owned).collect()))
            .into();
        assert_eq!(
            load_order(&dependencies, &["virtio_net", "virtio_blk", "virtio_rng", "ext4", "crc16"]),
            [
                "net/failover.ko.xz",
                "net/net_failover.ko.xz",
                "net/virtio_net.ko.xz",
                "char/virtio-rng.ko",
                "fs/jbd2.ko.xz",
                "lib/crc16.ko.xz",
                "fs/ext4.ko.xz"
            ]
        );
    }
}
