// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who says whether a mutant is noticed: test programs, built once with all mutants inside.
//!
//! Invariant: a judge passes without a mutant, or there is no verdict; it is run the same way each time, random tests with
//! the same seed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use twofold_launch::Stop;

use super::program::{End, Program, Ran};
use super::sites::Mutant;
use crate::subprocess;
use crate::workspace::Workspace;

/// Chooses the mutant; `stage2::primitive` reads it.
pub const CHOICE: &str = "TWOFOLD_MUTANT";

/// A test program.
#[derive(Debug)]
pub struct Judge {
    /// Its package and its own name.
    pub name: String,
    program: PathBuf,
    directory: PathBuf,
    asked: Asked,
    /// Whether CPUs that meet are all it can judge, not instructions.
    meetings_only: bool,
    /// How long it takes without a mutant.
    usual: Duration,
}

/// What a judge said of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It failed: this test of it, where it is known which.
    Failed(Option<String>),
    /// It saw nothing wrong.
    Passed,
    /// It did not end.
    Hung,
}

/// The test programs of `packages` with these features.
struct Build {
    packages: &'static [&'static str],
    features: &'static [&'static str],
    flags: &'static str,
    /// Its own directory: with other flags everything is built anew.
    directory: &'static str,
    /// Which of them judge.
    judges: &'static [Asked],
    meetings_only: bool,
}

/// What of a test program is asked, and when.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The target's name.
    target: &'static str,
    /// Of its tests, those with this in their names.
    filter: &'static str,
    /// Who is asked first.
    rank: u32,
    /// How many preemptions the model checker tries. With two it is minutes for all its tests.
    preemptions: u32,
}

const fn all(target: &'static str, rank: u32) -> Asked {
    some(target, "", rank)
}

const fn some(target: &'static str, filter: &'static str, rank: u32) -> Asked {
    Asked { target, filter, rank, preemptions: 1 }
}

/// The machine's own comes first, as it is made to notice; then by cost. What is compared with others' is no judge.
const BUILDS: [Build; 2] = [
    Build {
        packages: &["twofold-stage2", "twofold-memory", "twofold-machine"],
        features: &["twofold-stage2/checked", "twofold-memory/baselines", "twofold-machine/unforgiving"],
        flags: "--cfg mutants",
        directory: "tests",
        judges: &[
            some("unforgiving", "judge_", 0),
            all("walk", 1),
            all("baselines", 1),
            all("sequences", 1),
            all("faults", 1),
            all("model", 2),
            all("threads", 3),
            some("vm", "threads::", 3),
        ],
        meetings_only: false,
    },
    Build {
        packages: &["twofold-stage2"],
        features: &["twofold-stage2/checked"],
        flags: "--cfg mutants --cfg loom",
        directory: "loom",
        judges: &[
            some("twofold_stage2", "loom::", 4),
            Asked { target: "twofold_stage2", filter: "loom::reused", rank: 5, preemptions: 2 },
        ],
        meetings_only: true,
    },
];

/// What only a machine can judge: instructions, and functions that are made of them.
const INSTRUCTIONS: [&str; 12] = [
    "tlbi",
    "dsb",
    "isb",
    "dc_lines",
    "ic",
    "load_vttbr",
    "clean_lines",
    "before_map",
    "clean_holes",
    "invalidate",
    "invalidate_vmid",
    "invalidate_local",
];

/// Builds all judges.
pub fn build(workspace: &Workspace) -> anyhow::Result<Vec<Judge>> {
    let mut judges = Vec::new();
    for build in &BUILDS {
        judges.extend(build.run(workspace)?);
    }
    if judges.is_empty() {
        bail!("there is no test program to judge by");
    }
    Ok(judges)
}

/// Runs each judge without a mutant, `jobs` at a time: it has to pass, and that is how long it takes. Sorts them by who is
/// asked first.
pub fn measure(judges: &mut [Judge], jobs: usize, stop: &Stop) -> anyhow::Result<()> {
    let next = Mutex::new(judges.iter_mut());
    let work = || {
        while let Some(judge) = next.lock().ok().and_then(|mut next| next.next()) {
            judge.measure(stop)?;
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let join =
            |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_else(|_| bail!("a worker panicked"));
        workers.into_iter().try_for_each(join)
    })?;
    judges.sort_by_key(|judge| (judge.asked.rank, judge.usual));
    Ok(())
}

/// The longest that a judge may take without a mutant.
const WITHOUT_MUTANT: Duration = Duration::from_secs(300);

impl Judge {
    fn measure(&mut self, stop: &Stop) -> anyhow::Result<()> {
        let ran = self.program(None).run(WITHOUT_MUTANT, stop)?;
        self.usual = ran.took;
        match ran.end {
            End::Passed => Ok(()),
            End::TimeLimit => {
                bail!("{} does not end within {} s without a mutant", self.name, WITHOUT_MUTANT.as_secs())
            }
            End::Failed(test) => {
                bail!("{} fails without a mutant: {}\n{}", self.name, test.unwrap_or_default(), ran.last_words)
            }
        }
    }

    /// Whether it can notice such a mutant at all.
    pub fn is_for(&self, mutant: &Mutant) -> bool {
        !(self.meetings_only && INSTRUCTIONS.contains(&mutant.site.call.as_str()))
    }

    /// Judges a mutant. Tells the verdict, and whether what the mutant changes was executed.
    pub fn judge(&self, mutant: &Mutant, stop: &Stop) -> anyhow::Result<(Verdict, bool)> {
        // A mutant that only waits for ever is for the machine to name, not for a clock: this limit is there to come to
        // an end.
        let limit = Duration::from_secs(10) + 5 * self.usual;
        let Ran { end, said, last_words, .. } = self.program(Some(&mutant.to_string())).run(limit, stop)?;
        match end {
            End::Failed(test) if !said => bail!(
                "{} fails by itself: the mutant {mutant} was not even executed{}\n{last_words}",
                self.name,
                test.map(|test| format!(" ({test})")).unwrap_or_default(),
            ),
            End::Failed(test) => Ok((Verdict::Failed(test), true)),
            End::Passed => Ok((Verdict::Passed, said)),
            End::TimeLimit => Ok((Verdict::Hung, said)),
        }
    }

    fn program(&self, mutant: Option<&str>) -> Program {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.directory).args(["--nocapture", "--test-threads=1"]);
        if !self.asked.filter.is_empty() {
            command.arg(self.asked.filter);
        }
        command.env_remove(CHOICE).env("RUST_BACKTRACE", "0");
        command.envs(mutant.map(|mutant| (CHOICE, mutant)));
        // A few cases, the same each time; a failure is neither made smaller nor kept in the source.
        command.env("PROPTEST_CASES", "24").env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("LOOM_MAX_PREEMPTIONS", self.asked.preemptions.to_string());
        Program { command, word: "mutant reached" }
    }
}

impl Build {
    fn run(&self, workspace: &Workspace) -> anyhow::Result<Vec<Judge>> {
        let mut command = Command::new("cargo");
        command.current_dir(workspace.root()).args(["test", "--no-run", "--message-format=json"]);
        if self.meetings_only {
            command.arg("--lib");
        } else {
            // Nothing else: it would take its time to build.
            command.args(self.judges.iter().flat_map(|asked| ["--test", asked.target]));
        }
        for package in self.packages {
            command.args(["--package", package]);
        }
        command.arg("--features").arg(self.features.join(","));
        command.env("RUSTFLAGS", self.flags).env("CARGO_TARGET_DIR", workspace.mutants().join(self.directory));
        // Fast, but with the assertions of a debug build.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2").env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        let typed = subprocess::shown(&command);
        let output = command.stdin(Stdio::null()).output().context("cargo does not start")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let flags = self.flags;
            bail!(
                "`RUSTFLAGS=\"{flags}\" {typed}` failed\n{}{}",
                errors(&text),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(self.judges_of(&text))
    }

    /// The judges among the programs that Cargo says it made.
    fn judges_of(&self, messages: &str) -> Vec<Judge> {
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
        let programs = messages.flat_map(|message| self.judges_in(message).unwrap_or_default());
        // Named once, were Cargo to say it twice.
        programs.map(|judge| (judge.name.clone(), judge)).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    fn judges_in(&self, message: Message) -> Option<Vec<Judge>> {
        let (target, directory) = (message.target?, message.manifest_path?.parent()?.to_owned());
        let (program, package) = (message.executable?, directory.file_name()?.to_string_lossy().into_owned());
        let asked = self.judges.iter().filter(|asked| asked.target == target.name);
        let judge = |asked: &Asked| Judge {
            // The model checker's tests are in the library.
            name: format!(
                "{package} {}",
                if self.meetings_only { asked.filter.trim_matches(':') } else { asked.target }
            ),
            program: program.clone(),
            directory: directory.clone(),
            asked: *asked,
            meetings_only: self.meetings_only,
            usual: Duration::ZERO,
        };
        Some(asked.map(judge).collect())
    }
}

/// One line of Cargo's.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// What the compiler said, where it did not compile.
fn errors(messages: &str) -> String {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let errors = messages.filter_map(|message| message.message).filter(|message| message.level == "error");
    errors.filter_map(|message| message.rendered).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_are_found_among_what_cargo_made() {
        let text = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/stage2/Cargo.toml","target":{"name":"twofold_stage2"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/stage2/Cargo.toml","target":{"name":"sequences"},"executable":"/t/sequences-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/machine/Cargo.toml","target":{"name":"unforgiving"},"executable":"/t/unforgiving-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/machine/Cargo.toml","target":{"name":"trace"},"executable":"/t/trace-1"}
{"reason":"build-finished","success":true}"#;
        let judges = BUILDS[0].judges_of(text);
        let names: Vec<_> = judges.iter().map(|judge| (judge.name.as_str(), judge.asked.filter)).collect();
        assert_eq!(names, [("machine unforgiving", "judge_"), ("stage2 sequences", "")]);
        assert_eq!(judges[1].directory, std::path::Path::new("/w/crates/stage2"));
    }

    #[test]
    fn an_error_of_the_compiler_is_shown() {
        let text = r#"{"reason":"compiler-message","message":{"level":"error","rendered":"error: no\n"}}
{"reason":"compiler-message","message":{"level":"warning","rendered":"warning: hm\n"}}"#;
        assert_eq!(errors(text), "error: no\n");
    }
}
