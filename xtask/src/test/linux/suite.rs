// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts guests as a user would, or directly, and keeps what several tests of the suite look at.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::{Devices, GuestSettings, Outcome, Pages, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::{Workspace, build, install};

/// What the tests of the suite share.
pub struct Suite {
    pub workspace: Workspace,
    directory: tempfile::TempDir,
    small: OnceLock<Result<Value, String>>,
    blocks: OnceLock<Result<Value, String>>,
}

/// How a run ended, and what it printed.
pub struct Ended {
    pub ok: bool,
    pub stdout: String,
    pub stderr: String,
}

/// The time limit of the bare-metal guest against hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Ended {
    pub fn of(output: Output) -> Self {
        Self {
            ok: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Suite {
    /// Makes the directory of the suite's files.
    pub fn new(workspace: &Workspace) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("linux-").tempdir_in(workspace.runs()?)?;
        let (small, blocks) = (OnceLock::new(), OnceLock::new());
        Ok(Self { workspace: workspace.clone(), directory, small, blocks })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(self.workspace.command());
        command.arg("run").current_dir(self.workspace.root()).stdin(Stdio::null());
        command
    }

    pub fn start(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> anyhow::Result<Ended> {
        let output = self.command().args(arguments).envs(variables.iter().copied()).output();
        Ok(Ended::of(output.context("this program does not start itself")?))
    }

    /// Boots the bare-metal guest directly, for options that `run` does not offer.
    pub fn bare(&self, command_line: &str, flags: u32) -> anyhow::Result<Outcome> {
        self.boot(self.bare_guest(command_line, flags))
    }

    pub fn bare_guest(&self, command_line: &str, flags: u32) -> GuestSettings {
        GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: self.workspace.image(build::GUEST.name),
            initrd: None,
            command_line: command_line.to_owned(),
            memory: 128 << 20,
            cpus: 1,
            pages: Pages::Auto,
            flags,
            devices: Devices::default(),
            swap: None,
            test: None,
            policies: Policies::default(),
        }
    }

    pub fn boot(&self, guest: GuestSettings) -> anyhow::Result<Outcome> {
        self.boot_as(guest, false, false, TIMEOUT)
    }

    /// Boots in the deterministic mode, in which instructions can be counted.
    pub fn boot_counted(&self, guest: GuestSettings) -> anyhow::Result<Outcome> {
        self.boot_as(guest, true, false, TIMEOUT)
    }

    /// Boots a guest that checks itself.
    pub fn boot_checked(&self, guest: GuestSettings, timeout: Duration) -> anyhow::Result<Outcome> {
        self.boot_as(guest, false, true, timeout)
    }

    fn boot_as(
        &self,
        guest: GuestSettings,
        deterministic: bool,
        checked: bool,
        timeout: Duration,
    ) -> anyhow::Result<Outcome> {
        let boot = Boot {
            label: "bare",
            guests: vec![guest],
            cpu: machine::CPU_DEFAULT,
            host_cpus: None,
            deterministic,
            checked,
            timeout: Some(timeout),
            terminal: false,
            image: Image::Plain,
        };
        boot.run(&self.workspace, &install::qemu()?)
    }

    /// Starts a run that must succeed; returns its output.
    pub fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ended = self.start(arguments, &[])?;
        ensure!(ended.ok, "`run {}` failed:\n{}{}", arguments.join(" "), ended.stdout, ended.stderr);
        let last = ended.stdout.lines().last().unwrap_or_default();
        ensure!(last == "guest check: ok", "the last line is {last:?}");
        Ok(ended.stdout)
    }

    /// Starts a run that must be refused, with all of `words` in the error.
    pub fn refused(&self, arguments: &[&str], words: &[&str]) -> anyhow::Result<()> {
        refused_with(self.start(arguments, &[])?, words)
    }

    pub fn boots(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.run(&[&["--check", "--guest", "linux"], arguments].concat()).map(drop)
    }

    pub fn counted(&self, pages: &str, name: &str) -> anyhow::Result<Value> {
        self.counted_on(machine::CPU_DEFAULT, pages, name)
    }

    /// The same, on another model of CPU.
    pub fn counted_on(&self, cpu: &str, pages: &str, name: &str) -> anyhow::Result<Value> {
        let path = self.path(name);
        let file = path.to_str().context("the target directory's name is not Unicode")?;
        self.run(&["--check", "--count", "--guest", "linux", "--cpu", cpu, "--pages", pages, "--json", file])?;
        Ok(serde_json::from_slice(&fs::read(&path)?)?)
    }

    /// Returns the figures of a counted run with 4K pages, which runs once.
    pub fn small(&self) -> anyhow::Result<&Value> {
        once(&self.small, || self.counted("4k", "4k.json"))
    }

    /// Returns the figures of a counted run with blocks, which runs once.
    pub fn blocks(&self) -> anyhow::Result<&Value> {
        once(&self.blocks, || self.counted("blocks", "blocks.json"))
    }

    /// Starts a run with an apt-get that always fails and with an empty guest cache. Each test `of` has files of its
    /// own, because tests run in parallel.
    pub fn without_network(&self, of: &str, arguments: &[&str]) -> anyhow::Result<Ended> {
        let apt_get = self.path(&format!("{of}-apt-get"));
        script(&apt_get, "echo 'E: the network is unreachable' >&2; exit 100")?;
        let cache = self.path(&format!("{of}-cache"));
        self.start(arguments, &[("TWOFOLD_APT_GET", &apt_get), ("TWOFOLD_GUEST_CACHE", &cache)])
    }
}

fn once(
    place: &OnceLock<Result<Value, String>>,
    make: impl FnOnce() -> anyhow::Result<Value>,
) -> anyhow::Result<&Value> {
    place
        .get_or_init(|| make().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))
}

/// Checks that a run was refused, with all of `words` in the error.
pub fn refused_with(ended: Ended, words: &[&str]) -> anyhow::Result<()> {
    if ended.ok {
        bail!("it ended with 0:\n{}", ended.stdout);
    }
    for word in words {
        ensure!(ended.stderr.contains(word), "no {word:?} in:\n{}", ended.stderr);
    }
    Ok(())
}

/// Writes a shell script.
pub fn script(path: &Path, body: &str) -> anyhow::Result<()> {
    fs::write(path, format!("#!/bin/sh\n{body}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Returns a path as text.
pub fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the target directory's name is not Unicode")
}
