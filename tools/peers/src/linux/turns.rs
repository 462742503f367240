// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that run one operation for each request, so that two programs can take turns on one machine.
//!
//! Invariant: dropping a `Process` ends its program.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use twofold_workspace::{Workspace, cargo, subprocess};

/// The built bench.
#[derive(Debug)]
pub struct Bench {
    /// The path of the program.
    pub program: PathBuf,
    /// The operations of the bench.
    pub operations: Vec<String>,
}

/// Builds our bench for this machine.
pub fn build_bench(workspace: &Workspace) -> anyhow::Result<Bench> {
    let mut build = Command::new("cargo");
    build.current_dir(workspace.root()).args(["build", "--release", "--package", PACKAGE]);
    build.arg("--message-format=json-render-diagnostics");
    let messages = subprocess::read(&mut build)?;
    let program = cargo::executables(&messages).find(|made| made.target == PACKAGE);
    let program = program.with_context(|| format!("Cargo built no program of {PACKAGE}"))?.file;
    let names = subprocess::read(Command::new(&program).args(["bench", "engine", "--list"]))?;
    Ok(Bench { program, operations: names.lines().map(str::to_owned).collect() })
}

const PACKAGE: &str = "twofold";

/// The result of one operation.
#[derive(Clone, Debug, Deserialize)]
pub struct Answer {
    /// The operation's name.
    pub name: String,
    /// The unit of its figures: `ns/pte`, `ns/block`.
    pub unit: String,
    /// Nanoseconds, if the operation was timed.
    pub ns: Option<f64>,
    /// Events, if they were counted.
    #[serde(flatten)]
    pub counts: Counts,
    /// Bytes of the process in huge pages, if it reports them.
    pub huge_page_bytes: Option<u64>,
}

/// Events per unit; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Counts {
    /// TLB invalidations.
    pub tlbi: Option<f64>,
    /// Data synchronization barriers.
    pub dsb: Option<f64>,
    /// Data cache lines cleaned.
    pub lines_cleaned: Option<f64>,
    /// Table pages allocated and freed.
    pub tables: Option<f64>,
    /// Atomic read-modify-writes.
    pub atomics: Option<f64>,
}

/// A running program that reads names of operations.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts the program.
    pub fn start(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{name} does not start"))?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.context("no pipe")?);
        Ok(Self { name, child, questions, answers })
    }

    /// Runs one operation.
    pub fn ask(&mut self, operation: &str) -> anyhow::Result<Answer> {
        let ended = || format!("{} ended at {operation}; its output is above", self.name);
        let questions = self.questions.as_mut().context("asked after the end")?;
        // The I/O error is not a cause in the chain: `main` would take the program's closed pipe for a closed standard
        // output.
        let asked = writeln!(questions, "{operation}");
        let mut line = String::new();
        let answered = self.answers.read_line(&mut line);
        if asked.is_err() || answered.is_err() || line.is_empty() {
            bail!("{}", ended());
        }
        let answer: Answer =
            serde_json::from_str(&line).with_context(|| format!("{} answered {operation} with {line}", self.name))?;
        if answer.name != operation {
            bail!("{} did {} instead of {operation}", self.name, answer.name);
        }
        Ok(answer)
    }

    /// Ends the program and checks its exit status.
    pub fn end(mut self) -> anyhow::Result<()> {
        drop(self.questions.take());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}; its output is above", self.name);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.questions.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(Path::new("/bin/sh"), &["-c", script]).unwrap()
    }

    #[test]
    fn questions_are_answered() {
        let mut process =
            shell(r#"while read name; do echo "{\"name\":\"$name\",\"unit\":\"ns/pte\",\"ns\":1.5}"; done"#);
        for name in ["one", "two"] {
            let answer = process.ask(name).unwrap();
            assert_eq!((answer.name.as_str(), answer.ns, answer.counts), (name, Some(1.5), Counts::default()));
        }
        process.end().unwrap();
    }

    #[test]
    fn an_early_end_is_an_error() {
        assert!(shell("read name; exit 1").ask("one").unwrap_err().to_string().contains("ended at one"));
        let mut gone = shell("exit 1");
        let _ = gone.child.wait();
        let error = gone.ask("one").unwrap_err();
        assert!(!twofold_workspace::output::is_closed(&error), "{error:#}");
        assert!(shell("exit 3").end().unwrap_err().to_string().contains("exit status: 3"));
        let mut wrong = shell(r#"read name; echo '{"name":"two","unit":"ns/pte","tlbi":null}'"#);
        assert!(wrong.ask("one").unwrap_err().to_string().contains("instead of one"));
    }
}
