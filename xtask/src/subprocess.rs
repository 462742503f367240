// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other programs: started, waited for, and their failure put in a sentence.
//!
//! Invariants: a program that fails is an error that names it and holds the end of what it wrote. A program is ended when
//! xtask is asked to stop ([`stop_with`]) or is killed; nothing waits for one that hangs.

use std::env;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use twofold_launch::{Stop, child};

use crate::output;

/// Says what asks programs that run to end, and keeps others from starting. The first call counts.
pub fn stop_with(stop: Stop) {
    STOP.get_or_init(|| stop);
}

static STOP: OnceLock<Stop> = OnceLock::new();

/// Runs `command` to its end and collects what it writes; it has nothing to read.
///
/// # Errors
///
/// It does not start, or xtask is asked to stop: then it is ended, with the processes that it started.
pub fn output(command: &mut Command) -> io::Result<Output> {
    output_until(command, STOP.get_or_init(Stop::default))
}

/// Runs `command` and gives its standard output; an error has its last words.
pub fn read(command: &mut Command) -> anyhow::Result<String> {
    let name = name(command);
    let output = output(command).with_context(|| not_started(&name))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, last_words(&output.stderr, &output.stdout, 8));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command`: its output is shown as it comes on a terminal, else only when it fails.
pub fn show(command: &mut Command) -> anyhow::Result<()> {
    let name = name(command);
    if output::is_terminal() {
        // On standard error, so that standard output stays ours.
        let status = status(command.stdout(io::stderr())).with_context(|| not_started(&name))?;
        if !status.success() {
            bail!("{name} ended with {status}; it said why above");
        }
        return Ok(());
    }
    quiet(command)
}

/// Runs `command` without showing its output; an error has the end of it.
pub fn quiet(command: &mut Command) -> anyhow::Result<()> {
    let name = name(command);
    let output = output(command).with_context(|| not_started(&name))?;
    if !output.status.success() {
        bail!("{name} ended with {}:\n{}", output.status, last_words(&output.stderr, &output.stdout, 80));
    }
    Ok(())
}

/// The file that `name` stands for in `PATH`, if there is one.
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` on the terminal, which sends Ctrl-C to it as well: so it stays in our process group.
fn status(command: &mut Command) -> io::Result<ExitStatus> {
    let stop = STOP.get_or_init(Stop::default);
    let mut running = Running::start(command, stop, Whom::Program)?;
    running.wait(stop, || true)
}

fn output_until(command: &mut Command, stop: &Stop) -> io::Result<Output> {
    // A process group of its own, so that a signal reaches what it started too.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command, stop, Whom::Group)?;
    let stdout = read_all(running.child.stdout.take());
    let stderr = read_all(running.child.stderr.take());
    let status = running.wait(stop, || stdout.is_finished() && stderr.is_finished())?;
    let text = |reader: JoinHandle<io::Result<Vec<u8>>>| reader.join().unwrap_or_else(|_| Ok(Vec::new()));
    Ok(Output { status, stdout: text(stdout)?, stderr: text(stderr)? })
}

/// A program that runs, and is ended with its owner.
///
/// Invariant: it is signalled only before it is reaped, so its number is not another process's.
struct Running {
    child: Child,
    whom: Whom,
    is_reaped: bool,
}

/// Whom a signal to a program is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    Program,
    Group,
}

impl Running {
    fn start(command: &mut Command, stop: &Stop, whom: Whom) -> io::Result<Self> {
        if stop.is_requested() {
            return Err(stopped());
        }
        // This thread waits for the program, or ends it.
        child::dies_with_parent(command);
        Ok(Self { child: command.spawn()?, whom, is_reaped: false })
    }

    /// Waits for its end, and until `is_read` says that all it wrote is read.
    fn wait(&mut self, stop: &Stop, is_read: impl Fn() -> bool) -> io::Result<ExitStatus> {
        let mut pause = Duration::from_millis(1);
        while !(self.has_ended()? && is_read()) {
            if stop.is_requested() {
                return Err(stopped());
            }
            thread::sleep(pause);
            pause = (2 * pause).min(POLL_MAX);
        }
        self.is_reaped = true;
        self.child.wait()
    }

    /// Whether it has ended, which leaves it to be reaped.
    fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?.is_some())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // An error means that nothing is left, or that it may not be signalled (`sudo`): there is nothing to be done.
        let _ = match self.whom {
            Whom::Program => kill_process(pid, signal),
            Whom::Group => kill_process_group(pid, signal),
        };
    }

    /// Waits a moment for its end; one that may not be signalled is not waited for.
    fn give_time(&self) {
        let limit = Instant::now() + PATIENCE;
        while Instant::now() < limit && matches!(self.has_ended(), Ok(false)) {
            thread::sleep(POLL_MAX);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_reaped {
            return;
        }
        // Asked first, then killed: it or what it started may not have followed.
        for signal in [Signal::TERM, Signal::KILL] {
            self.signal(signal);
            self.give_time();
        }
        let _ = self.child.try_wait();
    }
}

const POLL_MAX: Duration = Duration::from_millis(20);
/// How long a program may take to follow SIGTERM.
const PATIENCE: Duration = Duration::from_secs(1);

fn stopped() -> io::Error {
    io::Error::other("stopped")
}

fn read_all(from: Option<impl Read + Send + 'static>) -> JoinHandle<io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            from.read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    })
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let first = command.get_args().next().map(|word| word.to_string_lossy().into_owned());
    match first {
        // `cargo build` says more than `cargo`; a path or an option does not.
        Some(word) if !word.starts_with(['-', '/']) => format!("{} {word}", program.to_string_lossy()),
        _ => program.to_string_lossy().into_owned(),
    }
}

fn not_started(name: &str) -> String {
    format!("{name} does not start; `cargo xtask doctor` says what is missing")
}

fn last_words(stderr: &[u8], stdout: &[u8], count: usize) -> String {
    let text = if stderr.iter().all(u8::is_ascii_whitespace) { stdout } else { stderr };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "it said nothing".to_owned();
    }
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_read() {
        assert_eq!(read(&mut shell("echo hello")).unwrap(), "hello\n");
    }

    #[test]
    fn a_failure_has_its_last_words() {
        let error = read(&mut shell("echo one >&2; echo two >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("one\ntwo"), "{error}");
        let error = show(&mut shell("exit 3")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    /// The script and what it started hang; a stop ends both at once.
    #[test]
    fn a_stop_ends_a_program_that_hangs_and_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let mut command = shell("sleep 1000 & echo $$ $! > pids.new; mv pids.new pids; wait");
        command.current_dir(directory.path());
        let stop = Stop::default();
        let stopper = {
            let (stop, pids) = (stop.clone(), pids.clone());
            thread::spawn(move || {
                while !pids.exists() {
                    thread::sleep(POLL_MAX);
                }
                stop.request();
            })
        };
        let error = output_until(&mut command, &stop).unwrap_err().to_string();
        stopper.join().unwrap();
        assert_eq!(error, "stopped");
        for pid in fs::read_to_string(&pids).unwrap().split_whitespace() {
            let status = Path::new("/proc").join(pid).join("stat");
            // An orphan that nothing reaps stays as a zombie: state Z. The limit is against waiting for ever.
            let is_gone = || fs::read_to_string(&status).map_or(true, |status| status.contains(") Z "));
            let limit = Instant::now() + Duration::from_secs(60);
            while !is_gone() {
                assert!(Instant::now() < limit, "process {pid} still runs");
                thread::sleep(POLL_MAX);
            }
        }
        assert_eq!(output_until(&mut shell("echo late"), &stop).unwrap_err().to_string(), "stopped");
    }

    #[test]
    fn programs_are_found() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program").is_none());
        assert!(find("/no/such/program").is_none());
    }
}
