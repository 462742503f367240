// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes the Linux guest that serves Redis ([`twofold_launch::redis`]): Debian's kernel, and an initrd with its network drivers
//! and Debian's Redis.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use twofold_launch::redis as agreed;
use twofold_workspace::kernels::Kernel;
use twofold_workspace::{Workspace, commands, fetch, initramfs};

use crate::redis;

/// What the bench finds in the directory of images.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: PathBuf,
    /// The kernel's release.
    pub release: String,
    /// Redis's version.
    pub redis: String,
}

/// Makes the guest in the directory of images.
pub fn build(workspace: &Workspace) -> anyhow::Result<Guest> {
    let (fetched, redis) = (Kernel::DEFAULT.fetch(workspace, false)?, redis::fetch_redis(workspace, false)?);
    let mut files = redis.files;
    files.insert(commands::FILE.to_owned(), commands::lines(&agreed::commands())?);
    for module in &fetched.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        files.insert(format!("modules/{name}"), fs::read(module).context("the cached kernel lost a module")?);
    }
    let images = workspace.images();
    fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
    let (kernel, initrd) = (images.join("redis-linux.img"), images.join("redis.cpio"));
    let copy = tempfile::NamedTempFile::new_in(&images).context("cannot write the kernel")?;
    fs::copy(&fetched.kernel, copy.path()).context("cannot write the kernel")?;
    copy.persist(&kernel).context("cannot write the kernel")?;
    let busybox = fetch::fetch(workspace, false)?.busybox;
    initramfs::write(&initrd, initramfs::COMMANDS, &busybox, &files)?;
    Ok(Guest { kernel, initrd, release: fetched.versions.kernel, redis: redis.version })
}
