// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host of virtual machines in QEMU: Debian's kernel at EL2, where it runs KVM, and programs that it runs by command
//! lines.
//!
//! Invariant: a command has a result only if it ended; the result has its exit status and its own lines. The kernel
//! itself must have reported that KVM is in VHE mode. A run that ends otherwise keeps its logs below `target/run`.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use twofold_launch::run::CONSOLE_LOG;
use twofold_launch::{Launch, Loaded, Machine, Qemu, RunError, Verdict, machine};

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
    /// Shell commands, one a line, which run in turn.
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

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The command.
    pub command: String,
    /// The exit status that the shell reported.
    pub status: i32,
    /// The lines that the command wrote to standard output and standard error.
    pub lines: Vec<String>,
}

impl Host<'_> {
    /// Boots, runs the commands, and waits for the end. A failed command is not an error here.
    pub fn run(&self, workspace: &Workspace, qemu: &Qemu, linux: &Fetched) -> anyhow::Result<Vec<Ran>> {
        ensure!(self.commands.iter().all(|command| !command.contains('\n')), "a command is one line");
        let mut files = self.programs.clone();
        files.insert("commands".to_owned(), format!("{}\n", self.commands.join("\n")).into_bytes());
        let name = format!("{}.cpio", self.label);
        let initrd = initramfs::make(workspace, &name, initramfs::HOST, &linux.busybox, &files)?;
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
                Verdict::Ok => ran(&self.commands, &console),
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

impl Ran {
    /// Returns the command's lines if it ended with 0; else an error with the last lines.
    pub fn ended_well(&self) -> anyhow::Result<&[String]> {
        let last = &self.lines[self.lines.len().saturating_sub(20)..];
        ensure!(self.status == 0, "`{}` ended with status {}:\n{}", self.command, self.status, last.join("\n"));
        Ok(&self.lines)
    }
}

/// Kernel addresses are not randomised. Only warnings and errors go to the console, because this program reads it.
const KERNEL_ARGUMENTS: &str = "console=ttyAMA0 panic=-1 nokaslr loglevel=4";
const BEGIN: &str = "twofold: begin ";
const END: &str = "twofold: end ";

/// Separates the commands' own lines from the rest of the console.
fn ran(commands: &[String], console: &[String]) -> anyhow::Result<Vec<Ran>> {
    let mut lines = console.iter().map(|line| line.trim_end());
    let mut all = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let begin = format!("{BEGIN}{number}");
        if !lines.any(|line| line == begin) {
            bail!("the console has no beginning of `{command}`");
        }
        let end = format!("{END}{number} ");
        let (mut own, mut status) = (Vec::new(), None);
        for line in lines.by_ref() {
            if let Some(text) = line.strip_prefix(&end) {
                status = Some(text.parse().with_context(|| format!("`{command}` ended with `{text}`"))?);
                break;
            }
            own.push(line.to_owned());
        }
        let status = status.with_context(|| format!("the console has no end of `{command}`"))?;
        // The first process prints a line end after the command's output.
        if own.last().is_some_and(String::is_empty) {
            own.pop();
        }
        all.push(Ran { command: command.clone(), status, lines: own });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_command_has_its_own_lines() {
        let commands = ["one".to_owned(), "two".to_owned()];
        let text =
            "booting\ntwofold: begin 0\na\n\nb\n\ntwofold: end 0 0\r\ntwofold: begin 1\n\ntwofold: end 1 139\nok\n";
        let all = ran(&commands, &console(text)).unwrap();
        assert_eq!(all[0], Ran { command: "one".to_owned(), status: 0, lines: console("a\n\nb") });
        assert_eq!(all[1], Ran { command: "two".to_owned(), status: 139, lines: Vec::new() });
        assert_eq!(all[0].ended_well().unwrap().len(), 3);
        assert!(all[1].ended_well().is_err());
    }

    #[test]
    fn a_command_that_did_not_end_is_an_error() {
        let commands = ["one".to_owned(), "two".to_owned()];
        for text in
            ["", "twofold: begin 0\na", "twofold: begin 0\ntwofold: end 1 0", "twofold: begin 0\ntwofold: end 0 0"]
        {
            assert!(ran(&commands, &console(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_process_has_the_same_marks() {
        assert!(initramfs::HOST.contains(&format!("echo \"{BEGIN}$number\"")));
        assert!(initramfs::HOST.contains(&format!("echo \"{END}$number $status\"")));
    }
}
