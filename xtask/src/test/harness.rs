// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all suites have in common: how deep they run, their counts, and the harness that runs their tests.

use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use twofold_workspace::{output, subprocess};

use super::{heartbeat, slowest};
use crate::arguments::TestOptions;

/// The part of a suite that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The tests that fit into minutes.
    Quick,
    /// All tests.
    Full,
}

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that the filters selected, listed or run.
    pub selected: u64,
    /// The duration of the tests, without their builds.
    pub judging: Duration,
}

impl Tally {
    /// Adds another count.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.selected += other.selected;
        self.judging += other.judging;
    }
}

/// Returns a test that the heartbeat names while it runs. After a request to stop it does not begin: the harness would
/// run all the others.
pub fn trial(name: &str, test: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let running = name.to_owned();
    Trial::test(name, move || match subprocess::is_stopped() {
        true => Err("stopped before it began".into()),
        false => heartbeat::during(&running, || slowest::timed(&running, test)),
    })
}

/// Runs the `trials` that the filters select, `threads` at a time.
pub fn harness(trials: Vec<Trial>, threads: usize, options: &TestOptions) -> anyhow::Result<Tally> {
    let wanted = |trial: &Trial| {
        options.filters.is_empty() || options.filters.iter().any(|filter| trial.name().contains(filter.as_str()))
    };
    let trials: Vec<_> = trials.into_iter().filter(wanted).collect();
    let selected = trials.len() as u64;
    if options.list {
        // Listed here, because the harness panics if the reader of its list closes the pipe (`| head`).
        for trial in &trials {
            let kind = if trial.kind().is_empty() { String::new() } else { format!("[{}] ", trial.kind()) };
            output::line(&format!("{kind}{}: test", trial.name()))?;
        }
        return Ok(Tally { selected, ..Tally::default() });
    }
    let arguments = Arguments { test_threads: Some(threads), ..Arguments::default() };
    let start = Instant::now();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let judging = start.elapsed();
    Ok(Tally { passed: conclusion.num_passed, failed: conclusion.num_failed, selected, judging })
}
