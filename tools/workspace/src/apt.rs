// SPDX-License-Identifier: Apache-2.0 OR MIT
//! apt for packages of guests, and for programs that are unpacked and not installed.
//!
//! A private apt configuration uses the host's sources and proxies for an architecture of its own. It has its own state and
//! cache and none of the host's hooks. Invariant: it changes nothing on the host.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow};

use crate::subprocess;

/// apt with its own state, cache and configuration.
pub struct Apt {
    configuration: PathBuf,
    directory: PathBuf,
}

impl Apt {
    /// Creates the state, the cache and the configuration below `directory`, for packages of guests.
    pub fn new(directory: &Path) -> anyhow::Result<Self> {
        Self::of(&directory.join("apt"), "arm64")
    }

    /// As [`new`](Self::new), for packages of this machine's architecture: programs that it runs.
    pub fn of_this_machine(directory: &Path) -> anyhow::Result<Self> {
        let architecture = subprocess::read(Command::new(tool("dpkg")?).arg("--print-architecture"))?;
        Self::of(&directory.join("apt-of-this-machine"), architecture.trim())
    }

    fn of(directory: &Path, architecture: &str) -> anyhow::Result<Self> {
        for part in ["state/lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(directory.join(part)).context("cannot write the cache")?;
        }
        fs::write(directory.join("status"), "")?;
        let configuration = directory.join("apt.conf");
        let path = directory.to_str().filter(|path| !path.contains(['"', '\n']));
        let path = path.context("apt cannot use this directory's name; move the checkout to a plain path")?;
        fs::write(&configuration, private_configuration(path, architecture))?;
        Ok(Self { configuration, directory: directory.to_owned() })
    }

    /// Downloads the package lists.
    pub fn update(&self) -> anyhow::Result<()> {
        subprocess::read(self.apt_get()?.arg("update")).map(drop)
    }

    /// Returns what `apt-cache depends` prints of `package`.
    pub fn depends(&self, package: &str) -> anyhow::Result<String> {
        subprocess::read(self.command(tool("apt-cache")?).args(["depends", package]))
    }

    /// Returns the package sources as lines of a sources.list.
    pub fn sources(&self) -> anyhow::Result<String> {
        let mut targets = self.apt_get()?;
        targets.args(["indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
        let text = subprocess::read(&mut targets)?;
        let mut lines: Vec<_> = text.lines().collect();
        lines.dedup();
        Ok(lines.join("\n") + "\n")
    }

    /// Downloads `package` and unpacks it; returns the directory and the package's version.
    pub fn unpack(&self, package: &str) -> anyhow::Result<(PathBuf, String)> {
        let packages = self.directory.join("packages").join(package);
        fs::create_dir_all(&packages)?;
        let mut download = self.apt_get()?;
        subprocess::read(download.current_dir(&packages).args(["download", package]))
            .with_context(|| format!("{package} cannot be downloaded"))?;
        let file = packages_in(&packages)?.next();
        let file = file.with_context(|| format!("apt-get downloaded no file for {package}"))?;
        let version = field(&file, "Version")?;
        let tree = packages.join("tree");
        subprocess::read(Command::new(tool("dpkg")?).arg("-x").arg(&file).arg(&tree))
            .with_context(|| format!("{package} cannot be unpacked"))?;
        Ok((tree, version))
    }

    /// Downloads `package` and all its dependencies, and unpacks them into one directory; returns the directory and the
    /// package's version.
    pub fn unpack_all(&self, package: &str) -> anyhow::Result<(PathBuf, String)> {
        let mut download = self.apt_get()?;
        subprocess::read(download.args(DOWNLOAD_ALL).arg(package))
            .with_context(|| format!("{package} cannot be downloaded"))?;
        let tree = self.directory.join("packages").join("tree");
        let mut version = None;
        for file in packages_in(&self.archives())? {
            subprocess::read(Command::new(tool("dpkg")?).arg("-x").arg(&file).arg(&tree))
                .with_context(|| format!("{} cannot be unpacked", file.display()))?;
            if field(&file, "Package")? == package {
                version = Some(field(&file, "Version")?);
            }
        }
        Ok((tree, version.with_context(|| format!("apt-get downloaded no file for {package}"))?))
    }

    /// Downloads `packages` and all their dependencies; returns the files in the order of their names. A package may be
    /// one of apt's patterns. On a terminal, apt shows its progress.
    pub fn download_all(&self, packages: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        subprocess::show(self.apt_get()?.args(DOWNLOAD_ALL).args(packages))
            .with_context(|| format!("{} cannot be downloaded", packages.join(", ")))?;
        let mut files: Vec<_> = packages_in(&self.archives())?.collect();
        files.sort();
        Ok(files)
    }

    fn archives(&self) -> PathBuf {
        self.directory.join("cache/archives")
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

const DOWNLOAD_ALL: [&str; 4] = ["install", "--yes", "--no-install-recommends", "--download-only"];

/// Returns the value of a field of a package's control file; empty if it has none.
fn field(package: &Path, name: &str) -> anyhow::Result<String> {
    let mut query = Command::new(tool("dpkg-deb")?);
    Ok(subprocess::read(query.arg("-f").arg(package).arg(name))?.trim().to_owned())
}

/// Returns the path of a program of Debian's package management.
pub fn tool(name: &str) -> anyhow::Result<PathBuf> {
    subprocess::find(name).ok_or_else(|| anyhow!("there is no {name} here"))
}

fn packages_in(directory: &Path) -> anyhow::Result<impl Iterator<Item = PathBuf>> {
    let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")))
}

/// apt reads this after the host's configuration. The host's sources and proxies remain; its architectures and hooks
/// are cleared.
fn private_configuration(directory: &str, architecture: &str) -> String {
    format!(
        "APT::Architecture \"{architecture}\";\n\
         #clear APT::Architectures;\n\
         APT::Architectures {{ \"{architecture}\"; }};\n\
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_changes_nothing_of_the_host() {
        let text = private_configuration("/d", "riscv64");
        for line in [
            "APT::Architecture \"riscv64\";",
            "APT::Architectures { \"riscv64\"; };",
            "#clear APT::Update;",
            "Dir::State \"/d/state\";",
            "Dir::State::status \"/d/status\";",
            "Dir::Cache \"/d/cache\";",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
    }
}
