// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots guests under the hypervisor and waits for their end.
//!
//! Invariant: a machine runs in a directory of its own below `target/run`. The directory remains only if the run failed.
//! The logs of a good run replace those of the good run before it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use twofold_abi::bundle::flags;
use twofold_abi::control::{ORACLE_ARGUMENT, RECORD_ARGUMENT, TRACE_ARGUMENT};
use twofold_launch::interactive::{self, InteractiveError, Origin};
use twofold_launch::run::{CONSOLE_LOG, CONTROL_LOG};
use twofold_launch::sample::Known;
use twofold_launch::session::Session;
use twofold_launch::{
    Bundle, Driver, GuestSettings, Launch, Loaded, Machine, Outcome, Qemu, RunError, Verdict, bundle,
};

use crate::build;
use crate::workspace::Workspace;

/// One boot.
#[derive(Debug)]
pub struct Boot<'a> {
    /// The prefix of the run directory's name.
    pub label: &'a str,
    /// The guests.
    pub guests: Vec<GuestSettings>,
    /// CPU model.
    pub cpu: &'a str,
    /// The machine's CPUs; `None`: as many as the guests have vCPUs.
    pub host_cpus: Option<u32>,
    /// Whether the run is deterministic.
    pub deterministic: bool,
    /// Whether the guests were asked to check themselves.
    pub checked: bool,
    /// The limit against hangs.
    pub timeout: Option<Duration>,
    /// Whether a user has the consoles ([`run_interactive`](Self::run_interactive)), and may leave the guests.
    pub terminal: bool,
    /// The hypervisor.
    pub image: Image<'a>,
}

/// The builds of the hypervisor.
#[derive(Clone, Copy, Debug)]
pub enum Image<'a> {
    /// The released build.
    Plain,
    /// The build with guests' tables of 16 KiB.
    Kib16,
    /// The build with guests' tables of 64 KiB.
    Kib64,
    /// The build that writes a trace to this file.
    Tracing(&'a Path),
    /// The build with the oracle, which gets this argument.
    Oracle(&'a str),
    /// The build that records this number of rounds.
    Recording(u32),
}

impl Boot<'_> {
    /// Boots the guests and waits for their end. A bad verdict becomes an error with the console's last lines and the path
    /// of the logs.
    pub fn run(&self, workspace: &Workspace, qemu: &Qemu) -> anyhow::Result<Outcome> {
        let run = |launch: &Launch<'_>| match self.has_consoles() {
            true => launch.run_lines(&Arc::default(), |_| ()),
            false => launch.run(|_| ()),
        };
        self.launch(workspace, qemu, |launch| Ok((run(launch)?, ()))).map(|(outcome, ())| outcome)
    }

    /// As [`run`](Self::run) with the console read by the launcher, and has `drive` give commands to the hypervisor.
    pub fn run_driven<T: Send>(
        &self,
        workspace: &Workspace,
        qemu: &Qemu,
        drive: impl FnOnce(Driver) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(Outcome, T)> {
        self.launch(workspace, qemu, |launch| launch.run_driven(drive))
    }

    /// As [`run`](Self::run) with the consoles on the control channel, and leaves them to `drive`.
    pub fn run_consoles<T: Send>(
        &self,
        workspace: &Workspace,
        qemu: &Qemu,
        consoles: &Arc<Session>,
        drive: impl FnOnce(&Session) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(Outcome, T)> {
        self.launch(workspace, qemu, |launch| launch.run_consoles(consoles, drive))
    }

    /// Boots the guests for a user: the terminal, or standard input and output, is the console of the guest `attached`.
    pub fn run_interactive(
        &self,
        workspace: &Workspace,
        qemu: &Qemu,
        attached: Option<&str>,
    ) -> anyhow::Result<Outcome> {
        let guests: Vec<_> = self.guests.iter().map(Known::of).collect();
        let run = |launch: &Launch<'_>| match interactive::run(launch, &guests, Origin::Start, attached) {
            Ok(outcome) => Ok((outcome, ())),
            Err(InteractiveError::Run(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        };
        self.launch(workspace, qemu, run).map(|(outcome, ())| outcome)
    }

    fn has_consoles(&self) -> bool {
        self.guests.iter().all(|guest| guest.flags & flags::CONSOLES != 0)
    }

    fn launch<T>(
        &self,
        workspace: &Workspace,
        qemu: &Qemu,
        run: impl FnOnce(&Launch<'_>) -> anyhow::Result<(Outcome, T)>,
    ) -> anyhow::Result<(Outcome, T)> {
        let runs = workspace.runs()?;
        let prefix = format!("{}-", self.label);
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(&runs).context("cannot write logs")?;
        let bundle_path = directory.path().join("guest.bundle");
        let bundle = Bundle::write(&self.guests, &bundle_path)?;
        let machine = Machine {
            image: self.image.program().image(workspace),
            loaded: Loaded::Guest { bundle, memory: bundle::total_memory(&self.guests) },
            spare_memory: self.image.spare_memory(&self.guests),
            append: self.image.argument(),
            cpu: self.cpu.to_owned(),
            cpus: self.host_cpus.unwrap_or_else(|| bundle::machine_cpus(&self.guests)),
            memory_file: None,
            deterministic: self.deterministic,
        };
        let launch = Launch {
            qemu,
            machine: &machine,
            directory: directory.path(),
            trace: self.image.trace(),
            timeout: self.timeout,
            stop: workspace.stop().clone(),
        };
        let ended = run(&launch);
        // The bundle is by far the largest file, and can be rebuilt from its parts.
        let _ = fs::remove_file(&bundle_path);
        match ended {
            Ok((outcome, result)) => self.judge(outcome, directory, &runs).map(|outcome| (outcome, result)),
            Err(error) if matches!(error.downcast_ref(), Some(RunError::Stopped)) => Err(error),
            Err(error) => {
                let _ = directory.keep();
                Err(error)
            }
        }
    }

    fn judge(&self, outcome: Outcome, directory: tempfile::TempDir, runs: &Path) -> anyhow::Result<Outcome> {
        let verdict = Verdict::new(&outcome, self.checked);
        // On a terminal the user left the guest on purpose.
        let left = self.terminal && verdict == Verdict::Left;
        if verdict.is_ok() || left {
            for log in [CONSOLE_LOG, CONTROL_LOG] {
                // On a terminal there is no console log.
                let _ = fs::rename(directory.path().join(log), runs.join(log));
            }
            return Ok(outcome);
        }
        if self.terminal && verdict == Verdict::Reset {
            // The user most likely typed `reboot`; the terminal already shows what led to it.
            bail!(
                "the guest asked for a reset (`reboot`, or a panic) and was ended; `poweroff -f` ends it with status 0"
            );
        }
        let tail = outcome.console.tail(20).join("\n");
        let console = if tail.is_empty() { String::new() } else { format!("\nThe console's last lines:\n{tail}") };
        let logs = directory.keep();
        Err(anyhow!("{verdict}{console}\nThe logs are in {}", logs.display()))
    }
}

impl Image<'_> {
    /// The program of the build.
    pub fn program(self) -> build::Program {
        match self {
            Self::Plain => build::HYPERVISOR,
            Self::Kib16 => build::HYPERVISOR_16K,
            Self::Kib64 => build::HYPERVISOR_64K,
            Self::Tracing(_) => build::TRACING_HYPERVISOR,
            Self::Oracle(_) => build::ORACLE_HYPERVISOR,
            Self::Recording(_) => build::RECORDING_HYPERVISOR,
        }
    }

    /// Memory in bytes beyond the guests'. The oracle keeps a copy of the guests' memory; a recording takes heap.
    fn spare_memory(self, guests: &[GuestSettings]) -> u64 {
        let memory: u64 = guests.iter().map(|guest| guest.memory).sum();
        match self {
            Self::Plain | Self::Kib16 | Self::Kib64 | Self::Tracing(_) => 0,
            Self::Oracle(_) => 2 * memory,
            Self::Recording(_) => memory / 8,
        }
    }

    /// The file of the build's trace.
    fn trace(&self) -> Option<&Path> {
        if let Self::Tracing(path) = self { Some(path) } else { None }
    }

    /// The build's argument on the image's own command line.
    fn argument(self) -> Option<String> {
        match self {
            Self::Plain | Self::Kib16 | Self::Kib64 => None,
            Self::Tracing(_) => Some(TRACE_ARGUMENT.to_owned()),
            Self::Oracle(what) => Some(format!("{ORACLE_ARGUMENT}{what}")),
            Self::Recording(rounds) => Some(format!("{RECORD_ARGUMENT}{rounds}")),
        }
    }
}
