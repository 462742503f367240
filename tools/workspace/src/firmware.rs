// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fetches Debian's firmware for QEMU's arm64 machine, and caches it: U-Boot, and EFI (AAVMF).
//!
//! Invariant: the cache is complete or absent, as that of [`mod@crate::fetch`].

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::apt::Apt;
use crate::fetch;
use crate::workspace::Workspace;

/// The fetched firmware. Each file is a flash's contents, from its first byte on.
#[derive(Clone, Debug)]
pub struct Firmware {
    /// U-Boot for QEMU's `virt` (`qemu_arm64`), which runs at EL2 and at EL1.
    pub u_boot: PathBuf,
    /// EFI for QEMU's `virt`.
    pub efi: PathBuf,
}

/// Returns the firmware from the cache, or fetches it from Debian.
pub fn fetch(workspace: &Workspace) -> anyhow::Result<Firmware> {
    let cache = workspace.guest_cache();
    if let Some(cached) = cached(&cache.join(PLACE)) {
        return Ok(cached);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let directory = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot write the cache")?;
    let apt = Apt::new(directory.path())?;
    // A source that failed may not be the one with these packages.
    let updated = apt.update();
    let new = directory.path().join("new");
    fs::create_dir(&new)?;
    for (package, file, place) in FILES {
        ensure!(!workspace.stop().is_requested(), "stopped");
        let unpacked = apt.unpack(package);
        let (tree, version) = match (unpacked, &updated) {
            (Err(_), Err(update)) => anyhow::bail!("{package} cannot be fetched: {}", fetch::in_one_line(update)),
            (unpacked, _) => unpacked?,
        };
        fs::copy(tree.join(file), new.join(place)).with_context(|| format!("{package} {version} has no {file}"))?;
    }
    fetch::put(&new, &cache.join(PLACE), &directory.path().join("old"))?;
    cached(&cache.join(PLACE)).context("the cache vanished while it was made")
}

const PLACE: &str = "firmware";
const U_BOOT: &str = "u-boot.bin";
const EFI: &str = "efi.fd";
/// Packages, what each has, and the place of that in the cache.
const FILES: [(&str, &str, &str); 2] = [
    ("u-boot-qemu", "usr/lib/u-boot/qemu_arm64/u-boot.bin", U_BOOT),
    ("qemu-efi-aarch64", "usr/share/qemu-efi-aarch64/QEMU_EFI.fd", EFI),
];

fn cached(place: &Path) -> Option<Firmware> {
    let (u_boot, efi) = (place.join(U_BOOT), place.join(EFI));
    (u_boot.is_file() && efi.is_file()).then_some(Firmware { u_boot, efi })
}
