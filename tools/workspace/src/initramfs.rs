// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's initramfs: busybox and our init, as an uncompressed newc archive.
//!
//! Invariant: equal inputs make equal bytes, so that counted runs are comparable. Entries have no times and no owners,
//! and inode numbers by position.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context;
use cpio::newc::{Builder, ModeFileType, trailer};

use crate::workspace::Workspace;

/// The first process of a guest.
pub const GUEST: &str = include_str!("../guest/init");
/// The first process of a guest whose root is a disk: it loads the drivers in `modules`, and starts the disk's init.
pub const DISK: &str = include_str!("../guest/disk-init");
/// The first process of a Linux that runs the lines of `/commands` ([`commands`](crate::commands)).
pub const COMMANDS: &str = include_str!("../guest/commands");

/// Makes an initrd with this name in the guests' cache: the first process `init`, busybox and the files `more`.
pub fn make(
    workspace: &Workspace,
    name: &str,
    init: &str,
    busybox: &Path,
    more: &BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<PathBuf> {
    let path = workspace.guest_cache().join(name);
    write(&path, init, busybox, more)?;
    Ok(path)
}

/// Makes an initrd at `path`: the first process `init`, busybox and the files `more`.
///
/// The file is renamed into place, because another run may be reading the previous one.
pub fn write(path: &Path, init: &str, busybox: &Path, more: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let program = fs::read(busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
    let archive = archive(init, &program, more).context("cannot make the initramfs")?;
    let directory = path.parent().context("the initramfs has no directory")?;
    let file = tempfile::NamedTempFile::new_in(directory).context("cannot write the initramfs")?;
    fs::write(file.path(), archive).context("cannot write the initramfs")?;
    file.persist(path).context("cannot write the initramfs")?;
    Ok(())
}

/// Returns the archive with `init`, with `busybox` (a static arm64 program), and with `more`: programs in `bin`,
/// libraries in `lib`, drivers in `modules`, and files that `init` reads.
fn archive(init: &str, busybox: &[u8], more: &BTreeMap<String, Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut archive = Archive::default();
    let lib = if more.is_empty() { None } else { Some("lib") };
    let modules = more.keys().any(|name| name.starts_with("modules/")).then_some("modules");
    for directory in ["bin", "dev", "proc", "sys", "tmp"].into_iter().chain(lib).chain(modules) {
        archive.add(directory, ModeFileType::Directory, 0o755, &[])?;
    }
    // The kernel opens /dev/console before init can mount anything.
    archive.add_device("dev/console", 0o600, 5, 1)?;
    archive.add_device("dev/null", 0o666, 1, 3)?;
    archive.add("bin/busybox", ModeFileType::Regular, 0o755, busybox)?;
    archive.add("init", ModeFileType::Regular, 0o755, init.as_bytes())?;
    for (name, content) in more {
        archive.add(name, ModeFileType::Regular, 0o755, content)?;
    }
    trailer(archive.bytes)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, kind: ModeFileType, mode: u32, content: &[u8]) -> io::Result<()> {
        let entry = self.entry(name, mode).set_mode_file_type(kind);
        self.write(entry, content)
    }

    fn add_device(&mut self, name: &str, mode: u32, major: u32, minor: u32) -> io::Result<()> {
        let entry = self.entry(name, mode).set_mode_file_type(ModeFileType::Char);
        self.write(entry.rdev_major(major).rdev_minor(minor), &[])
    }

    fn entry(&mut self, name: &str, mode: u32) -> Builder {
        self.entries += 1;
        Builder::new(name).ino(self.entries).mode(mode).nlink(1).mtime(0).uid(0).gid(0)
    }

    fn write(&mut self, entry: Builder, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let mut writer = entry.write(&mut self.bytes, size);
        io::Write::write_all(&mut writer, content)?;
        writer.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::Reader;
    use std::io::Read;

    #[test]
    fn the_archive_has_what_the_kernel_needs() {
        let bytes =
            archive("script", b"not really busybox", &BTreeMap::from([("lib/libx.so".to_owned(), b"x".to_vec())]))
                .unwrap();
        let mut rest = &bytes[..];
        let mut entries = Vec::new();
        loop {
            let mut reader = Reader::new(rest).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                break;
            }
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            rest = reader.finish().unwrap();
            assert_eq!(entry.mtime(), 0);
            entries.push((entry.name().to_owned(), entry.mode(), entry.rdev_major(), entry.rdev_minor(), content));
        }
        let find = |name: &str| entries.iter().find(|entry| entry.0 == name).unwrap();
        assert_eq!(find("bin").1, 0o040755);
        let console = find("dev/console");
        assert_eq!((console.1, console.2, console.3), (0o020600, 5, 1));
        let init = find("init");
        assert_eq!((init.1, init.4.as_slice()), (0o100755, &b"script"[..]));
        assert_eq!(find("bin/busybox").4, b"not really busybox");
        assert_eq!((find("lib/libx.so").1, find("lib/libx.so").4.as_slice()), (0o100755, &b"x"[..]));
        let parent = entries.iter().position(|entry| entry.0 == "bin");
        let child = entries.iter().position(|entry| entry.0 == "bin/busybox");
        assert!(parent < child, "a directory comes before what is in it");
    }

    #[test]
    fn equal_inputs_make_equal_bytes() {
        let none = BTreeMap::new();
        assert_eq!(archive(GUEST, b"x", &none).unwrap(), archive(GUEST, b"x", &none).unwrap());
    }

    #[test]
    fn init_says_what_the_launcher_waits_for() {
        for init in [GUEST, DISK, COMMANDS] {
            // A disk's own scripts report success (`root`).
            assert!(init == DISK || init.contains(twofold_launch::check::CHECK_OK));
            assert!(init.contains(twofold_launch::check::CHECK_FAILED));
        }
    }
}
