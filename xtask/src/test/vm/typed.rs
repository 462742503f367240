// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine that starts in another program than ours, driven at its serial console as by a person.
//!
//! Invariant: QEMU is gone when a [`Typed`] is. The time limit only guards against hangs.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use twofold_launch::{Qemu, child};

/// What U-Boot shows when it waits for a line.
pub const PROMPT: &str = "\n=> ";

/// Against hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The machine.
pub struct Typed {
    child: Child,
    keyboard: ChildStdin,
    screen: Receiver<Vec<u8>>,
    seen: String,
    /// Bytes of `seen` that were waited for.
    read: usize,
    deadline: Instant,
}

impl Typed {
    /// Starts QEMU with these arguments beside those of its console. A reset ends the machine.
    pub fn start(qemu: &Qemu, arguments: Vec<OsString>) -> anyhow::Result<Self> {
        let mut command = Command::new(qemu.program());
        command.args(qemu.sandbox()).args(arguments);
        command.args(["-nic", "none", "-display", "none", "-serial", "stdio", "-monitor", "none"]);
        command.args(["-action", "reboot=shutdown"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        child::dies_with_parent(&mut command);
        let mut child = command.spawn().context("QEMU does not start")?;
        let keyboard = child.stdin.take().context("QEMU without standard input")?;
        let mut output = child.stdout.take().context("QEMU without standard output")?;
        let (sender, screen) = mpsc::channel();
        // It ends with QEMU.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = output.read(&mut bytes) {
                if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, keyboard, screen, seen: String::new(), read: 0, deadline: Instant::now() + LIMIT })
    }

    /// Waits until the console shows `text`, after what was waited for before. Returns what came before it.
    pub fn wait_for(&mut self, text: &str) -> anyhow::Result<&str> {
        let start = self.read;
        loop {
            if let Some(place) = self.seen[start..].find(text) {
                self.read = start + place + text.len();
                return Ok(&self.seen[start..start + place]);
            }
            if !self.receive()? {
                bail!("the machine ended without {text:?}:\n{}", self.seen);
            }
        }
    }

    /// Types a line.
    pub fn enter(&mut self, line: &str) -> anyhow::Result<()> {
        self.keyboard.write_all(format!("{line}\r").as_bytes()).context("QEMU reads no input")
    }

    /// Waits for the end of the machine, which must be an orderly one. Returns what the console has shown.
    pub fn end(mut self) -> anyhow::Result<String> {
        while self.receive()? {}
        let status = self.child.wait()?;
        ensure!(status.success(), "QEMU ended with {status}:\n{}", self.seen);
        Ok(std::mem::take(&mut self.seen))
    }

    /// Waits for more output. `false`: there will be none.
    fn receive(&mut self) -> anyhow::Result<bool> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.screen.recv_timeout(left) {
            // Escape sequences and texts of the programs that run there are ASCII.
            Ok(bytes) => self.seen.extend(bytes.iter().map(|byte| char::from(byte & 0x7f))),
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
            Err(RecvTimeoutError::Timeout) => bail!("nothing more within {} s:\n{}", LIMIT.as_secs(), self.seen),
        }
        Ok(true)
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
