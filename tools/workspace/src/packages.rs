// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's packages as a tree of files, without running their scripts.
//!
//! The scripts are for another architecture and want root. What they would configure is the caller's to write; dpkg in the
//! guest finds each package in its database as installed. Invariant: needs no privileges, and reads nothing of the host but
//! the packages.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::apt::tool;
use crate::subprocess;

/// Directories that are links into `/usr` on Debian, and that packages still have files in.
const MERGED: [&str; 3] = ["bin", "lib", "sbin"];
/// dpkg's database.
const DATABASE: &str = "var/lib/dpkg";

/// Unpacks the files of packages into `root`, and makes dpkg's database. `scratch` does not exist yet. Returns the
/// packages' versions by their names.
pub fn unpack(packages: &[PathBuf], root: &Path, scratch: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    for place in MERGED {
        fs::create_dir_all(root.join("usr").join(place))?;
        symlink(Path::new("usr").join(place), root.join(place))?;
    }
    let (mut versions, mut status) = (BTreeMap::new(), String::new());
    for package in packages {
        subprocess::read(Command::new(tool("dpkg-deb")?).arg("--raw-extract").arg(package).arg(scratch))
            .with_context(|| format!("{} cannot be unpacked", package.display()))?;
        let control = scratch.join("DEBIAN");
        let text = fs::read_to_string(control.join("control"))?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.map(str::to_owned).with_context(|| format!("{} has no {name}", package.display()))
        };
        let name = field("Package")?;
        // dpkg names a package's files with its architecture if others of the same name can be installed beside it.
        let known_as = match field("Multi-Arch") {
            Ok(value) if value == "same" => format!("{name}:{}", field("Architecture")?),
            _ => name.clone(),
        };
        writeln!(status, "{}", installed(&text)).expect("a string takes text");
        let information = root.join(DATABASE).join("info");
        fs::create_dir_all(&information)?;
        for entry in fs::read_dir(&control)?.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if file != "control" {
                fs::rename(entry.path(), information.join(format!("{known_as}.{file}")))?;
            }
        }
        fs::remove_dir_all(&control)?;
        let mut list = vec!["/.".to_owned()];
        move_into(scratch, root, Path::new("/"), &mut list).with_context(|| format!("{name} cannot be moved"))?;
        fs::write(information.join(format!("{known_as}.list")), list.join("\n") + "\n")?;
        fs::remove_dir_all(scratch)?;
        versions.insert(name, field("Version")?);
    }
    fs::write(root.join(DATABASE).join("status"), status)?;
    fs::write(root.join(DATABASE).join("info/format"), "1\n")?;
    Ok(versions)
}

/// Returns a package's control text as an entry of dpkg's status.
fn installed(control: &str) -> String {
    let mut lines: Vec<_> = control.lines().filter(|line| !line.is_empty()).collect();
    lines.insert(1.min(lines.len()), "Status: install ok installed");
    lines.join("\n") + "\n"
}

/// Moves what is in `from` into `to`, which is `path` in the guest. What a link to a directory of `to` names goes
/// there. Adds the paths to `list`.
fn move_into(from: &Path, to: &Path, path: &Path, list: &mut Vec<String>) -> io::Result<()> {
    let mut entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (target, path) = (to.join(entry.file_name()), path.join(entry.file_name()));
        list.push(path.display().to_string());
        if !entry.file_type()?.is_dir() {
            // Debian 13 ships the links of MERGED, which are there.
            if !target.is_symlink() || !target.is_dir() {
                fs::rename(entry.path(), target)?;
            }
            continue;
        }
        if !target.is_dir() {
            fs::create_dir(&target)?;
        }
        fs::set_permissions(&target, entry.metadata()?.permissions())?;
        move_into(&entry.path(), &target, &path, list)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_of_merged_directories_go_below_usr() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(from.join("bin")).unwrap();
        fs::create_dir_all(from.join("usr/bin")).unwrap();
        fs::create_dir_all(from.join("var/secret")).unwrap();
        fs::set_permissions(from.join("var/secret"), fs::Permissions::from_mode(0o700)).unwrap();
        for file in ["bin/sh", "usr/bin/env"] {
            fs::write(from.join(file), file).unwrap();
        }
        fs::create_dir_all(to.join("usr/bin")).unwrap();
        symlink("usr/bin", to.join("bin")).unwrap();
        let mut list = Vec::new();
        move_into(&from, &to, Path::new("/"), &mut list).unwrap();
        assert!(to.join("bin").is_symlink());
        assert_eq!(fs::read_to_string(to.join("usr/bin/sh")).unwrap(), "bin/sh");
        assert_eq!(fs::read_to_string(to.join("usr/bin/env")).unwrap(), "usr/bin/env");
        assert_eq!(fs::metadata(to.join("var/secret")).unwrap().permissions().mode() & 0o7777, 0o700);
        // dpkg's list has the paths that the package has.
        assert_eq!(list, ["/bin", "/bin/sh", "/usr", "/usr/bin", "/usr/bin/env", "/var", "/var/secret"]);
    }

    #[test]
    fn a_package_that_ships_the_links_itself_leaves_them() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(&from).unwrap();
        symlink("usr/bin", from.join("bin")).unwrap();
        fs::create_dir_all(to.join("usr/bin")).unwrap();
        symlink("usr/bin", to.join("bin")).unwrap();
        move_into(&from, &to, Path::new("/"), &mut Vec::new()).unwrap();
        assert_eq!(fs::read_link(to.join("bin")).unwrap(), Path::new("usr/bin"));
    }

    #[test]
    fn dpkg_finds_a_package_installed() {
        let entry = installed("Package: dash\nVersion: 1\nDescription: a shell\n that is small\n\n");
        assert_eq!(
            entry,
            "Package: dash\nStatus: install ok installed\nVersion: 1\nDescription: a shell\n that is small\n"
        );
    }
}
