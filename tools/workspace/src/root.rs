// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A root file system of Debian for guests: an ext4 image, made without privileges from the packages of the host's own
//! package sources.
//!
//! The packages' scripts do not run (`packages`). This file has what they would configure. busybox is the init: it starts
//! with little work, and a person who wants more installs it with apt. Invariant: the image is complete or absent, and made
//! again if the recipe has changed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::apt::Apt;
use crate::fetch;
use crate::install;
use crate::kernels::{self, Kernel};
use crate::output;
use crate::packages;
use crate::subprocess;
use crate::workspace::Workspace;

/// A root file system in the cache.
#[derive(Clone, Debug)]
pub struct Root {
    /// The image: ext4 without partitions. Nothing may write to it; a run has a copy (`disk`).
    pub image: PathBuf,
    /// busybox, a static arm64 program, for the initramfs.
    pub busybox: PathBuf,
    /// The packages' versions by their names.
    pub packages: BTreeMap<String, String>,
    /// Whether the image was in the cache already.
    pub cached: bool,
}

/// The size of the file system in bytes. The image is sparse.
pub const SIZE: u64 = 2 << 30;

/// Returns the cached root, if it is complete and of this recipe.
pub fn cached(workspace: &Workspace) -> Option<Root> {
    let place = workspace.guest_cache().join(PLACE);
    if fs::read_to_string(place.join(RECIPE)).ok()? != recipe() {
        return None;
    }
    let packages = serde_json::from_slice(&fs::read(place.join(VERSIONS)).ok()?).ok()?;
    let (image, busybox) = (place.join(IMAGE), place.join(BUSYBOX));
    (image.is_file() && busybox.is_file()).then_some(Root { image, busybox, packages, cached: true })
}

/// Returns the root from the cache. Makes it if it is not cached, or if `refresh` is set.
pub fn fetch(workspace: &Workspace, refresh: bool) -> anyhow::Result<Root> {
    if let (false, Some(root)) = (refresh, cached(workspace)) {
        return Ok(root);
    }
    let cache = workspace.guest_cache();
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let directory = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot write the cache")?;
    let path = |name: &str| directory.path().join(name);
    say("fetching Debian's packages for a root file system");
    let apt = Apt::new(directory.path())?;
    // The source that failed may not be one that is needed.
    let updated = apt.update();
    let (files, kernel) = match (download(&apt), updated) {
        (Ok(downloaded), _) => downloaded,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
    };

    say("making the root file system of them");
    let (tree, new) = (path("tree"), path("new"));
    fs::create_dir(&tree)?;
    fs::create_dir(&new)?;
    let mut versions = packages::unpack(&files, &tree, &path("scratch"))?;
    let release = kernel.package.trim_start_matches("linux-image-");
    let modules = tree.join("usr/lib/modules");
    fs::create_dir_all(&modules)?;
    fs::rename(kernels::modules(&kernel.tree, release)?, modules.join(release))?;
    versions.insert(kernel.package.clone(), kernel.version);
    shrink(&tree).context("cannot shrink the root file system")?;
    configure(&tree, &apt.sources()?).context("cannot configure the root file system")?;
    fs::copy(tree.join("usr/bin/busybox"), new.join(BUSYBOX)).context("there is no busybox in its package")?;
    make_image(&tree, &new.join(IMAGE))?;
    fs::write(new.join(VERSIONS), serde_json::to_string_pretty(&versions)? + "\n")?;
    fs::write(new.join(RECIPE), recipe())?;
    fetch::put(&new, &cache.join(PLACE), &path("old"))?;
    cached(workspace).map(|root| Root { cached: false, ..root }).context("the cache vanished while it was made")
}

/// Shows on a terminal what takes some time.
fn say(text: &str) {
    if output::is_terminal() {
        output::remark(text);
    }
}

const PLACE: &str = "root";
const IMAGE: &str = "root.img";
const BUSYBOX: &str = "busybox";
const VERSIONS: &str = "versions.json";
const RECIPE: &str = "recipe";

/// Counts changes of this file that neither the packages nor the files below show.
const REVISION: u32 = 2;

/// `?essential` is apt's pattern for the packages without which a Debian does not work.
const PACKAGES: [&str; 18] = [
    "?essential",
    "apt",
    "busybox-static",
    "e2fsprogs",
    "fio",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "mount",
    "nano",
    "netbase",
    "netcat-openbsd",
    "procps",
    "psmisc",
    "redis-server",
    "redis-tools",
    "stress-ng",
];

/// The user of redis-server, with a number that Debian leaves to the system.
const REDIS: u32 = 101;

/// What a file system of Debian's has beyond the packages: path, mode and text.
const FILES: [(&str, u32, &str); 21] = [
    ("etc/apt/apt.conf.d/90twofold", 0o644, "APT::Install-Recommends \"false\";\nAcquire::Languages \"none\";\n"),
    ("etc/dpkg/dpkg.cfg.d/small", 0o644, include_str!("../guest/debian/dpkg.cfg")),
    ("etc/fstab", 0o644, "/dev/vda\t/\text4\tdefaults\t0\t1\n"),
    ("etc/hostname", 0o644, "debian\n"),
    ("etc/hosts", 0o644, "127.0.0.1\tlocalhost\n127.0.1.1\tdebian\n::1\tlocalhost\n"),
    ("etc/init.d/rcK", 0o755, include_str!("../guest/debian/rcK")),
    ("etc/init.d/rcS", 0o755, include_str!("../guest/debian/rcS")),
    ("etc/inittab", 0o644, include_str!("../guest/debian/inittab")),
    ("etc/motd", 0o644, "\nDebian, every page of it mapped by Twofold. `poweroff` ends the guest.\n\n"),
    ("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n"),
    ("etc/pam.d/common-account", 0o644, "account required pam_unix.so\n"),
    ("etc/pam.d/common-auth", 0o644, "auth required pam_unix.so nullok\n"),
    ("etc/pam.d/common-password", 0o644, "password required pam_unix.so\n"),
    ("etc/pam.d/common-session", 0o644, "session required pam_unix.so\n"),
    ("etc/pam.d/common-session-noninteractive", 0o644, "session required pam_unix.so\n"),
    ("etc/profile.d/script.sh", 0o644, include_str!("../guest/debian/script.sh")),
    ("etc/shells", 0o644, "/bin/sh\n/bin/bash\n/bin/dash\n"),
    ("usr/local/sbin/console", 0o755, include_str!("../guest/debian/console")),
    ("usr/local/sbin/dhcp", 0o755, include_str!("../guest/debian/dhcp")),
    ("usr/local/sbin/run-script", 0o755, include_str!("../guest/debian/run-script")),
    ("var/log/lastlog", 0o644, ""),
];

/// Links, by their paths. The last are what update-alternatives would make.
const LINKS: [(&str, &str); 9] = [
    ("usr/sbin/init", "../bin/busybox"),
    ("usr/sbin/halt", "../bin/busybox"),
    ("usr/sbin/poweroff", "../bin/busybox"),
    ("usr/sbin/reboot", "../bin/busybox"),
    ("etc/mtab", "../proc/self/mounts"),
    ("etc/resolv.conf", "../run/resolv.conf"),
    ("usr/bin/awk", "mawk"),
    ("usr/bin/nc", "nc.openbsd"),
    ("usr/bin/pager", "less"),
];

/// Files that are not root's, or have a mode that a package's script sets: path, user, group, mode.
const OWNERS: [(&str, u32, u32, u32); 10] = [
    ("etc/redis", REDIS, REDIS, 0o2770),
    ("etc/redis/redis.conf", REDIS, REDIS, 0o640),
    ("etc/shadow", 0, 42, 0o640),
    ("usr/bin/chage", 0, 42, 0o2755),
    ("usr/bin/expiry", 0, 42, 0o2755),
    ("usr/sbin/unix_chkpwd", 0, 42, 0o2755),
    ("var/lib/redis", REDIS, REDIS, 0o750),
    ("var/local", 0, 50, 0o2775),
    ("var/log/redis", REDIS, 4, 0o2750),
    ("var/mail", 0, 8, 0o2775),
];

/// Everything that the image depends on, as a text that is kept beside it.
fn recipe() -> String {
    format!("{REVISION}\n{SIZE}\n{:?}\n{PACKAGES:?}\n{FILES:?}\n{LINKS:?}\n{OWNERS:?}\n", Kernel::DEFAULT)
}

/// An unpacked kernel.
struct Unpacked {
    package: String,
    tree: PathBuf,
    version: String,
}

fn download(apt: &Apt) -> anyhow::Result<(Vec<PathBuf>, Unpacked)> {
    let package = Kernel::DEFAULT.package(apt)?;
    let (tree, version) = apt.unpack(&package)?;
    Ok((apt.download_all(&PACKAGES)?, Unpacked { package, tree, version }))
}

/// Removes documentation and translations, as the guest's dpkg will not install them. Copyright notices stay.
fn shrink(tree: &Path) -> io::Result<()> {
    for place in ["usr/share/info", "usr/share/locale", "usr/share/man"] {
        fs::remove_dir_all(tree.join(place)).or_else(missing)?;
    }
    for package in fs::read_dir(tree.join("usr/share/doc"))?.flatten().filter(|entry| entry.path().is_dir()) {
        for entry in fs::read_dir(package.path())?.flatten() {
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false if entry.file_name() != "copyright" => fs::remove_file(entry.path())?,
                false => (),
            }
        }
    }
    Ok(())
}

/// Writes what the packages' scripts would, and our own files. `sources` are the package sources.
fn configure(tree: &Path, sources: &str) -> io::Result<()> {
    let write = |path: &str, mode: u32, text: &str| {
        let file = tree.join(path);
        fs::create_dir_all(file.parent().unwrap_or(tree))?;
        fs::write(&file, text)?;
        fs::set_permissions(&file, Permissions::from_mode(mode))
    };
    for (path, mode, text) in FILES {
        write(path, mode, text)?;
    }
    write("etc/apt/sources.list", 0o644, sources)?;
    for (from, to) in [("profile", "etc/profile"), ("dot.profile", "root/.profile"), ("dot.bashrc", "root/.bashrc")] {
        write(to, 0o644, &fs::read_to_string(tree.join("usr/share/base-files").join(from))?)?;
    }
    let users = users(&fs::read_to_string(tree.join("usr/share/base-passwd/passwd.master"))?);
    let groups = fs::read_to_string(tree.join("usr/share/base-passwd/group.master"))?;
    write("etc/passwd", 0o644, &users)?;
    write("etc/group", 0o644, &format!("{groups}redis:*:{REDIS}:\n"))?;
    write("etc/shadow", 0o640, &passwords(&users))?;
    for (path, target) in LINKS {
        fs::remove_file(tree.join(path)).or_else(missing)?;
        symlink(target, tree.join(path))?;
    }
    for directory in ["etc/redis", "var/lib/redis", "var/log/redis"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for (path, _, _, mode) in OWNERS {
        fs::set_permissions(tree.join(path), Permissions::from_mode(mode)).or_else(missing)?;
    }
    Ok(())
}

fn missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns `/etc/passwd`: Debian's users, whose passwords are elsewhere, and that of redis-server.
fn users(master: &str) -> String {
    master.replace(":*:", ":x:") + &format!("redis:x:{REDIS}:{REDIS}::/var/lib/redis:/usr/sbin/nologin\n")
}

/// Returns `/etc/shadow`: root has no password, and the others cannot log in.
fn passwords(users: &str) -> String {
    let names = users.lines().filter_map(|line| line.split(':').next());
    names.map(|name| format!("{name}:{}:20000:0:99999:7:::\n", if name == "root" { "" } else { "*" })).collect()
}

/// Makes the image of `tree`. A file's owner is root, or as in [`OWNERS`], and not its owner here.
fn make_image(tree: &Path, image: &Path) -> anyhow::Result<()> {
    File::create(image).and_then(|file| file.set_len(SIZE)).context("cannot write the image")?;
    let mke2fs = install::system_program("mke2fs", E2FSPROGS)?;
    let mut make = Command::new(mke2fs);
    make.args(["-q", "-F", "-t", "ext4", "-L", "root", "-m", "1", "-E", "root_owner=0:0", "-d"]).arg(tree).arg(image);
    subprocess::quiet(&mut make).context("mke2fs cannot make the root file system")?;
    let mut commands = String::new();
    change_owners(tree, Path::new(""), &mut commands)?;
    if commands.is_empty() {
        return Ok(());
    }
    let script = image.with_extension("debugfs");
    fs::write(&script, commands)?;
    let debugfs = install::system_program("debugfs", E2FSPROGS)?;
    let output = subprocess::output(Command::new(debugfs).arg("-w").arg("-f").arg(&script).arg(image))?;
    fs::remove_file(script)?;
    // It ends with 0 even if a command fails. Its first line of errors is its version.
    let errors = String::from_utf8_lossy(&output.stderr).lines().skip(1).collect::<Vec<_>>().join("\n");
    ensure!(output.status.success() && errors.is_empty(), "debugfs cannot change the owners in the image: {errors}");
    Ok(())
}

/// The package of the programs that make file systems.
pub const E2FSPROGS: &str = "e2fsprogs";

/// Adds the commands of debugfs that give what is below `path` its owners.
fn change_owners(tree: &Path, path: &Path, commands: &mut String) -> anyhow::Result<()> {
    for entry in fs::read_dir(tree.join(path))? {
        let entry = entry?;
        let path = path.join(entry.file_name());
        let (metadata, name) = (entry.metadata()?, path.to_str().context("a file of Debian's has no Unicode name")?);
        let (user, group) =
            OWNERS.iter().find(|owner| owner.0 == name).map_or((0, 0), |(_, user, group, _)| (*user, *group));
        for (field, is, wanted) in [("uid", metadata.uid(), user), ("gid", metadata.gid(), group)] {
            if is != wanted {
                ensure!(!name.contains(['"', '\n']), "debugfs cannot name {name}");
                writeln!(commands, "set_inode_field \"/{name}\" {field} {wanted}")?;
            }
        }
        if metadata.is_dir() {
            change_owners(tree, &path, commands)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_alone_logs_in_without_a_password() {
        let users = users("root:*:0:0:root:/root:/bin/bash\nbin:*:2:2:bin:/bin:/usr/sbin/nologin\n");
        assert!(users.starts_with("root:x:0:0:") && users.contains("\nredis:x:101:101:"), "{users}");
        let passwords = passwords(&users);
        let starts: Vec<_> = passwords.lines().map(|line| line.trim_end_matches(":20000:0:99999:7:::")).collect();
        assert_eq!(starts, ["root:", "bin:*", "redis:*"]);
    }

    #[test]
    fn the_scripts_say_what_the_launcher_waits_for() {
        let run = FILES.iter().find(|(path, ..)| path.ends_with("run-script")).unwrap().2;
        assert!(run.contains(twofold_launch::check::CHECK_OK) && run.contains(twofold_launch::check::CHECK_FAILED));
        let start = FILES.iter().find(|(path, ..)| path.ends_with("rcS")).unwrap().2;
        assert!(start.contains(twofold_launch::check::CHECK_FAILED));
    }

    #[test]
    fn only_what_is_not_as_wanted_gets_another_owner() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("etc")).unwrap();
        fs::write(directory.path().join("etc/shadow"), "").unwrap();
        fs::write(directory.path().join("etc/passwd"), "").unwrap();
        let own = fs::metadata(directory.path()).unwrap();
        let mut commands = String::new();
        change_owners(directory.path(), Path::new(""), &mut commands).unwrap();
        assert!(commands.contains("\"/etc/shadow\" gid 42\n"), "{commands}");
        assert_eq!(commands.contains("\"/etc/passwd\" gid 0\n"), own.gid() != 0, "{commands}");
        assert_eq!(commands.contains("\"/etc\" uid 0\n"), own.uid() != 0, "{commands}");
    }
}
