// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host of virtual machines in QEMU: Debian's kernel at EL2, where it runs KVM, and programs that it runs by command
//! lines.
//!
//! Invariant: the kernel itself must have reported that KVM is in VHE mode. A run that ends otherwise keeps its logs below
//! `target/run`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, anyhow};
use twofold_launch::run::CONSOLE_LOG;
use twofold_launch::{Launch, Loaded, Machine, Qemu, RunError, Verdict, machine};

use crate::commands::{self, Ran};
use crate::fetch::Fetched;
use crate::initramfs;
use crate::workspace::Workspace;

/// A host and its commands.
#[derive(Debug)]
pub struct Host<'a> {
    /// The prefix of the run directory's name, and the initrd's name.
    pub label: &'a str,
    /// Static arm64 programs, by their paths in the initramfs: `bin/dirty_log_perf_test`.
    pub programs: BTreeMap<String, Vec<u8>>,
    /// Shell commands of one line, which run in turn.
    pub commands: Vec<String>,
    /// Number of CPUs.
    pub cpus: u32,
    /// The host's RAM in bytes.
    pub memory: u64,
    /// Whether the run is deterministic, which requires one CPU.
    pub deterministic: bool,
    /// The limit against hangs; `None` for no limit.
    pub timeout: Option<Duration>,
}

impl Host<'_> {
    /// Boots, runs the commands, and waits for the end. A failed command is not an error here.
    pub fn run(&self, workspace: &Workspace, qemu: &Qemu, linux: &Fetched) -> anyhow::Result<Vec<Ran>> {
        let mut files = self.programs.clone();
        files.insert(commands::FILE.to_owned(), commands::lines(&self.commands)?);
        let name = format!("{}.cpio", self.label);
        let initrd = initramfs::make(workspace, &name, initramfs::COMMANDS, &linux.busybox, &files)?;
        let runs = workspace.runs()?;
        let prefix = format!("{}-", self.label);
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(&runs).context("cannot write logs")?;
        let machine = Machine {
            image: linux.kernel.clone(),
            loaded: Loaded::Kernel { initrd, memory: self.memory },
            spare_memory: 0,
            append: Some(KERNEL_ARGUMENTS.to_owned()),
            cpu: machine::CPU_DEFAULT.to_owned(),
            cpus: self.cpus,
            memory_file: None,
            deterministic: self.deterministic,
        };
        let launch = Launch {
            qemu,
            machine: &machine,
            directory: directory.path(),
            trace: None,
            timeout: self.timeout,
            stop: workspace.stop().clone(),
        };
        let mut console = Vec::new();
        let judged = match launch.run(|line| console.push(line.to_owned())) {
            Ok(outcome) => match Verdict::of_kernel(&outcome) {
                Verdict::Ok => commands::ran(&self.commands, &console),
                verdict => {
                    Err(anyhow!("{verdict}\nThe console's last lines:\n{}", outcome.console.tail(20).join("\n")))
                }
            },
            Err(RunError::Stopped) => return Err(RunError::Stopped.into()),
            Err(error) => Err(error.into()),
        };
        match judged {
            Ok(ran) => {
                let _ = fs::rename(directory.path().join(CONSOLE_LOG), runs.join(CONSOLE_LOG));
                Ok(ran)
            }
            Err(error) => Err(error.context(format!("the logs are in {}", directory.keep().display()))),
        }
    }
}

/// Kernel addresses are not randomised. Only warnings and errors go to the console, because this program reads it. The
/// first process checks that KVM is there.
const KERNEL_ARGUMENTS: &str = "console=ttyAMA0 panic=-1 nokaslr loglevel=4 twofold.kvm";
