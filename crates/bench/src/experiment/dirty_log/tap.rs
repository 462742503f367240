// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of a dirty log as lines of the Test Anything Protocol, in the way of the kernel's selftests. Comments have
//! the dirty pages and the counts of each phase, so that they can be compared with another program's.
//!
//! Invariant: no line has a time, because a checked run is not timed.

use std::process::ExitCode;

use super::digest::Digest;
use super::measure::Checked;
use super::run::Run;
use crate::experiment::target::Taken;
use crate::output;
use crate::report;
use crate::results::Quantity;
use crate::stop::{INTERRUPTED, Stop};

/// Prints the checks. Returns the exit status: 1 if one failed.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn show(checks: &[Checked], stop: &Stop) -> anyhow::Result<ExitCode> {
    let line = |Checked { variant, outcome }: &Checked| {
        let name = format!("dirty-log: the log reports exactly what the guest wrote: {variant}");
        let outcome = outcome.as_ref().map(|run| run.as_ref().map_or(Vec::new(), comments));
        (name, outcome.map_err(|error| format!("{error:#}")))
    };
    output::line(report::tap(&checks.iter().map(line).collect::<Vec<_>>()).trim_end())?;
    let passed = checks.iter().all(|check| check.outcome.is_ok());
    if stop.is_requested() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints that nothing was checked, and why.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn skipped(why: &anyhow::Error) -> anyhow::Result<ExitCode> {
    const SKIPPED: u8 = 4;
    output::line(report::tap_skipped(&format!("{why:#}")).trim_end())?;
    Ok(ExitCode::from(SKIPPED))
}

/// The comments of a checked run, a line for each phase; a get has the digest of its pages: `get 2: pages=16384 dirty=16384 sum=f024277fb3c50b25
/// instructions=1831`. If instructions are not counted, there are lines for the gets only.
fn comments(run: &Run) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |phase: String, reported: Option<&Digest>, taken: &Taken| {
        let reported =
            reported.map(|Digest { pages, dirty, sum }| format!(" pages={pages} dirty={dirty} sum={sum:016x}"));
        let counted = taken.get(&Quantity::Instructions).map(|count| format!(" instructions={count:.0}"));
        let words: String = reported.into_iter().chain(counted).collect();
        if !words.is_empty() {
            lines.push(format!("{phase}:{words}"));
        }
    };
    line("populate".to_owned(), None, &run.populate);
    line("enable".to_owned(), None, &run.enable);
    for (number, round) in (1..).zip(&run.iterations) {
        line(format!("dirty {number}"), None, &round.dirty);
        line(format!("get {number}"), round.reported.as_ref(), &round.get);
        if let Some(clear) = &round.clear {
            line(format!("clear {number}"), None, clear);
        }
    }
    line("disable".to_owned(), None, &run.disable);
    lines
}

#[cfg(test)]
mod tests {
    use super::super::run::Iteration;
    use super::*;

    #[test]
    fn lines_tell_what_was_counted_and_no_time() {
        let taken = |count| Taken::from([(Quantity::Instructions, count), (Quantity::Time, 5.0)]);
        let reported = Some(Digest { pages: 64, dirty: 3, sum: 0xff });
        let round =
            |clear: Option<f64>| Iteration { dirty: taken(3.0), get: taken(4.0), clear: clear.map(taken), reported };
        let iterations = vec![round(Some(5.0)), round(None)];
        let run = Run { populate: taken(1e9), enable: taken(2.0), iterations, disable: taken(0.0) };
        let get = "pages=64 dirty=3 sum=00000000000000ff instructions=4";
        let expected = [
            "populate: instructions=1000000000",
            "enable: instructions=2",
            "dirty 1: instructions=3",
            &format!("get 1: {get}"),
            "clear 1: instructions=5",
            "dirty 2: instructions=3",
            &format!("get 2: {get}"),
            "disable: instructions=0",
        ];
        assert_eq!(comments(&run), expected);
        let uncounted = Run { iterations: vec![Iteration { reported, ..Iteration::default() }], ..Run::default() };
        assert_eq!(comments(&uncounted), ["get 1: pages=64 dirty=3 sum=00000000000000ff"]);
    }
}
