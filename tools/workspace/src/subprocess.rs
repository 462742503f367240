// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs other programs, waits for their end, and reports failures.
//!
//! Invariants: a program's failure is an error that names the program and has the end of its output. If xtask is asked
//! to stop ([`stop_with`]) or is killed, its programs end too. Nothing waits for a program that hangs.

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

/// Sets the request that ends running programs and prevents others from starting. Only the first call counts.
pub fn stop_with(stop: Stop) {
    STOP.get_or_init(|| stop);
}

/// Returns whether xtask was asked to stop.
pub fn is_stopped() -> bool {
    STOP.get().is_some_and(Stop::is_requested)
}

static STOP: OnceLock<Stop> = OnceLock::new();

/// Runs `command` to its end and collects its output. Its standard input is empty.
///
/// # Errors
///
/// The program does not start, or xtask is asked to stop. A stop ends the program and the processes that it started.
pub fn output(command: &mut Command) -> io::Result<Output> {
    output_until(command, STOP.get_or_init(Stop::default))
}

/// Runs `command` and returns its standard output. An error has the last lines of its output.
pub fn read(command: &mut Command) -> anyhow::Result<String> {
    let name = name(command);
    let output = output(command).with_context(|| not_started(&name))?;
    if !output.status.success() {
        bail!("{name} ended with {}: {}", output.status, last_words(&output.stderr, &output.stdout, 8));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command`. On a terminal its output is shown at once, else only if it fails.
pub fn show(command: &mut Command) -> anyhow::Result<()> {
    let name = name(command);
    if output::is_terminal() {
        // The output goes to standard error; standard output is for this program's results.
        let status = status(command.stdout(io::stderr())).with_context(|| not_started(&name))?;
        if !status.success() {
            bail!("{name} ended with {status}; its output is above");
        }
        return Ok(());
    }
    quiet(command)
}

/// Runs `command` without showing its output. An error has the end of the output.
pub fn quiet(command: &mut Command) -> anyhow::Result<()> {
    let name = name(command);
    let output = output(command).with_context(|| not_started(&name))?;
    if !output.status.success() {
        bail!("{name} ended with {}:\n{}", output.status, last_words(&output.stderr, &output.stdout, 80));
    }
    Ok(())
}

/// Returns the file that `name` stands for in `PATH`, if there is one.
pub fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Returns the command line as a user would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` in this process group, because the terminal sends Ctrl-C to that group.
fn status(command: &mut Command) -> io::Result<ExitStatus> {
    let stop = STOP.get_or_init(Stop::default);
    let mut running = Running::start(command, stop, Receiver::Program)?;
    running.wait(stop, || true)
}

fn output_until(command: &mut Command, stop: &Stop) -> io::Result<Output> {
    // A process group of its own, so that a signal also reaches the processes that the program started.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command, stop, Receiver::Group)?;
    let stdout = read_all(running.child.stdout.take());
    let stderr = read_all(running.child.stderr.take());
    let status = running.wait(stop, || stdout.is_finished() && stderr.is_finished())?;
    let text = |reader: JoinHandle<io::Result<Vec<u8>>>| reader.join().unwrap_or_else(|_| Ok(Vec::new()));
    Ok(Output { status, stdout: text(stdout)?, stderr: text(stderr)? })
}

/// A running program, which is ended on drop.
///
/// Invariant: a signal is sent only before the program is reaped, so its process id is not reused.
struct Running {
    child: Child,
    receiver: Receiver,
    is_reaped: bool,
}

/// The receiver of a signal: the program alone, or its process group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Program,
    Group,
}

impl Running {
    fn start(command: &mut Command, stop: &Stop, receiver: Receiver) -> io::Result<Self> {
        if stop.is_requested() {
            return Err(stopped());
        }
        // The parent-death signal follows the thread: this thread outlives the program, because it waits for it or ends
        // it.
        child::dies_with_parent(command);
        Ok(Self { child: command.spawn()?, receiver, is_reaped: false })
    }

    /// Waits until the program has ended and `is_read` reports that all its output is read.
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

    /// Returns whether the program has ended. Does not reap it.
    fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?.is_some())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // An error means that no process is left, or that it may not be signalled (`sudo`). Neither can be helped.
        let _ = match self.receiver {
            Receiver::Program => kill_process(pid, signal),
            Receiver::Group => kill_process_group(pid, signal),
        };
    }

    /// Waits for the program's end, at most [`PATIENCE`]: a program that may not be signalled does not end.
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
        // SIGKILL follows SIGTERM, because the program or a process that it started may ignore SIGTERM.
        for signal in [Signal::TERM, Signal::KILL] {
            self.signal(signal);
            self.give_time();
        }
        let _ = self.child.try_wait();
    }
}

const POLL_MAX: Duration = Duration::from_millis(20);
/// The time that a program has to end after SIGTERM.
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
        // A subcommand belongs to the name (`cargo build`); a path or an option does not.
        Some(word) if !word.starts_with(['-', '/']) => format!("{} {word}", program.to_string_lossy()),
        _ => program.to_string_lossy().into_owned(),
    }
}

fn not_started(name: &str) -> String {
    format!("{name} does not start; `cargo xtask doctor` reports which tools are missing")
}

fn last_words(stderr: &[u8], stdout: &[u8], count: usize) -> String {
    let text = if stderr.iter().all(u8::is_ascii_whitespace) { stdout } else { stderr };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "it printed nothing".to_owned();
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

    /// The script and the process that it started hang. A stop ends both.
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
            // An orphan that is not reaped remains as a zombie (state Z). The limit only prevents an endless wait.
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
