// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one machine: follows its console, ends it in time, and collects its output.
//!
//! Invariant: however [`Launch::run`] returns, the QEMU that it started is gone and reaped. If the launcher is killed,
//! its QEMU is killed too. The time limit only guards against hangs; it never decides whether a guest was right.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::channel::{Channel, Listener, Peer, Sink, SinkError};
use crate::child;
use crate::machine::{Loaded, Machine};
use crate::outcome::{Console, KEPT_LINES, Outcome};
use crate::qemu::Qemu;
use crate::report::Control;
use crate::session::{Client, Session};

/// The name of the console's log in a launch's directory.
pub const CONSOLE_LOG: &str = "console.log";
/// The name of the control channel's log in a launch's directory.
pub const CONTROL_LOG: &str = "control.log";
const STDERR_LOG: &str = "qemu.log";

/// One launch.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The QEMU to start.
    pub qemu: &'a Qemu,
    /// The machine that it emulates.
    pub machine: &'a Machine,
    /// An existing directory for the logs, used by one launch at a time.
    pub directory: &'a Path,
    /// The file for the trace of an image that sends one. It is truncated.
    pub trace: Option<&'a Path>,
    /// The time limit; `None`: no limit.
    pub timeout: Option<Duration>,
    /// Ends the launch from outside.
    pub stop: Stop,
}

/// What drives a machine that runs: commands to its hypervisor, by what it writes.
#[derive(Debug)]
pub struct Driver {
    /// The session, which takes no guest's console.
    pub session: Arc<Session>,
    /// The lines of the console, from the first on.
    pub lines: Receiver<String>,
}

/// Asks every launch that has a clone of it to end. It is cheap to clone, and safe in a signal handler's thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// Why a machine did not end by itself.
#[derive(Debug, Error)]
pub enum RunError {
    /// QEMU did not start.
    #[error("cannot start {program}: {why}; `cargo xtask doctor` says what is missing")]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// A log cannot be written or read.
    #[error("cannot use {path}: {why}; is the disk full?")]
    Log {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The time limit passed.
    #[error(
        "the guest did not end within {} s and was ended; raise --timeout if the machine is slow. The console \
         is in {log}, and its last lines are:\n{last}", limit.as_secs()
    )]
    TimedOut {
        /// The limit.
        limit: Duration,
        /// The console's log.
        log: PathBuf,
        /// The end of the console.
        last: String,
    },
    /// [`Stop::request`] was called.
    #[error("stopped")]
    Stopped,
}

impl From<SinkError> for RunError {
    fn from(SinkError { path, why }: SinkError) -> Self {
        Self::Log { path, why }
    }
}

impl Stop {
    /// Asks the launches to end.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Stop::request`] was called.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Launch<'_> {
    /// Runs with the console read by the launcher, which logs each line and passes it to `on_line`.
    pub fn run(&self, on_line: impl FnMut(&str)) -> Result<Outcome, RunError> {
        self.run_asking(&[], on_line)
    }

    /// As [`run`](Self::run), and sends these bytes on the control channel when QEMU starts. What the hypervisor answers is
    /// in the control log.
    pub fn run_asking(&self, asked: &[u8], on_line: impl FnMut(&str)) -> Result<Outcome, RunError> {
        let child = self.start()?;
        let control_error = |why| RunError::Log { path: self.directory.join(CONTROL_LOG), why };
        child.listener.as_ref().map_or(Ok(()), |listener| listener.send(asked)).map_err(control_error)?;
        self.follow(child, on_line, || false)
    }

    /// As [`run`](Self::run), and has `drive` give commands, in a thread of its own. If it fails, the
    /// machine is ended.
    ///
    /// # Errors
    ///
    /// The error of `drive`, or else that of the launch.
    pub fn run_driven<T: Send, E: From<RunError> + Send>(
        &self,
        drive: impl FnOnce(Driver) -> Result<T, E> + Send,
    ) -> Result<(Outcome, T), E> {
        let unread = (0..self.names().len() as u16).collect();
        let session = Arc::new(Session::new(Client::new(HashMap::new(), unread)));
        let child = self.start_with(Some(Box::new(Arc::clone(&session))))?;
        let (sender, lines) = mpsc::channel();
        let has_failed = AtomicBool::new(false);
        thread::scope(|scope| {
            let driver = scope.spawn(|| {
                let driven = drive(Driver { session, lines });
                has_failed.store(driven.is_err(), Ordering::Release);
                driven
            });
            let followed = self.follow(
                child,
                // A driver that has ended reads no more lines.
                |line| _ = sender.send(line.to_owned()),
                || has_failed.load(Ordering::Acquire),
            );
            // A driver that waits for a line learns that none comes. One that waits for an answer has learnt it already.
            drop(sender);
            let driven = driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // If the driver failed, the launch was ended because of that.
            let driven = driven?;
            Ok((followed?, driven))
        })
    }

    /// As [`run`](Self::run), with guests whose consoles are on the control channel
    /// ([`CONSOLES`](twofold_abi::bundle::flags::CONSOLES)). Their lines are lines of the console; each begins with the
    /// guest's name if there are several.
    pub fn run_lines(&self, consoles: &Arc<Session>, on_line: impl FnMut(&str)) -> Result<Outcome, RunError> {
        let mut child = self.start_with(Some(Box::new(Arc::clone(consoles))))?;
        let names = self.names();
        let guests = (0..).zip(names);
        let prefix = |name: &String| if names.len() > 1 { format!("[{name}] ") } else { String::new() };
        child.guests = guests.map(|(number, name)| (Arc::clone(consoles), number, prefix(name))).collect();
        self.follow(child, on_line, || false)
    }

    /// As [`run_lines`](Self::run_lines), and leaves all consoles to `drive`, in a thread of its own. If it fails, the
    /// machine is ended.
    ///
    /// # Errors
    ///
    /// The error of `drive`, or else that of the launch.
    pub fn run_consoles<T: Send, E: From<RunError> + Send>(
        &self,
        consoles: &Arc<Session>,
        drive: impl FnOnce(&Session) -> Result<T, E> + Send,
    ) -> Result<(Outcome, T), E> {
        let child = self.start_with(Some(Box::new(Arc::clone(consoles))))?;
        let has_failed = AtomicBool::new(false);
        thread::scope(|scope| {
            let driver = scope.spawn(|| {
                let driven = drive(consoles);
                has_failed.store(driven.is_err(), Ordering::Release);
                driven
            });
            let followed = self.follow(child, |_| (), || has_failed.load(Ordering::Acquire));
            let driven = driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((followed?, driven))
        })
    }

    /// The names of the guests.
    fn names(&self) -> &[String] {
        match &self.machine.loaded {
            Loaded::Guest { bundle, .. } => &bundle.names,
            _ => &[],
        }
    }

    /// Follows the console to the end, which comes early if `is_over` says so.
    fn follow(
        &self,
        mut child: Running,
        mut on_line: impl FnMut(&str),
        is_over: impl Fn() -> bool,
    ) -> Result<Outcome, RunError> {
        let log_path = self.directory.join(CONSOLE_LOG);
        let log_error = |why| RunError::Log { path: log_path.clone(), why };
        let mut log = File::create(&log_path).map_err(log_error)?;
        let lines = child.lines();
        let deadline = self.deadline();
        let mut console = Console::of(self.machine.several());
        let mut take = |line: String| -> Result<(), RunError> {
            writeln!(log, "{line}").map_err(log_error)?;
            on_line(&line);
            console.take(&line);
            Ok(())
        };

        let ended = loop {
            match lines.recv_timeout(POLL) {
                Ok(line) => take(line)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break self.wait(&mut child, deadline)?,
            }
            if is_over() {
                break Err(End::Stopped);
            }
            if let Err(end) = self.may_go_on(deadline) {
                break Err(end);
            }
        };
        if ended.is_err() {
            child.kill();
            // The output before the kill is worth keeping. The wait is short, because another process may still hold
            // the pipe.
            while let Ok(line) = lines.recv_timeout(POLL) {
                take(line)?;
            }
        }
        match ended {
            Ok(status) => self.outcome(status, child, console),
            Err(End::Stopped) => Err(RunError::Stopped),
            Err(End::TimedOut(limit)) => Err(self.timed_out(limit, &console)),
        }
    }

    /// A limit beyond the range of the clock is no limit.
    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.timeout?)
    }

    fn start(&self) -> Result<Running, RunError> {
        self.start_with(None)
    }

    fn start_with(&self, peer: Option<Box<dyn Peer>>) -> Result<Running, RunError> {
        let stderr = self.directory.join(STDERR_LOG);
        // An empty file, so that a QEMU that fails early leaves no control log of an earlier launch.
        let control = Sink::create(&self.directory.join(CONTROL_LOG))?;
        let trace = self.trace.map(Sink::create).transpose()?;
        let lost = |why| RunError::Start { program: self.qemu.program().to_owned(), why };
        let channel = Channel::new().map_err(lost)?;
        let mut command = Command::new(self.qemu.program());
        command.args(self.qemu.sandbox()).args(self.machine.arguments(channel.number()));
        let stderr = File::create(&stderr).map_err(|why| RunError::Log { path: stderr, why })?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        // This thread waits for the child, so only the launcher's death triggers the kill.
        child::dies_with_parent(&mut command);
        let listener = channel.listen(&mut command, control, trace, peer).map_err(lost)?;
        let child = command.spawn().map_err(lost)?;
        Ok(Running { child, listener: Some(listener), guests: Vec::new() })
    }

    /// Waits for the end. It polls, because `std` has no wait with a limit.
    fn wait(&self, child: &mut Running, deadline: Option<Instant>) -> Result<Result<ExitStatus, End>, RunError> {
        loop {
            let polled = child.child.try_wait();
            let lost = |why| RunError::Start { program: self.qemu.program().to_owned(), why };
            if let Some(status) = polled.map_err(lost)? {
                return Ok(Ok(status));
            }
            if let Err(end) = self.may_go_on(deadline) {
                return Ok(Err(end));
            }
            thread::sleep(POLL);
        }
    }

    fn may_go_on(&self, deadline: Option<Instant>) -> Result<(), End> {
        if self.stop.is_requested() {
            return Err(End::Stopped);
        }
        match (deadline, self.timeout) {
            (Some(deadline), Some(limit)) if Instant::now() >= deadline => Err(End::TimedOut(limit)),
            _ => Ok(()),
        }
    }

    fn outcome(&self, status: ExitStatus, mut child: Running, console: Console) -> Result<Outcome, RunError> {
        child.listener.take().map_or(Ok(()), Listener::end)?;
        let read = |name: &str| {
            let path = self.directory.join(name);
            match fs::read(&path) {
                Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
                Err(why) => Err(RunError::Log { path, why }),
            }
        };
        let control = Control::parse(&read(CONTROL_LOG)?);
        // QEMU ends with 0 when the machine is switched off, for whatever reason.
        let status = status.code().map(|status| if status == 0 { control.exit.unwrap_or(0) } else { status });
        Ok(Outcome { status, console, control, stderr: read(STDERR_LOG)? })
    }

    fn timed_out(&self, limit: Duration, console: &Console) -> RunError {
        let lines = console.tail(SHOWN_LINES);
        let last = if lines.is_empty() { "(nothing)".to_owned() } else { lines.join("\n") };
        RunError::TimedOut { limit, log: self.directory.join(CONSOLE_LOG), last }
    }
}

const POLL: Duration = Duration::from_millis(10);
const SHOWN_LINES: usize = 20;
/// The limit keeps a guest that never ends its line from filling the host's memory.
const LINE_MAX: u64 = 64 << 10;

enum End {
    Stopped,
    TimedOut(Duration),
}

/// A child that is killed and reaped when its owner drops it.
struct Running {
    child: Child,
    /// Without this value it reads on by itself, to the child's end.
    listener: Option<Listener>,
    /// Guests whose lines are lines of the console, and what they begin with.
    guests: Vec<(Arc<Session>, u16, String)>,
}

impl Running {
    fn lines(&mut self) -> Receiver<String> {
        let (sender, receiver) = mpsc::sync_channel(KEPT_LINES);
        for (consoles, guest, prefix) in self.guests.drain(..) {
            let sender = sender.clone();
            thread::spawn(move || {
                let take = |line: String| sender.send(format!("{prefix}{line}")).is_ok();
                read_lines(Reading { consoles: &consoles, guest }, take);
            });
        }
        if let Some(stdout) = self.child.stdout.take() {
            thread::spawn(move || read_lines(stdout, |line| sender.send(line).is_ok()));
        }
        receiver
    }

    fn kill(&mut self) {
        // An error means that the child is already gone, as wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A guest's console, to be read to its end.
struct Reading<'a> {
    consoles: &'a Session,
    guest: u16,
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.consoles.read(self.guest, buffer.len());
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// Passes each line to `take` until it returns false or the stream ends.
pub fn read_lines(stream: impl Read, take: impl Fn(String) -> bool) {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&bytes);
                if !take(text.trim_end_matches(['\n', '\r']).to_owned()) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::machine::{CPU_DEFAULT, Loaded};
    use crate::verdict::Verdict;

    fn launch(fake: &Fake, timeout: Option<Duration>, stop: &Stop) -> (Result<Outcome, RunError>, Vec<String>) {
        let qemu = Qemu::at(&fake.program).unwrap();
        let machine = Machine {
            image: "twofold.img".into(),
            loaded: Loaded::Nothing,
            spare_memory: 0,
            append: None,
            cpu: CPU_DEFAULT.to_owned(),
            cpus: 1,
            memory_file: None,
            deterministic: false,
        };
        let launch = Launch {
            qemu: &qemu,
            machine: &machine,
            directory: fake.directory.path(),
            trace: None,
            timeout,
            stop: stop.clone(),
        };
        let mut lines = Vec::new();
        let result = launch.run(|line| lines.push(line.to_owned()));
        (result, lines)
    }

    /// A fake that answers `--version` and then runs `script`.
    fn fake(script: &str) -> Fake {
        Fake::new(&format!("case \"$*\" in *--version) echo 'QEMU emulator version 8.0.0'; exit 0;; esac\n{script}"))
    }

    /// The script writes its process id, which `exec` keeps.
    const SLEEP: &str = "echo $$ > \"$(dirname \"$0\")/pid\"; echo booting; exec sleep 1000";

    fn assert_gone(fake: &Fake) {
        // On a very slow machine the script may be killed before it writes the file; then there is nothing to check.
        let Ok(pid) = fs::read_to_string(fake.directory.path().join("pid")) else { return };
        let alive = Path::new("/proc").join(pid.trim()).exists();
        assert!(!alive, "process {pid} still runs");
    }

    #[test]
    fn an_end_is_collected() {
        let fake = fake(
            "echo hello; printf 'guest check: ok\\r\\n'; say 'twofold:stat exits.hvc 3'\n\
             say 'twofold:end power-off'; say 'twofold:exit 0'; echo warning >&2; exit 0",
        );
        let (result, lines) = launch(&fake, None, &Stop::default());
        let outcome = result.unwrap();
        assert_eq!(lines, ["hello", "guest check: ok"]);
        assert_eq!(outcome.console.tail(10), lines);
        assert_eq!(outcome.control.report.get("exits.hvc"), Some(3));
        assert_eq!(outcome.stderr, "warning\n");
        assert_eq!(Verdict::new(&outcome, true), Verdict::Ok);
        let log = fs::read_to_string(fake.directory.path().join(CONSOLE_LOG)).unwrap();
        assert_eq!(log, "hello\nguest check: ok\n");
    }

    #[test]
    fn a_limit_beyond_the_clock_is_none() {
        let fake = fake("say 'twofold:end power-off'; say 'twofold:exit 0'; exit 0");
        let (result, _) = launch(&fake, Some(Duration::from_secs(u64::MAX)), &Stop::default());
        assert_eq!(Verdict::new(&result.unwrap(), false), Verdict::Ok);
    }

    #[test]
    fn the_status_is_the_images_own_unless_qemu_fails() {
        let verdict = |script: &str| {
            let outcome = launch(&fake(script), None, &Stop::default()).0.unwrap();
            Verdict::new(&outcome, false)
        };
        let error = "say 'twofold:error no bundle'; say 'twofold:end error'";
        let cannot_start = Verdict::CannotStart("no bundle".to_owned());
        assert_eq!(verdict(&format!("{error}; say 'twofold:exit 18'; exit 0")), cannot_start);
        assert_eq!(verdict(&format!("{error}; exit 18")), cannot_start);
        assert_eq!(
            verdict("say 'twofold:end power-off'; say 'twofold:exit 0'; exit 1"),
            Verdict::Qemu(Some(1), "".into())
        );
        assert_eq!(verdict("say 'twofold:end power-off'; exit 0"), Verdict::Left);
        assert_eq!(verdict("exit 0"), Verdict::Left);
    }

    /// A stream that is cut in the middle of a frame says nothing, and the launch ends.
    #[test]
    fn a_frame_that_is_cut_by_the_end_is_no_line() {
        let fake = fake("say 'twofold:end power-off'; printf '\\x02\\x89\\x04' >&\"$channel\"; exit 0");
        let outcome = launch(&fake, None, &Stop::default()).0.unwrap();
        assert_eq!((outcome.control.end.as_deref(), outcome.control.exit), (Some("power-off"), None));
    }

    #[test]
    fn a_hang_is_killed_and_its_console_shown() {
        let fake = fake(SLEEP);
        let (result, _) = launch(&fake, Some(Duration::from_secs(1)), &Stop::default());
        let error = result.unwrap_err();
        assert!(matches!(error, RunError::TimedOut { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("--timeout") && text.contains(CONSOLE_LOG), "{text}");
        assert_gone(&fake);
    }

    #[test]
    fn a_stop_from_outside_kills() {
        let fake = fake(SLEEP);
        let stop = Stop::default();
        let stopper = stop.clone();
        let pid = fake.directory.path().join("pid");
        let waiter = thread::spawn(move || {
            while !pid.exists() {
                thread::sleep(POLL);
            }
            stopper.request();
        });
        let (result, _) = launch(&fake, None, &stop);
        waiter.join().unwrap();
        assert!(matches!(result.unwrap_err(), RunError::Stopped));
        assert_gone(&fake);
    }

    /// This test starts itself as the launcher, in a process of its own: SIGKILL leaves it no time to end its QEMU.
    #[test]
    fn a_launcher_that_is_killed_takes_its_qemu_along() {
        const LAUNCHER: &str = "TWOFOLD_TEST_LAUNCHER";
        if let Some(directory) = std::env::var_os(LAUNCHER) {
            let program = Path::new(&directory).join("qemu");
            let directory = tempfile::TempDir::new_in(directory).unwrap();
            let _ = launch(&Fake { directory, program }, None, &Stop::default());
            return;
        }
        let fake = fake(SLEEP);
        let directory = fake.directory.path();
        let pid = directory.join("pid");
        let mut launcher = Command::new(std::env::current_exe().unwrap());
        launcher.args(["--exact", "run::tests::a_launcher_that_is_killed_takes_its_qemu_along"]);
        let child = launcher.env(LAUNCHER, directory).spawn().unwrap();
        let mut launcher = Running { child, listener: None, guests: Vec::new() };
        while !fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')) {
            assert!(launcher.child.try_wait().unwrap().is_none(), "the launcher ended by itself");
            thread::sleep(POLL);
        }
        launcher.kill();
        let status = Path::new("/proc").join(fs::read_to_string(&pid).unwrap().trim()).join("stat");
        // If nothing reaps orphans, the process stays as a zombie: state Z.
        let is_gone = || fs::read_to_string(&status).map_or(true, |status| status.contains(") Z "));
        // The kernel has already sent the signal; the limit is only there in case it has not.
        let limit = Instant::now() + Duration::from_secs(60);
        while !is_gone() {
            assert!(Instant::now() < limit, "{} still runs", status.display());
            thread::sleep(POLL);
        }
    }

    #[test]
    fn a_line_without_end_is_cut_into_pieces() {
        let fake = fake("head -c 200000 /dev/zero | tr '\\0' x; exit 0");
        let (_, lines) = launch(&fake, None, &Stop::default());
        assert_eq!(lines.iter().map(String::len).sum::<usize>(), 200_000);
        assert_eq!(lines.iter().map(String::len).max(), Some(LINE_MAX as usize));
    }
}
