// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every mutant before its judges, several at a time.
//!
//! Invariant: a mutant counts as caught only where a judge failed that had executed it. One that makes a judge run into
//! its time limit is not caught by that.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use twofold_launch::Stop;

use super::judges::{Judge, Verdict};
use super::sites::Mutant;

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// A judge failed.
    Caught {
        /// Which.
        by: String,
        /// Which test of it, if that is known.
        test: Option<String>,
    },
    /// Judges executed it and saw nothing wrong.
    Survived {
        /// Those.
        judges: Vec<String>,
    },
    /// A judge did not end, and none failed.
    Hung {
        /// The first that did not.
        judge: String,
    },
    /// No judge executed it.
    NotReached,
}

impl Outcome {
    /// Whether it was caught.
    pub fn is_caught(&self) -> bool {
        matches!(self, Self::Caught { .. })
    }

    /// In one word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Caught { .. } => "caught",
            Self::Survived { .. } => "survived",
            Self::Hung { .. } => "hung",
            Self::NotReached => "not reached",
        }
    }
}

/// Judges all `mutants`, `jobs` at a time; the outcomes are in their order. `tell` is told of each at once.
pub fn all(
    mutants: &[Mutant],
    judges: &[Judge],
    jobs: usize,
    stop: &Stop,
    tell: impl Fn(&Mutant, &Outcome) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Vec<Outcome>> {
    let bar = progress(mutants.len());
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![None; mutants.len()]);
    let work = || {
        while let Some((index, mutant)) = take(&next, mutants) {
            let outcome = one(mutant, judges, stop)?;
            bar.suspend(|| tell(mutant, &outcome))?;
            bar.inc(1);
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes[index] = Some(outcome);
            }
        }
        anyhow::Ok(())
    };
    let ended: anyhow::Result<()> = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let ended = worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")));
            if ended.is_err() {
                // The others need not begin another one.
                next.store(mutants.len(), Ordering::Relaxed);
            }
            ended
        })
    });
    bar.finish_and_clear();
    ended?;
    let outcomes = outcomes.into_inner().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
    outcomes.into_iter().collect::<Option<_>>().ok_or_else(|| anyhow::anyhow!("a mutant was not judged"))
}

fn take<'a>(next: &AtomicUsize, mutants: &'a [Mutant]) -> Option<(usize, &'a Mutant)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, mutants.get(index)?))
}

fn one(mutant: &Mutant, judges: &[Judge], stop: &Stop) -> anyhow::Result<Outcome> {
    let mut found = Vec::new();
    for judge in judges.iter().filter(|judge| judge.is_for(mutant)) {
        let (verdict, reached) = judge.judge(mutant, stop)?;
        let is_caught = matches!(verdict, Verdict::Failed(_));
        found.push((judge.name.as_str(), verdict, reached));
        if is_caught {
            break;
        }
    }
    Ok(outcome(found))
}

/// What judges' verdicts come to, the last of which may be a failure.
fn outcome(found: Vec<(&str, Verdict, bool)>) -> Outcome {
    let mut outcome = Outcome::NotReached;
    for (name, verdict, reached) in found {
        match (verdict, &mut outcome) {
            (Verdict::Failed(test), _) => return Outcome::Caught { by: name.to_owned(), test },
            (Verdict::Hung, Outcome::Hung { .. }) => {}
            (Verdict::Hung, _) => outcome = Outcome::Hung { judge: name.to_owned() },
            (Verdict::Passed, Outcome::Survived { judges }) if reached => judges.push(name.to_owned()),
            (Verdict::Passed, Outcome::NotReached) if reached => {
                outcome = Outcome::Survived { judges: vec![name.to_owned()] };
            }
            (Verdict::Passed, _) => {}
        }
    }
    outcome
}

/// Drawn on a terminal only.
fn progress(count: usize) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} mutants, {elapsed} gone, {eta} to go");
    let bar = ProgressBar::with_draw_target(Some(count as u64), target);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_has_caught_it() {
        let found = vec![("a", Verdict::Hung, true), ("b", Verdict::Failed(Some("t".to_owned())), true)];
        assert_eq!(outcome(found), Outcome::Caught { by: "b".to_owned(), test: Some("t".to_owned()) });
    }

    #[test]
    fn a_time_limit_catches_nothing() {
        let found = vec![("a", Verdict::Passed, true), ("b", Verdict::Hung, true), ("c", Verdict::Passed, true)];
        assert_eq!(outcome(found), Outcome::Hung { judge: "b".to_owned() });
    }

    #[test]
    fn who_has_not_executed_it_does_not_count() {
        assert_eq!(outcome(vec![("a", Verdict::Passed, false)]), Outcome::NotReached);
        let found = vec![("a", Verdict::Passed, false), ("b", Verdict::Passed, true), ("c", Verdict::Passed, true)];
        assert_eq!(outcome(found), Outcome::Survived { judges: vec!["b".to_owned(), "c".to_owned()] });
    }
}
