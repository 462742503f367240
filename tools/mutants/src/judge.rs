// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tests that judge mutants: the mutants that each test executes, and the verdict on one mutant.
//!
//! Only the tests that execute a mutant judge it, the fastest first, until one fails. Invariant: a test gives the same
//! verdict each time. Its seed is fixed, and an endless loop ends at a number of evaluations, if the mutants count
//! them. The watchdog on time ends the rest, and its verdict is not "caught".

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use twofold_launch::Stop;

use crate::mutation::Mutation;
use crate::outcome::Outcome;
use crate::parallel::in_parallel;
use crate::program::{End, Program};

/// The environment variable that selects the mutant; `stage2::instrumented` reads it.
pub const CHOICE: &str = "TWOFOLD_MUTANT";

/// A test program.
#[derive(Clone, Debug)]
pub struct TestProgram {
    /// The package's name and the program's name.
    pub name: String,
    /// The program's file.
    pub program: PathBuf,
    /// The working directory.
    pub directory: PathBuf,
    /// Only tests with this text in their names judge.
    pub filter: &'static str,
    /// Tests with one of these in their names do not judge.
    pub except: &'static [&'static str],
    /// The number of preemptions that the model checker tries, if the program has such tests.
    pub preemptions: u32,
    /// Whether it can judge only concurrent accesses, and no instructions.
    pub meetings_only: bool,
}

/// A test.
#[derive(Debug)]
struct Test {
    program: usize,
    name: String,
    took: Duration,
    /// The number of evaluations of mutants, if the mutants count them.
    evaluations: u64,
    reached: BTreeSet<String>,
}

impl Test {
    /// Whether it takes too long to judge a mutant that is known to pass.
    fn is_long(&self) -> bool {
        self.evaluations > SHORT || self.took > SHORT_TIME
    }
}

/// How long the tests may be that judge a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Only short ones: for a mutant that is known to pass all tests.
    Short,
    /// The long ones after the short ones.
    Long,
}

impl Patience {
    /// For this mutant. No test catches an excused one, so it would run them all.
    pub fn with(mutant: &impl Mutation) -> Self {
        if mutant.excuse().is_some() { Self::Short } else { Self::Long }
    }
}

/// Tests that pass without a mutant.
#[derive(Debug)]
pub struct Tests {
    programs: Vec<TestProgram>,
    tests: Vec<Test>,
}

impl Tests {
    /// Runs each test of `programs` without a mutant, `jobs` at a time, and records in `place` the mutants that it
    /// executes.
    pub fn measure(programs: Vec<TestProgram>, place: &Path, jobs: usize, stop: &Stop) -> anyhow::Result<Self> {
        let mut wanted = Vec::new();
        for (index, TestProgram { name, program, directory, filter, except, .. }) in programs.iter().enumerate() {
            let output = Command::new(program).current_dir(directory).args(["--list", "--format", "terse"]).output();
            let output = output.with_context(|| format!("{name} does not start"))?;
            let text = String::from_utf8_lossy(&output.stdout);
            let is_judge = |test: &&str| test.contains(filter) && !except.iter().any(|name| test.contains(name));
            let tests = text.lines().filter_map(|line| line.strip_suffix(": test")).filter(is_judge);
            wanted.extend(tests.map(|test| (index, test.to_owned())));
        }
        let place = place.join("reached");
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let mut all = Self { programs, tests: Vec::new() };
        let tests = in_parallel(&wanted, jobs, |number, (program, name), _| {
            all.test(*program, name, &place.join(number.to_string()), stop)
        })?;
        all.tests = tests.into_iter().flatten().collect();
        all.tests.sort_by_key(|test| test.took);
        Ok(all)
    }

    /// Returns the number of tests.
    pub fn count(&self) -> usize {
        self.tests.len()
    }

    /// Runs one test without a mutant. Returns `None` if the test has too many evaluations to judge.
    fn test(&self, program: usize, name: &str, file: &Path, stop: &Stop) -> anyhow::Result<Option<Test>> {
        // The file may remain from an earlier run.
        let _ = fs::remove_file(file);
        let mut command = self.command(program, [name]);
        command.env("TWOFOLD_REACHED", file).env("TWOFOLD_EVALUATIONS", MOST_EVALUATIONS.to_string());
        let ran = Program { command, word: WORD }.run(WITHOUT_MUTANT, stop)?;
        let judge = &self.programs[program].name;
        match ran.end {
            End::Passed => {}
            End::Failed(_) if ran.last_words.contains(TOO_MANY) => return Ok(None),
            End::TimeLimit => bail!("{judge} {name} does not end within {} s", WITHOUT_MUTANT.as_secs()),
            End::Failed(_) => bail!("{judge} {name} fails without a mutant\n{}", ran.last_words),
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let evaluations = lines.iter().filter_map(|(_, count)| count.parse().ok()).max().unwrap_or(0);
        let reached = lines.iter().map(|(mutant, _)| (*mutant).to_owned()).collect();
        Ok(Some(Test { program, name: name.to_owned(), took: ran.took, evaluations, reached }))
    }

    /// Judges the mutant that `name` selects, by the programs that `is_for` accepts.
    pub fn judge(
        &self,
        name: &str,
        is_for: impl Fn(&TestProgram) -> bool,
        patience: Patience,
        stop: &Stop,
    ) -> anyhow::Result<Outcome> {
        let (mut passed, mut hung) = (Vec::new(), None);
        for tests in self.batches(name, is_for, patience) {
            let program = tests[0].program;
            let judge = &self.programs[program].name;
            let took: Duration = tests.iter().map(|test| test.took).sum();
            // The recorded number is at least half of all evaluations, so the limit is at least twice the usual number.
            let limit = EVALUATIONS + 4 * tests.iter().map(|test| test.evaluations).sum::<u64>();
            let mut command = self.command(program, tests.iter().map(|test| test.name.as_str()));
            command.env(CHOICE, name).env("TWOFOLD_EVALUATIONS", limit.to_string());
            let ran = Program { command, word: WORD }.run(Duration::from_secs(30) + 20 * took, stop)?;
            match ran.end {
                End::Failed(test) if !ran.said => {
                    bail!("{judge} {} fails by itself\n{}", test.unwrap_or_default(), ran.last_words)
                }
                End::Failed(test) => {
                    let endless = ran.last_words.contains(TOO_MANY);
                    let test = test.map(|test| if endless { format!("{test}, which does not end") } else { test });
                    return Ok(Outcome::Caught { by: judge.clone(), test });
                }
                // Thread scheduling may decide which mutants a test executes, so one that passes may not have executed
                // this one.
                End::Passed if ran.said && !passed.contains(judge) => passed.push(judge.clone()),
                End::Passed => {}
                End::TimeLimit => hung = hung.or(Some(judge.clone())),
            }
        }
        Ok(match hung {
            Some(judge) => Outcome::Hung { judge },
            None if passed.is_empty() => Outcome::NotReached,
            None => Outcome::Survived { judges: passed },
        })
    }

    /// Returns the tests that execute a mutant, fast ones first. Tests of one program with about the same cost form a
    /// batch.
    fn batches(&self, mutant: &str, is_for: impl Fn(&TestProgram) -> bool, patience: Patience) -> Vec<Vec<&Test>> {
        let mut batches = Vec::new();
        let is_short = |test: &Test| patience == Patience::Long || !test.is_long();
        let is_asked =
            |test: &&Test| test.reached.contains(mutant) && is_short(test) && is_for(&self.programs[test.program]);
        let mut tests: Vec<_> = self.tests.iter().filter(is_asked).collect();
        for limit in [Duration::from_millis(30), Duration::from_millis(300), Duration::from_secs(3), Duration::MAX] {
            let (cheap, others): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.took <= limit);
            tests = others;
            for program in 0..self.programs.len() {
                let of: Vec<_> = cheap.iter().copied().filter(|test| test.program == program).collect();
                // Batches are small, because most mutants fail the first one.
                batches.extend(of.chunks(AT_A_TIME).map(<[_]>::to_vec));
            }
        }
        batches
    }

    fn command<'a>(&self, program: usize, tests: impl IntoIterator<Item = &'a str>) -> Command {
        let TestProgram { program, directory, preemptions, .. } = &self.programs[program];
        let mut command = Command::new(program);
        command.current_dir(directory).args(["--nocapture", "--test-threads=1", "--exact"]).args(tests);
        for name in [CHOICE, "TWOFOLD_REACHED", "TWOFOLD_EVALUATIONS"] {
            command.env_remove(name);
        }
        command.env("RUST_BACKTRACE", "0").env("TWOFOLD_SEED", "1");
        // A few cases, the same each time. A failure is neither shrunk nor stored in the source tree.
        command.env("PROPTEST_CASES", "24").env("PROPTEST_RNG_SEED", "1").env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env("LOOM_MAX_PREEMPTIONS", preemptions.to_string());
        command
    }
}

/// The marker that an executed mutant prints.
const WORD: &str = "mutant reached";
/// The time limit of a test without a mutant.
const WITHOUT_MUTANT: Duration = Duration::from_secs(300);
/// The marker that the limit on evaluations prints.
const TOO_MANY: &str = "mutant does not end";
/// A test with more evaluations than this is long.
const SHORT: u64 = 120_000_000;
/// A test that takes longer than this is long, too: evaluations of mutants of calls are not counted.
const SHORT_TIME: Duration = Duration::from_secs(3);
/// A test with more evaluations than this judges no mutant.
const MOST_EVALUATIONS: u64 = 4_000_000_000;
/// The number of evaluations that is always allowed.
const EVALUATIONS: u64 = 10_000_000;
const AT_A_TIME: usize = 24;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program of two tests, which both execute mutants 7 to 9. Test `one` fails with mutant 7; mutant 8 does not
    /// end.
    const SCRIPT: &str = "#!/bin/sh
case \"$*\" in *--list*) printf 'one: test\\ntwo: test\\n'; exit;; esac
[ -z \"$TWOFOLD_REACHED\" ] || { printf '7 1\\n8 2\\n9 16\\n' > \"$TWOFOLD_REACHED\"; exit; }
echo mutant reached >&2
echo 'test one ... '
case $TWOFOLD_MUTANT in 7) echo FAILED;; 8) echo mutant does not end: $TWOFOLD_EVALUATIONS >&2; exit 101;; *) echo ok;; esac
";

    #[test]
    fn a_judge_that_executes_a_mutant_judges_it() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        fs::write(&program, SCRIPT).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let (name, directory) = ("x y".to_owned(), place.path().to_owned());
        let program =
            TestProgram { name, program, directory, filter: "o", except: &[], preemptions: 1, meetings_only: false };
        let tests = Tests::measure(vec![program], place.path(), 2, &Stop::default()).unwrap();
        assert_eq!((tests.count(), tests.tests[0].evaluations), (2, 16));
        let judge = |mutant| tests.judge(mutant, |_| true, Patience::Long, &Stop::default()).unwrap();
        let caught = |test: &str| Outcome::Caught { by: "x y".to_owned(), test: Some(test.to_owned()) };
        assert_eq!(judge("7"), caught("one"));
        assert_eq!(judge("8"), caught("one, which does not end"));
        assert_eq!(judge("9"), Outcome::Survived { judges: vec!["x y".to_owned()] });
        assert_eq!(judge("10"), Outcome::NotReached);
        let by_none = tests.judge("7", |_| false, Patience::Long, &Stop::default()).unwrap();
        assert_eq!(by_none, Outcome::NotReached);
    }

    #[test]
    fn a_long_test_judges_only_with_patience() {
        let test = |name: &str, evaluations, took| {
            let reached = BTreeSet::from(["7".to_owned()]);
            Test { program: 0, name: name.to_owned(), took, evaluations, reached }
        };
        let programs = vec![TestProgram {
            name: "x y".to_owned(),
            program: PathBuf::new(),
            directory: PathBuf::new(),
            filter: "",
            except: &[],
            preemptions: 1,
            meetings_only: false,
        }];
        let slow = SHORT_TIME + Duration::from_nanos(1);
        let tests = vec![test("short", SHORT, SHORT_TIME), test("slow", 0, slow), test("long", SHORT + 1, SHORT_TIME)];
        let tests = Tests { programs, tests };
        let names = |patience| -> Vec<_> {
            tests.batches("7", |_| true, patience).into_iter().flatten().map(|test| test.name.as_str()).collect()
        };
        assert_eq!((names(Patience::Short), names(Patience::Long)), (vec!["short"], vec!["short", "long", "slow"]));
    }
}
