// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Linux guest that runs `bm` (`guests/bm`), for `twofold bench async-fault --on hypervisor`: Debian's kernel, and an initrd
//! with the program and the module of `guests/linux-apf`.
//!
//! Invariant: a guest without asynchronous page faults may have the module. It finds no device, and does nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use twofold_launch::async_fault::BM;

use crate::static_program::{self, Architecture, Profile};
use crate::workspace::Workspace;
use crate::{commands, fetch, initramfs, install, linux_module};

/// The module, in the guest.
pub const MODULE: &str = "/modules/twofold-apf.ko";

/// What the bench finds in the directory of images.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: PathBuf,
    /// The kernel's release.
    pub release: String,
}

/// Makes the guest in the directory of images.
pub fn build(workspace: &Workspace) -> anyhow::Result<Guest> {
    let mut files = programs(workspace)?;
    files.insert(commands::FILE.to_owned(), commands::lines(&[load(), run()])?);
    let linux = fetch::fetch(workspace, false)?;
    let images = workspace.images();
    fs::create_dir_all(&images).with_context(|| format!("cannot make {}", images.display()))?;
    let (kernel, initrd) = (images.join("linux.img"), images.join("bm.cpio"));
    let copy = tempfile::NamedTempFile::new_in(&images).context("cannot write the kernel")?;
    fs::copy(&linux.kernel, copy.path()).context("cannot write the kernel")?;
    copy.persist(&kernel).context("cannot write the kernel")?;
    initramfs::write(&initrd, initramfs::COMMANDS, &linux.busybox, &files)?;
    Ok(Guest { kernel, initrd, release: linux.versions.kernel })
}

/// `bm` and the module, as files of an initrd.
pub fn programs(workspace: &Workspace) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    install::target(Architecture::Aarch64.target())?;
    let bm = static_program::build(workspace, static_program::BM, Architecture::Aarch64, Profile::Release)?;
    let module = linux_module::build(workspace)?.path;
    let files = [("bin/bm", bm), (MODULE.trim_start_matches('/'), module)];
    files.into_iter().map(|(name, path)| Ok((name.to_owned(), fs::read(path)?))).collect()
}

/// A command that loads the module. The kernel's warning about a module that is not its own would go into the commands' lines.
pub fn load() -> String {
    format!("dmesg -n 4 && insmod {MODULE} && dmesg -n 5")
}

/// `bm` with the arguments of the kernel's command line.
fn run() -> String {
    format!(
        "bm $(tr ' ' '\\n' < /proc/cmdline | sed -n 's/^{BM}//p' | tr , ' ') || echo 'bm: FAILED: its status is not 0'"
    )
}
