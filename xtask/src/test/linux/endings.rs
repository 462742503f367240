// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ends of a run that does not end by itself: its time limit, SIGTERM or SIGINT, SIGKILL. No process that the run
//! started remains.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use twofold_workspace::install;

use super::kernels::spinning_kernel;
use super::suite::{Ended, Suite, refused_with, script, text};

pub fn hang(suite: &Suite) -> anyhow::Result<()> {
    let spinning = Spinning::new(suite, "hang")?;
    let ended = spinning.command(suite, &["--timeout", "3"]).output()?;
    refused_with(Ended::of(ended), &["did not end within 3 s", "--timeout"])?;
    spinning.is_gone()
}

pub fn interrupt(suite: &Suite) -> anyhow::Result<()> {
    let spinning = Spinning::new(suite, "interrupt")?;
    let mut command = spinning.command(suite, &["--timeout", "60"]);
    let mut child = Reaped(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    while !spinning.pid.exists() && child.0.try_wait()?.is_none() {
        thread::sleep(POLL);
    }
    kill_process(Pid::from_child(&child.0), Signal::TERM)?;
    let status = child.0.wait()?;
    ensure!(status.code() == Some(130), "it ended with {status}, not with 130");
    spinning.is_gone()
}

/// SIGKILL gives this program no chance to end QEMU, so the kernel must.
pub fn kill(suite: &Suite) -> anyhow::Result<()> {
    let spinning = Spinning::new(suite, "kill")?;
    let mut command = spinning.command(suite, &["--timeout", "300"]);
    let mut child = Reaped(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    while !fs::read_to_string(&spinning.pid).is_ok_and(|pid| pid.ends_with('\n')) && child.0.try_wait()?.is_none() {
        thread::sleep(POLL);
    }
    child.0.kill()?;
    child.0.wait()?;
    let pid = fs::read_to_string(&spinning.pid).context("QEMU was never started")?;
    let ended = wait_until(|| is_gone(pid.trim()));
    kill_left(&pid);
    ended.with_context(|| format!("QEMU (process {}) still runs", pid.trim()))
}

/// Only this program gets the signal, and must end an apt-get that hangs.
pub fn interrupt_fetch(suite: &Suite) -> anyhow::Result<()> {
    let (apt_get, pid, cache) = (suite.path("hanging-apt-get"), suite.path("apt-get-pid"), suite.path("interrupted"));
    script(&apt_get, &format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'\nsleep 1000", text(&pid)?))?;
    let mut command = suite.command();
    command.args(["--check", "--guest", "linux"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.env("TWOFOLD_APT_GET", &apt_get).env("TWOFOLD_GUEST_CACHE", &cache).spawn().map(Reaped)?;
    while !pid.exists() && child.0.try_wait()?.is_none() {
        thread::sleep(POLL);
    }
    let apt_get = fs::read_to_string(&pid).context("apt-get was never started")?;
    kill_process(Pid::from_child(&child.0), Signal::INT)?;
    let mut status = None;
    let ended = wait_until(|| {
        status = child.0.try_wait().ok().flatten();
        status.is_some()
    });
    let alive = !is_gone(apt_get.trim());
    kill_left(&apt_get);
    ended.context("it waits for the apt-get that hangs")?;
    ensure!(status.is_some_and(|status| status.code() == Some(130)), "it ended with {status:?}, not with 130");
    ensure!(!alive, "apt-get (process {}) still runs", apt_get.trim());
    Ok(())
}

/// Waits for a condition that holds almost at once. The limit only prevents an endless wait.
fn wait_until(mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        ensure!(Instant::now() < limit, "the condition does not hold after a minute");
        thread::sleep(POLL);
    }
    Ok(())
}

/// Kills a process that a failing test would leave behind.
fn kill_left(pid: &str) {
    let pid = pid.trim();
    if let (false, Some(pid)) = (is_gone(pid), pid.parse().ok().and_then(Pid::from_raw)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns whether a process has ended. One that is not reaped remains as a zombie (state Z).
fn is_gone(pid: &str) -> bool {
    fs::read_to_string(Path::new("/proc").join(pid).join("stat")).map_or(true, |status| status.contains(") Z "))
}

const POLL: Duration = Duration::from_millis(10);

/// A guest that never ends, in a QEMU whose process id is known.
struct Spinning {
    arguments: [String; 5],
    qemu: PathBuf,
    pid: PathBuf,
}

impl Spinning {
    /// Creates the guest for the test `of`, with files of its own, because tests run in parallel.
    fn new(suite: &Suite, of: &str) -> anyhow::Result<Self> {
        let path = |name: &str| suite.path(&format!("{of}-{name}"));
        let (kernel, initrd) = (path("spinning"), path("small-initrd"));
        fs::write(&kernel, spinning_kernel())?;
        fs::write(&initrd, b"070701")?;
        // A script writes its process id and then becomes the real QEMU by `exec`, which keeps the id.
        let (pid, qemu) = (path("pid"), path("qemu"));
        let _ = fs::remove_file(&pid);
        let real = install::qemu()?;
        let launch = format!("case \"$*\" in *--version) ;; *) echo $$ > '{}';; esac", text(&pid)?);
        script(&qemu, &format!("{launch}\nexec '{}' \"$@\"", real.program().display()))?;
        let arguments = ["--check", "--kernel", text(&kernel)?, "--initrd", text(&initrd)?].map(str::to_owned);
        Ok(Self { arguments, qemu, pid })
    }

    fn command(&self, suite: &Suite, more: &[&str]) -> Command {
        let mut command = suite.command();
        command.args(&self.arguments).args(more).env("TWOFOLD_QEMU", &self.qemu);
        command
    }

    fn is_gone(&self) -> anyhow::Result<()> {
        let pid = fs::read_to_string(&self.pid).context("QEMU was never started")?;
        let alive = Path::new("/proc").join(pid.trim()).exists();
        ensure!(!alive, "QEMU (process {}) still runs", pid.trim());
        Ok(())
    }
}

/// Ends a child that a failing test would leave behind.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
