// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A comparison as text for a terminal, and as an HTML page.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};

use super::change::{Change, Verdict};
use super::{Comparison, Side};
use crate::readable::{self, Unit};
use crate::report::page::page;
use crate::report::plot::changes::{Change as Drawn, changes};
use crate::report::plot::colour::{BAD, GOOD, OPEN};
use crate::report::table::table;
use crate::report::words::{self, Noun};
use crate::results::Kind;

/// The comparison for a terminal. It leaves out figures that are 0 in both files, and lists only some of the figures
/// that one file lacks.
pub fn text(comparison: &Comparison) -> String {
    let warnings = comparison.warnings.iter().map(|warning| format!("warning: {warning}"));
    let mut parts = vec![warnings.collect::<Vec<_>>().join("\n")];
    parts.push(if comparison.changes.is_empty() {
        NOTHING.to_owned()
    } else {
        let header = HEADER.into_iter().chain(["settings"]).collect::<Vec<_>>();
        let varying = varying(&comparison.changes);
        // Figures stand in the middle, so they have their own alignment: words, figures, words.
        let some = comparison.changes.iter().filter(|change| change.before.median != 0.0 || change.after.median != 0.0);
        aligned(&header, some.map(|change| cells(change, &varying)).collect())
    });
    let alone = |which: &str, names: &[String]| {
        let mut lines: Vec<_> = names.iter().take(LISTED).map(|name| format!("only {which}: {name}")).collect();
        let more = names.len().saturating_sub(LISTED);
        lines.extend((more > 0).then(|| format!("only {which}: {more} more, which --json and --report list")));
        lines.join("\n")
    };
    parts.extend([alone("before", &comparison.only_before), alone("after", &comparison.only_after)]);
    parts.push(summary(comparison));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

/// The comparison as an HTML page.
pub fn html(comparison: &Comparison) -> anyhow::Result<String> {
    let varying = varying(&comparison.changes);
    let drawn: Vec<_> = comparison.changes.iter().filter_map(|change| drawn(change, &varying)).take(DRAWN).collect();
    let plot = if drawn.is_empty() { String::new() } else { changes("Changes, from before to after", &drawn)? };
    let side = |name: &str, side: &Side| {
        html! {
            div.long { dt { (name) } dd { (side.path) " (" (side.program) ")" br; code { (side.command) } } }
        }
    };
    let body = html! {
        h1 { "twofold bench compare" }
        dl.facts { (side("before", &comparison.before)) (side("after", &comparison.after)) }
        p.faint { (summary(comparison)) }
        @if !comparison.warnings.is_empty() {
            ul.plain { @for warning in &comparison.warnings { li.warning { (warning) } } }
        }
        @if comparison.changes.is_empty() { p { (NOTHING) } } @else {
            @if !plot.is_empty() {
                h2 { "The largest differences" }
                figure {
                    figcaption.faint {
                        "The change of the median, with its interval. Left of the line is less than before, right of it \
                         is more."
                    }
                    (PreEscaped(plot))
                }
            }
            h2 { "All figures" }
            .scroll { (rows(&comparison.changes, &varying)) }
        }
        (alone("Only before", &comparison.only_before))
        (alone("Only after", &comparison.only_after))
    };
    page("twofold bench compare", body, comparison)
}

const NOTHING: &str = "the two files have nothing in common";
/// Number of differences in the plot. The table has all of them.
const DRAWN: usize = 40;
/// Number of figures listed that only one file has.
const LISTED: usize = 10;
const HEADER: [&str; 9] = ["verdict", "before", "after", "", "change", "95 %", "phase", "what", "experiment"];

fn aligned(header: &[&str], rows: Vec<Vec<String>>) -> String {
    // The table's words come first and its figures after them.
    let order = [0, 6, 7, 8, 9, 1, 2, 3, 4, 5];
    let pick = |row: &[String]| order.iter().map(|at| row[*at].clone()).collect::<Vec<_>>();
    let header = order.map(|at| header[at]);
    table(&header, rows.iter().map(|row| pick(row)), 5)
}

fn cells(change: &Change, varying: &BTreeSet<&str>) -> Vec<String> {
    let unit = unit(change);
    let (ratio, noun) = (change.ratio, Noun::of(change.quantity));
    vec![
        change.verdict.name().to_owned(),
        unit.shown(change.before.median),
        unit.shown(change.after.median),
        unit.name.to_owned(),
        ratio.map_or_else(|| "-".to_owned(), |ratio| words::change(ratio.median, noun)),
        match ratio {
            None => "-".to_owned(),
            Some(_) if change.kind == Kind::Counted => "exact".to_owned(),
            Some(ratio) => words::interval(&ratio, noun),
        },
        change.phase.clone(),
        change.quantity.name().to_owned(),
        format!("{} on {}", change.experiment, change.platform),
        settings(change, varying),
    ]
}

fn rows(changes: &[Change], varying: &BTreeSet<&str>) -> Markup {
    let class = |verdict: Verdict| match verdict {
        Verdict::Faster | Verdict::Fewer => "faster",
        Verdict::Slower | Verdict::More => "slower",
        Verdict::FromZero => "open",
        Verdict::NoDifference | Verdict::TooFewRuns | Verdict::Same => "not_measured",
    };
    html! {
        table {
            thead { tr {
                th { "verdict" } th { "experiment" } th { "settings" } th { "phase" } th { "what" }
                th.n { "before" } th.n { "after" } th {} th { "change" } th { "95 %" } th.n { "runs" }
            } }
            tbody {
                @for change in changes {
                    @let cells = cells(change, varying);
                    tr {
                        td { span.verdict.(class(change.verdict)) { (cells[0]) } }
                        td { (cells[8]) } td.what { (cells[9]) } td { (cells[6]) } td { (cells[7]) }
                        td.n { (cells[1]) } td.n { (cells[2]) } td.u { (cells[3]) } td { (cells[4]) } td { (cells[5]) }
                        td.n { (change.runs[0]) " and " (change.runs[1]) }
                    }
                }
            }
        }
    }
}

fn alone(title: &str, names: &[String]) -> Markup {
    html! {
        @if !names.is_empty() {
            h2 { (title) }
            ul.plain { @for name in names { li { (name) } } }
        }
    }
}

/// The change as drawn in the plot. `None` if there is no difference.
fn drawn(change: &Change, varying: &BTreeSet<&str>) -> Option<Drawn> {
    let ours = change.ratio.filter(|_| change.verdict.is_difference())?;
    let colour = match change.verdict {
        Verdict::Faster | Verdict::Fewer => GOOD,
        Verdict::Slower | Verdict::More => BAD,
        _ => OPEN,
    };
    let settings = settings(change, varying);
    let parts = [change.phase.as_str(), change.quantity.name(), &settings];
    let label = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
    Some(Drawn { label, published: None, ours: Some(ours), colour })
}

/// The number of figures with each verdict.
fn summary(comparison: &Comparison) -> String {
    let all = [
        Verdict::Slower,
        Verdict::Faster,
        Verdict::More,
        Verdict::Fewer,
        Verdict::FromZero,
        Verdict::NoDifference,
        Verdict::Same,
        Verdict::TooFewRuns,
    ];
    let count = |verdict| comparison.changes.iter().filter(|change| change.verdict == verdict).count();
    let parts = all.into_iter().filter(|verdict| count(*verdict) > 0);
    let parts: Vec<_> = parts.map(|verdict| format!("{} {}", count(verdict), verdict.name())).collect();
    format!(
        "{} figures in both: {}; a time has to change by {} % to count",
        comparison.changes.len(),
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") },
        comparison.threshold * 100.0,
    )
}

fn unit(change: &Change) -> Unit {
    Unit::of(change.quantity, change.before.median.max(change.after.median))
}

/// Settings that are not equal in all changes.
fn varying(changes: &[Change]) -> BTreeSet<&str> {
    let keys: BTreeSet<&str> =
        changes.iter().flat_map(|change| change.configuration.keys()).map(String::as_str).collect();
    let first = |key: &str| changes.first().and_then(|change| change.configuration.get(key));
    keys.into_iter().filter(|key| changes.iter().any(|change| change.configuration.get(*key) != first(key))).collect()
}

fn settings(change: &Change, varying: &BTreeSet<&str>) -> String {
    let of = change.configuration.iter().filter(|(key, _)| varying.contains(key.as_str()));
    of.map(|(key, value)| readable::setting(key, value)).collect::<Vec<_>>().join(", ")
}
