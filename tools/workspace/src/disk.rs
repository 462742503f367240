// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with Debian's root file system on a disk: kernel, initramfs, the disk of a run, and the command line.
//!
//! Invariant: the cached root is never written. A named disk is a copy that is kept from run to run until it is reset; it
//! appears whole or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::initramfs;
use crate::kernels::{self, Kernel};
use crate::root::{self, Root};
use crate::workspace::Workspace;

/// What a guest with a disk boots from.
#[derive(Clone, Debug)]
pub struct Debian {
    /// The kernel and its modules.
    pub kernel: kernels::Fetched,
    /// The root file system that disks are copies of.
    pub root: Root,
}

impl Debian {
    /// Fetches what is missing of the guest with this kernel. If `refresh` is set, fetches all again.
    pub fn fetch(workspace: &Workspace, kernel: Kernel, refresh: bool) -> anyhow::Result<Self> {
        Ok(Self { kernel: kernel.fetch(workspace, refresh)?, root: root::fetch(workspace, refresh)? })
    }

    /// Makes an initramfs at `path`, which mounts the disk and starts its init. The guest runs `script` at the first login,
    /// prints a verdict, and powers off. `files` are of the archive, too.
    pub fn initrd(
        &self,
        path: &Path,
        script: Option<&str>,
        mut files: BTreeMap<String, Vec<u8>>,
    ) -> anyhow::Result<()> {
        for module in &self.kernel.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            files.insert(format!("modules/{name}"), fs::read(module).context("the cached kernel lost a module")?);
        }
        files.extend(script.map(|script| ("script".to_owned(), script.as_bytes().to_vec())));
        initramfs::write(path, initramfs::DISK, &self.root.busybox, &files)
    }

    /// Returns the disk of this name, a copy of the root that is made if it is missing or if `reset` is set.
    pub fn disk(&self, workspace: &Workspace, name: &str, reset: bool) -> anyhow::Result<PathBuf> {
        let path = workspace.disks()?.join(format!("{name}.img"));
        if reset || !path.is_file() {
            self.copy(&path)?;
        }
        Ok(path)
    }

    /// Makes a copy of the root at `path`.
    pub fn copy(&self, path: &Path) -> anyhow::Result<()> {
        copy_sparse(&self.root.image, path).with_context(|| format!("cannot make the disk {}", path.display()))
    }
}

/// A script with which a guest checks its disk, its network and Redis.
pub const CHECK: &str = include_str!("../guest/debian/check");
/// The kernel's command line for a guest with a disk. The initramfs needs none of it.
pub const COMMAND_LINE: &str = "console=ttyAMA0 root=/dev/vda panic=-1 loglevel=4";

/// Copies a file and leaves out what is zero.
fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    const PIECE: usize = 64 << 10;
    let mut from = File::open(from)?;
    let directory = to.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new()
        .prefix("copy-")
        // The usual mode, less the umask.
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(directory)?;
    let size = from.metadata()?.len();
    new.as_file().set_len(size)?;
    let (mut piece, zeros) = (vec![0; PIECE], vec![0; PIECE]);
    let mut position = 0;
    while position < size {
        let length = (size - position).min(PIECE as u64) as usize;
        from.read_exact(&mut piece[..length])?;
        if piece[..length] != zeros[..length] {
            new.seek(SeekFrom::Start(position))?;
            new.write_all(&piece[..length])?;
        }
        position += length as u64;
    }
    new.persist(to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_is_equal_and_takes_no_room_for_zeros() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let mut file = File::create(&from).unwrap();
        file.set_len((64 << 20) + 100).unwrap();
        for (position, byte) in [(5, 1), (1 << 20, 2), ((64 << 20) + 99, 3)] {
            file.seek(SeekFrom::Start(position)).unwrap();
            file.write_all(&[byte]).unwrap();
        }
        copy_sparse(&from, &to).unwrap();
        assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
    }
}
