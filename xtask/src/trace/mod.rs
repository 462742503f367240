// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask trace-check`: checks a trace (`docs/trace.md`) by its text alone.
//!
//! Invariant: nothing here comes from the engine. The meaning of entries, operands and barriers is written a second
//! time from the manual, so that a mistake in the engine is not repeated here.

mod changes;
mod check;
mod debts;
mod entries;
mod flush;
mod frames;
mod guests;
mod operands;
mod publication;
mod rules;
mod tables;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::fs;
use std::process::ExitCode;

use twofold_workspace::output;

use anyhow::{Context, bail};
use twofold_abi::trace::{Header, Line, is_comment};

use crate::arguments::TraceCheckOptions;
use check::Checker;

/// Checks the trace and prints each breach; the exit status is 1 if there is one.
pub fn command(options: &TraceCheckOptions) -> anyhow::Result<ExitCode> {
    let file = &options.file;
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let report = check(&text).with_context(|| file.display().to_string())?;
    for finding in report.lost.iter().chain(&report.breaches) {
        output::line(finding)?;
    }
    output::line(&format!("trace: {} events, {} breaches", report.events, report.breaches.len()))?;
    Ok(if report.breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result of a check.
#[derive(Debug)]
struct Report {
    events: usize,
    /// The places where lines are missing, as text.
    lost: Vec<String>,
    /// The breaches, as text.
    breaches: Vec<String>,
}

fn check(text: &str) -> anyhow::Result<Report> {
    let mut lines = text.lines().zip(1..);
    let (header, _) = lines.next().context("the file is empty")?;
    Header::parse(header)?;
    let mut events = Vec::new();
    for (text, number) in lines.filter(|(text, _)| !is_comment(text)) {
        let line = Line::parse(text).with_context(|| format!("line {number}"))?;
        events.push(Numbered { number, line });
    }
    events.sort_by_key(|event| event.line.seq);
    let mut neighbours = events.iter().zip(events.iter().skip(1));
    if let Some((first, second)) = neighbours.find(|(first, second)| first.line.seq == second.line.seq) {
        bail!("line {}: line {} also has the number {}", second.number, first.number, first.line.seq);
    }
    let mut checker = Checker::default();
    for (at, event) in events.iter().enumerate() {
        checker.event(at, &event.line).with_context(|| format!("line {}", event.number))?;
    }
    let lost = checker.lost.iter().map(|at| format!("{}\n    the check starts anew after it", events[*at]));
    let breaches = checker.breaches.iter().map(|breach| {
        let mut text = format!("{}\n    {}\n    {}", events[breach.at], breach.what, breach.rule);
        if let Some(since) = breach.since {
            // Writing to a string does not fail.
            let _ = write!(text, "\n    since {}", events[since]);
        }
        text
    });
    Ok(Report { events: events.len(), lost: lost.collect(), breaches: breaches.collect() })
}

/// An event, and the number of its line in the file.
struct Numbered<'a> {
    number: usize,
    line: Line<'a>,
}

impl std::fmt::Display for Numbered<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.number, self.line)
    }
}
