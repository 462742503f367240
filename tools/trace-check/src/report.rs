// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the text of a trace to the text of its breaches.

use std::fmt::Write;

use anyhow::{Context, bail};
use twofold_abi::trace::{Header, Line, is_comment};

use super::state::Checker;

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    /// The number of events.
    pub events: usize,
    /// The places where lines are missing, as text.
    pub lost: Vec<String>,
    /// The breaches, as text.
    pub breaches: Vec<String>,
}

/// Checks the text of a trace.
///
/// # Errors
///
/// The text is not a trace, or two events have one number.
pub fn check(text: &str) -> anyhow::Result<Report> {
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
