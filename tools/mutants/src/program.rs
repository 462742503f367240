// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a test program until its first failure, its end, or its time limit.
//!
//! Invariant: when [`Program::run`] returns, the program has ended.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use twofold_launch::Stop;

/// A test program, and a marker that it may print to standard error.
pub struct Program {
    /// The command that runs it.
    pub command: Command,
    /// The marker.
    pub word: &'static str,
}

/// The end of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All tests passed.
    Passed,
    /// This test failed, or the program ended in another way that is no success.
    Failed(Option<String>),
    /// The program reached its time limit.
    TimeLimit,
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    /// The end of the program.
    pub end: End,
    /// Whether the program printed the marker.
    pub said: bool,
    /// The duration.
    pub took: Duration,
    /// The last lines of its standard error.
    pub last_words: String,
}

impl Program {
    /// Runs the program for at most `limit`.
    pub fn run(mut self, limit: Duration, stop: &Stop) -> anyhow::Result<Ran> {
        let start = Instant::now();
        let name = self.command.get_program().to_string_lossy().into_owned();
        let command = self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().with_context(|| format!("cannot start {name}"))?);
        child.limit_memory()?;
        let stdout = child.0.stdout.take().context("a program without standard output")?;
        let stderr = child.0.stderr.take().context("a program without standard error")?;
        let lines = lines(stdout);
        let words = listen(stderr, self.word);
        let end = child.follow(&lines, start + limit, stop);
        child.end();
        let (said, last_words) = words.join().map_err(|_| anyhow::anyhow!("reading {name} panicked"))?;
        Ok(Ran { end: end?, said, took: start.elapsed(), last_words })
    }
}

/// A running program, which is ended on drop.
struct Running(Child);

impl Running {
    fn follow(&mut self, lines: &Receiver<String>, deadline: Instant, stop: &Stop) -> anyhow::Result<End> {
        let mut tests = Tests::default();
        loop {
            match lines.recv_timeout(LOOK) {
                Ok(line) => {
                    if tests.failed(&line) {
                        return Ok(End::Failed(tests.running));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if stop.is_requested() {
                bail!("stopped");
            }
            if Instant::now() >= deadline {
                return Ok(End::TimeLimit);
            }
        }
        let status = self.0.wait().context("a program that cannot be waited for")?;
        Ok(if status.success() { End::Passed } else { End::Failed(tests.running) })
    }

    /// Limits the program's memory: a mutant that allocates without end fails, and the host does not run out of memory.
    fn limit_memory(&self) -> anyhow::Result<()> {
        let limit = Rlimit { current: Some(MOST_MEMORY), maximum: Some(MOST_MEMORY) };
        match prlimit(Some(Pid::from_child(&self.0)), Resource::Data, limit) {
            // A program that has ended needs no limit.
            Ok(_) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).context("the limit on memory"),
        }
    }

    fn end(&mut self) {
        // The program may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// The most data memory that a program may have, in bytes. The largest test, of 64 KiB pages, maps 9.5 GiB, of which
/// it touches little.
const MOST_MEMORY: u64 = 12 << 30;

/// The longest time between two checks for a stop request.
const LOOK: Duration = Duration::from_millis(50);

/// Follows the test harness's lines, one test at a time: `test NAME ... ok`. The test's own output may follow the dots.
#[derive(Default)]
struct Tests {
    running: Option<String>,
}

impl Tests {
    /// Reads a line; returns whether the running test failed.
    fn failed(&mut self, line: &str) -> bool {
        if let Some((name, _)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... ")) {
            self.running = Some(name.trim_end_matches(" - should panic").to_owned());
        }
        if line.ends_with("ok") {
            // If the `ok` is the test's own output, only the test's name is lost.
            self.running = None;
        }
        line == "FAILED" || line.starts_with("test ") && line.ends_with("FAILED")
    }
}

fn lines(stdout: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        for line in lines {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receive
}

/// Reads standard error to its end; returns whether it had `word`, and its last lines.
fn listen(stderr: impl Read + Send + 'static, word: &'static str) -> JoinHandle<(bool, String)> {
    thread::spawn(move || {
        let (mut said, mut last) = (false, VecDeque::new());
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            said |= line.contains(word);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
        (said, Vec::from(last).join("\n"))
    })
}

const LAST_LINES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> Ran {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program { command, word: "reached" }.run(limit, &Stop::default()).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_failure_ends_it_at_once() {
        let ran = run("echo 'test a::b ... ok'; echo 'test a::c ... FAILED'; exec sleep 1000", LONG);
        assert_eq!((ran.end, ran.said), (End::Failed(Some("a::c".to_owned())), false));
        let ran = run("echo mutant reached >&2; echo 'test a ... 5 orders'; echo FAILED; exec sleep 1000", LONG);
        assert_eq!((ran.end, ran.said), (End::Failed(Some("a".to_owned())), true));
    }

    #[test]
    fn how_it_ends_is_what_counts() {
        assert_eq!(run("echo 'test a ... ok'", LONG).end, End::Passed);
        assert_eq!(run("echo 'test a ... ok'; exit 1", LONG).end, End::Failed(None));
        let ran = run("echo 'test a ... '; echo why >&2; kill -9 $$", LONG);
        assert_eq!((ran.end, ran.last_words.as_str()), (End::Failed(Some("a".to_owned())), "why"));
    }

    #[test]
    fn a_time_limit_is_no_failure() {
        let ran = run("exec sleep 1000", Duration::from_millis(1));
        assert_eq!(ran.end, End::TimeLimit);
    }

    #[test]
    fn a_request_ends_it() {
        let stop = Stop::default();
        stop.request();
        let mut command = Command::new("sleep");
        command.arg("1000");
        assert!(Program { command, word: "" }.run(LONG, &stop).is_err());
    }
}
