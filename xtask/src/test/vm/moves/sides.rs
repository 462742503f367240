// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command's two sides of a move, each with runs, key and image of its own, as on two hosts.
//!
//! Invariant: a test waits for what a process says or for its end, never for a time.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::{fs, thread};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use twofold_launch::migrate::record::Record;
use twofold_migration::commit::{Ownership, Request};
use twofold_workspace::build;

use super::course::key_file;
use crate::test::vm::command::{Running, Twofold};
use crate::test::vm::machines::Machines;

/// Two hosts, and what they share.
pub struct Sides<'a> {
    machines: &'a Machines,
    /// What both reach.
    shared: tempfile::TempDir,
    here: Twofold,
    there: Twofold,
    /// Where the runs of each are found. They go last.
    _runs: [tempfile::TempDir; 2],
}

/// A `twofold` that runs.
pub struct Side {
    child: Running,
    lines: Receiver<String>,
    /// What it has said so far.
    pub said: String,
}

impl<'a> Sides<'a> {
    pub fn new(machines: &'a Machines) -> anyhow::Result<Self> {
        let runs = [tempfile::tempdir()?, tempfile::tempdir()?];
        let [here, there] = [Twofold::new(machines, &runs[0])?, Twofold::new(machines, &runs[1])?];
        let sides = Self { machines, shared: tempfile::tempdir()?, here, there, _runs: runs };
        key_file(sides.shared.path(), "key", 1)?;
        Ok(sides)
    }

    /// The key of both sides.
    pub fn key(&self) -> PathBuf {
        self.shared.path().join("key")
    }

    /// The owner record's file.
    pub fn owner(&self) -> PathBuf {
        self.shared.path().join("owner")
    }

    /// A file that both reach.
    pub fn path(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    /// What the owner record holds.
    pub fn owned(&self) -> anyhow::Result<Ownership> {
        Record::new(&self.owner()).ask(Request::Read, || true).context("there is no owner record")
    }

    /// Starts a guest of two vCPUs with this program, on the side that it is to leave.
    pub fn source(&self, program: &str) -> anyhow::Result<Side> {
        self.source_with(program, &[])
    }

    /// The same with these options.
    pub fn source_with(&self, program: &str, words: &[&str]) -> anyhow::Result<Side> {
        let [image, guest] = [build::HYPERVISOR, build::GUEST].map(|program| program.image(self.machines.workspace()));
        let mut run =
            self.here.command(["run", "--name", "one", "--cpus", "2", "--memory", "64M", "--append", program]);
        run.args(["--timeout", "900"]).args(words).arg("--image").arg(image).arg("--kernel").arg(guest);
        Side::start(run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// Waits for a guest on the other side; returns the address, too.
    pub fn target(&self, words: &[&str]) -> anyhow::Result<(Side, String)> {
        let mut run = self.there.command(["run", "--incoming", "127.0.0.1:0", "--timeout", "900"]);
        run.arg("--image").arg(build::HYPERVISOR.image(self.machines.workspace()));
        run.arg("--key").arg(self.key()).arg("--owner").arg(self.owner()).args(words);
        let mut target = Side::start(run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)?;
        let line = target.line_with("waits for a guest at ")?;
        let (_, address) = line.split_once(" at ").context("no address")?;
        let address = address.to_owned();
        Ok((target, address))
    }

    /// Orders the move of a guest.
    pub fn migrate(&self, guest: &str, to: &str, words: &[&str]) -> anyhow::Result<Side> {
        let mut order = self.here.command(["migrate", guest, to]);
        order.arg("--key").arg(self.key()).arg("--owner").arg(self.owner()).args(words);
        Side::start(order.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// Writes a snapshot of a guest here.
    pub fn snapshot(&self, guest: &str) -> anyhow::Result<PathBuf> {
        let file = self.shared.path().join("snapshot");
        let path = file.to_str().context("a temporary directory with a strange name")?;
        let (is_done, said) = self.here.said(["snapshot", guest, path])?;
        ensure!(is_done, "{said}");
        Ok(file)
    }

    /// Has a guest go on from a snapshot, on the other side.
    pub fn restored(&self, file: &Path, words: &[&str]) -> anyhow::Result<Side> {
        let mut run = self.there.command(["run", "--timeout", "900", "--from"]);
        run.arg(file).arg("--image").arg(build::HYPERVISOR.image(self.machines.workspace())).args(words);
        Side::start(run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// The states of the guest on both sides: at most one of them runs.
    pub fn states(&self) -> anyhow::Result<[String; 2]> {
        let states = [self.here.states()?, self.there.states()?];
        ensure!(states.iter().filter(|state| *state == "one=running").count() <= 1, "two runners");
        Ok(states)
    }
}

impl Side {
    fn start(mut child: Child) -> anyhow::Result<Self> {
        let (sender, lines) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take().context("no output")?, child.stderr.take().context("no output")?);
        pass_on(stdout, sender.clone());
        pass_on(stderr, sender);
        Ok(Self { child: Running(child), lines, said: String::new() })
    }

    /// Waits for a line with this in it.
    pub fn line_with(&mut self, text: &str) -> anyhow::Result<String> {
        loop {
            let line = self.lines.recv().with_context(|| format!("ended without {text:?}:\n{}", self.said))?;
            self.said += &line;
            self.said.push('\n');
            if line.contains(text) {
                return Ok(line);
            }
        }
    }

    /// All that it has said.
    pub fn all_said(&mut self) -> &str {
        while let Ok(line) = self.lines.try_recv() {
            self.said += &line;
            self.said.push('\n');
        }
        &self.said
    }

    /// Waits until it ends; returns whether it ended well.
    pub fn ended(&mut self) -> anyhow::Result<bool> {
        while let Ok(line) = self.lines.recv() {
            self.said += &line;
            self.said.push('\n');
        }
        Ok(self.child.0.wait()?.success())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.0.try_wait()?.is_some())
    }

    /// Kills it, and with it its QEMU; both are gone then.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let qemu = self.qemu()?;
        self.child.0.kill()?;
        self.ended()?;
        // The kernel kills it when its parent has ended.
        while qemu.is_some_and(|qemu| parent(qemu).is_some()) {
            thread::yield_now();
        }
        Ok(())
    }

    /// Has its machine stand still, or go on.
    pub fn signal_machine(&self, signal: Signal) -> anyhow::Result<()> {
        let qemu = self.qemu()?.context("it has no machine")?;
        Ok(kill_process(Pid::from_raw(qemu).context("a process without a number")?, signal)?)
    }

    /// Its only child.
    fn qemu(&self) -> anyhow::Result<Option<i32>> {
        let me = self.child.0.id() as i32;
        let all = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(all.into_iter().find(|process| parent(*process) == Some(me)))
    }
}

/// The parent of a process that is there, and no zombie.
fn parent(process: i32) -> Option<i32> {
    let stat = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    words.next()?.parse().ok().filter(|_| state != "Z")
}

fn pass_on(from: impl Read + Send + 'static, to: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            // A side that is dropped reads no more.
            if line.is_err() || line.is_ok_and(|line| to.send(line.trim_end().to_owned()).is_err()) {
                return;
            }
        }
    });
}
