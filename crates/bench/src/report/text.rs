// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results for a terminal: aligned tables, and remarks below them.
//!
//! Invariant: a figure that is interrupted, modelled or uncertain is marked as such, near the figure.

use super::section::{Group, Member, Section, sections};
use crate::engine::report::table;
use crate::readable::{self, Unit};
use crate::results::{HeadlineRow, Results};
use crate::statistics::Quartiles;

/// Formats the whole report.
pub fn text(results: &Results) -> String {
    let sections = sections(results);
    let mut parts = Vec::new();
    if !results.headline.is_empty() {
        parts.push(headline(&results.headline));
    }
    parts.extend(sections.iter().filter(|section| !section.groups.is_empty()).map(shown));
    parts.push(foot(results));
    parts.join("\n\n")
}

fn shown(section: &Section<'_>) -> String {
    let mut lines = vec![format!("{}: {}", section.title(), section.setup()), measurements(section)];
    lines.extend(section.warnings());
    lines.join("\n")
}

/// Formats a row for each variant of each figure. A figure that is 0 in every run is left out.
fn measurements(section: &Section<'_>) -> String {
    let of = section.variants.first().filter(|_| section.has_variants());
    let variable = section.variable();
    let is_one = section.variant_keys.len() == 1;
    let by = of.map(|before| if is_one { format!("of {before}") } else { "of baseline".to_owned() });
    let mut header: Vec<&str> = section.scene_keys.clone();
    header.extend(["phase", "what"]);
    let words = header.len() + usize::from(of.is_some());
    header.extend(of.map(|_| variable.as_str()));
    header.extend(["median", "", "quartiles", "runs"]);
    header.extend(by.as_deref().into_iter().flat_map(|by| [by, "95 %", ""]));
    header.extend((!is_one).then_some(of).flatten().map(|_| "baseline"));

    let mut above: Vec<String> = Vec::new();
    let some = section.groups.iter().filter(|group| !group.is_zero());
    let rows = some.flat_map(|group| group.members.iter().map(move |member| (group, member)));
    let rows = rows.map(|(group, member)| {
        let names = names(section, group);
        // Leading cells that equal those of the row above are left empty.
        let same = names.iter().zip(&above).take_while(|(name, above)| name == above).count();
        let mut cells: Vec<String> =
            names.iter().enumerate().map(|(at, name)| if at < same { String::new() } else { name.clone() }).collect();
        above = names;
        cells.extend(of.map(|_| section.variants[member.variant].clone()));
        cells.extend(figures(group, member));
        if of.is_some() {
            let ratio = member.ratio;
            let cell = |shown: Option<String>| shown.unwrap_or_default();
            cells.push(cell(ratio.map(|ratio| format!("{:.3}", ratio.median))));
            cells.push(group.interval(member));
            cells.push(cell(group.is_open(member).then(|| "open".to_owned())));
            cells.extend((!is_one).then(|| section.before(member).to_owned()));
        }
        cells
    });
    table(&header, rows.collect::<Vec<_>>().into_iter(), words)
}

fn names(section: &Section<'_>, group: &Group<'_>) -> Vec<String> {
    let scene = section.scene_keys.iter().zip(&group.scene).map(|(key, value)| readable::value(key, value));
    scene.chain([group.phase.to_owned(), group.quantity.name().to_owned()]).collect()
}

fn figures(group: &Group<'_>, member: &Member<'_>) -> [String; 4] {
    let unit: Unit = group.unit();
    let of = member.quartiles;
    [unit.shown(of.median), unit.name.to_owned(), group.quartiles(member), member.runs.len().to_string()]
}

/// Formats a row for each published number, and below the table its command and its note.
fn headline(rows: &[HeadlineRow]) -> String {
    let header = ["source", "what", "on", "how", "verdict", "published", "before", "after", "", "gain", "95 %"];
    let cells = rows.iter().map(|row| {
        let median =
            |of: Option<Quartiles>| of.map_or_else(|| "-".to_owned(), |of| crate::statistics::short(of.median));
        let gain = |of: fn(&crate::statistics::Ratio) -> String| row.gain.as_ref().map_or_else(|| "-".to_owned(), of);
        vec![
            row.source.clone(),
            row.what.clone(),
            row.platform.name().to_owned(),
            row.kind.name().to_owned(),
            row.verdict().to_owned(),
            row.published.clone(),
            median(row.before),
            median(row.after),
            row.unit.clone(),
            gain(|gain| readable::percent(gain.median)),
            gain(|gain| readable::percent_range(gain.low, gain.high)),
        ]
    });
    let below = rows.iter().map(|row| {
        let parts = [row.command.as_str(), row.note.as_str()].into_iter().filter(|part| !part.is_empty());
        format!("{} {}: {}", row.source, row.what, parts.collect::<Vec<_>>().join("; "))
    });
    [table(&header, cells, 5), below.collect::<Vec<_>>().join("\n")].join("\n\n")
}

fn foot(results: &Results) -> String {
    let mut lines = Vec::new();
    if results.interrupted {
        lines.push("interrupted: these are the figures up to that point".to_owned());
    }
    lines.extend(results.notes.iter().map(|note| format!("note: {note}")));
    let host = results.host.iter().filter(|(name, _)| name != crate::host::COMMAND_LINE);
    let host: Vec<_> = host.map(|(name, value)| format!("{name} {value}")).collect();
    lines.push(format!("machine: {}", host.join("; ")));
    lines.push(format!("what: {}; {}", results.command, results.program));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn columns_line_up_and_every_figure_has_a_line() {
        let results = example::results();
        let shown = text(&results);
        let sections = sections(&results);
        let with_figures = sections.iter().filter(|section| !section.groups.is_empty());
        let mut seen = 0;
        for (section, part) in with_figures.zip(shown.split("\n\n").skip(2)) {
            assert!(part.starts_with(&section.title()), "{part}");
            let some = section.groups.iter().filter(|group| !group.is_zero());
            let figures: usize = some.map(|group| group.members.len()).sum();
            let lines: Vec<_> = part.lines().filter(|line| !line.starts_with("the gain of")).skip(1).collect();
            assert_eq!(lines.len(), 1 + figures, "{part}");
            // The last digit of each figure is below the last letter of its column's name.
            let below = |name: &str, line: &str| {
                let end = lines[0][..lines[0].find(name).unwrap() + name.len()].chars().count();
                line.chars().skip(end - 1).take(2).collect::<String>()
            };
            for line in &lines[1..] {
                for name in ["median", "runs"] {
                    let ends = below(name, line);
                    assert!(ends.starts_with(|letter: char| letter.is_ascii_digit()), "{name}: {line}");
                    assert!(ends.len() == 1 || ends.ends_with(' '), "{name}: {line}");
                }
            }
            seen += figures;
        }
        assert_eq!(seen, results.measurements.len());
    }

    #[test]
    fn few_runs_are_said_to_be_few() {
        let mut results = example::results();
        results.measurements.iter_mut().for_each(|one| one.runs.truncate(1));
        results.headline.clear();
        let shown = text(&results);
        assert!(shown.contains("too few runs") && shown.contains("fewer than 4 runs: no change is claimed"), "{shown}");
        assert!(!shown.contains(" to "), "an interval of one value: {shown}");
    }

    #[test]
    fn a_gain_that_the_spread_swallows_is_warned_of() {
        let mut results = example::results();
        results.measurements.retain(|one| one.phase == "clear" && one.configuration.contains_key("split"));
        assert!(!text(&results).contains("within the spread"), "{}", text(&results));
        for one in &mut results.measurements {
            one.runs = (1..8).map(f64::from).collect();
            if one.configuration["split"] == "records" {
                one.runs.reverse();
            }
        }
        let shown = text(&results);
        assert!(shown.contains("the gain of records in time is within the spread: clear\n"));
    }

    #[test]
    fn what_is_not_measured_and_not_finished_is_said() {
        let mut results = example::results();
        results.interrupted = true;
        let shown = text(&results);
        assert!(shown.contains("not measured") && shown.contains("interrupted"));
        assert!(shown.contains("note: times of a fault") && shown.contains("47.0 %"), "{shown}");
        assert!(shown.contains(
            "\nKolothum 2023 Redis during a live migration: redis-benchmark -t set -c 900 -n 5000000 --threads 96; live"
        ));
        assert!(!shown.contains("console=ttyS0"));
    }
}
