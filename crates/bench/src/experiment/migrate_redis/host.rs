// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A QEMU with the hypervisor in it, for one guest. Its memory is a file that other programs can read.
//!
//! Invariant: the QEMU is gone when this value is.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;
use twofold_launch::session::Session;
use twofold_launch::{Bundle, Driver, Launch, Loaded, Machine, Outcome, Qemu, Stop, Verdict, machine};

/// What all hosts have in common.
#[derive(Debug)]
pub struct Kind {
    /// The emulator.
    pub qemu: Qemu,
    /// The hypervisor's image.
    pub image: PathBuf,
    /// CPUs of a machine.
    pub cpus: u32,
    /// Bytes of the guest's memory.
    pub memory: u64,
}

/// A machine that runs.
pub struct Host {
    /// The session with its hypervisor.
    pub session: Arc<Session>,
    memory: Memory,
    stop: Stop,
    thread: Option<JoinHandle<anyhow::Result<Outcome>>>,
}

/// A machine's memory: a file without a name, so that nothing is left of it.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Memory of a machine that is to start.
    ///
    /// # Errors
    ///
    /// The system has none.
    pub fn new() -> anyhow::Result<Self> {
        let file = memfd_create("twofold-host", MemfdFlags::CLOEXEC).context("a file for a machine's memory")?;
        Ok(Self(File::from(file)))
    }

    /// The path by which other processes open it, as long as this process has it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

impl Host {
    /// Starts a machine with the guest of this bundle.
    ///
    /// # Errors
    ///
    /// QEMU or the hypervisor does not start.
    pub fn start(kind: &Kind, bundle: Bundle, memory: Memory) -> anyhow::Result<Self> {
        let stop = Stop::default();
        let (drivers, started) = mpsc::channel();
        let machine = Machine {
            image: kind.image.clone(),
            loaded: Loaded::Guest { bundle, memory: kind.memory },
            spare_memory: 0,
            append: None,
            cpu: machine::CPU_DEFAULT.to_owned(),
            cpus: kind.cpus,
            memory_file: Some(memory.path()),
            deterministic: false,
        };
        let (qemu, stopped) = (kind.qemu.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let directory = TempDir::with_prefix("twofold-host-")?;
            let launch = Launch {
                qemu: &qemu,
                machine: &machine,
                directory: directory.path(),
                trace: None,
                timeout: None,
                stop: stopped,
            };
            let drive = |driver: Driver| -> anyhow::Result<()> {
                // A bench that has failed meanwhile ends the machine.
                let _ = drivers.send(driver);
                Ok(())
            };
            Ok(launch.run_driven(drive)?.0)
        });
        match started.recv() {
            Ok(Driver { session, .. }) => Ok(Self { session, memory, stop, thread: Some(thread) }),
            Err(_) => match joined(thread) {
                Ok(outcome) => bail!("the machine has ended at once: {}", last_lines(&outcome)),
                Err(why) => Err(why),
            },
        }
    }

    /// The path of its memory.
    pub fn memory(&self) -> PathBuf {
        self.memory.path()
    }

    /// Waits until the machine ends by itself.
    ///
    /// # Errors
    ///
    /// It was ended, or its guest did not power off.
    pub fn ended(mut self) -> anyhow::Result<Outcome> {
        let outcome = self.thread.take().map_or_else(|| bail!("the machine was waited for"), joined)?;
        let verdict = Verdict::new(&outcome, false);
        if !verdict.is_ok() {
            bail!("{verdict}; the console's last lines:\n{}", last_lines(&outcome));
        }
        Ok(outcome)
    }

    /// Whether the machine has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            // What a machine that was ended says is of no interest.
            let _ = joined(thread);
        }
    }
}

fn joined(thread: JoinHandle<anyhow::Result<Outcome>>) -> anyhow::Result<Outcome> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn last_lines(outcome: &Outcome) -> String {
    outcome.console.tail(20).join("\n")
}

/// How often this process looks for something that another one does.
pub const LOOK: Duration = Duration::from_millis(20);

/// Writes the bundle of a guest that starts.
///
/// # Errors
///
/// The settings are invalid, or the file cannot be written.
pub fn bundle(guest: &twofold_launch::GuestSettings, path: &Path) -> anyhow::Result<Bundle> {
    Ok(Bundle::write(std::slice::from_ref(guest), path)?)
}
