// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results for a terminal: a summary of about twelve lines, or all rows. The last line is one sentence.
//!
//! Invariant: a figure that is interrupted, modelled or uncertain is marked as such, near the figure.

use super::section::{Group, Member, Section, sections};
use super::summary::Summary;
use super::table::table;
use super::{modes, published};
use crate::readable::{self, Unit};
use crate::results::Results;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// About twelve lines for each experiment.
    Summary,
    /// Every row, the whole configuration and the machine.
    All,
}

impl Detail {
    /// What `--all` chooses.
    pub fn of(all: bool) -> Self {
        if all { Self::All } else { Self::Summary }
    }
}

/// Formats the report. Its last line is one sentence.
pub fn text(results: &Results, detail: Detail) -> String {
    let sections = sections(results);
    let sections: Vec<_> = sections.iter().filter(|section| !section.groups.is_empty()).collect();
    let summaries: Vec<_> = sections.iter().map(|section| Summary::of(section)).collect();
    let mut parts = Vec::new();
    let has_headline = !results.headline.is_empty();
    if has_headline && detail == Detail::Summary {
        let beside = sections.iter().zip(&summaries).filter(|(section, _)| section.is_beside_published());
        parts.extend(beside.map(|(_, summary)| summary.lines().join("\n").trim_end().to_owned()));
    }
    if has_headline {
        parts.push(published::text(&results.headline));
    }
    match detail {
        Detail::All => {
            parts.extend(has_headline.then(|| published::commands(&results.headline)));
            parts.extend(sections.iter().map(|section| shown(section)));
        }
        // The rows above are those of the measurements.
        Detail::Summary if has_headline => {}
        Detail::Summary => parts.extend(summaries.iter().map(|summary| summary.lines().join("\n"))),
    }
    parts.push(foot(results, detail));
    let mut text = parts.join("\n\n");
    let sentences = match has_headline {
        true => vec![published::sentence(results)],
        false => summaries.iter().map(Summary::sentence).collect(),
    };
    sentences.iter().for_each(|sentence| text.push_str(&format!("\n{sentence}")));
    text
}

fn shown(section: &Section<'_>) -> String {
    let mut lines = vec![format!("{}: {}", section.title(), section.setup()), measurements(section)];
    lines.extend(section.warnings());
    lines.extend(modes::averages(section));
    lines.join("\n")
}

/// Formats a row for each variant of each figure. A figure that is 0 in every run is left out.
fn measurements(section: &Section<'_>) -> String {
    let of = section.variants.first().filter(|_| section.has_variants());
    let variable = section.variable();
    let is_one = section.variant_keys.len() == 1;
    let by = of.map(|before| if is_one { format!("beside {before}") } else { "beside the baseline".to_owned() });
    let mut header: Vec<&str> = section.scene_keys.clone();
    header.extend(["phase", "what"]);
    let words = header.len() + usize::from(of.is_some());
    header.extend(of.map(|_| variable.as_str()));
    header.extend(["median", "", "quartiles", "runs"]);
    header.extend(by.as_deref().into_iter().flat_map(|by| [by, "95 %"]));
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
            cells.extend([group.change(member), group.interval(member)]);
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

/// The most important facts of the machine, and the program, in one line.
pub fn machine(results: &Results) -> String {
    let fact = |name: &str| Some(results.host.iter().find(|(other, _)| other == name)?.1.clone());
    let cpus = fact("CPUs").map(|cpus| if cpus == "1" { "1 CPU".to_owned() } else { format!("{cpus} CPUs") });
    let parts = [fact("CPU"), cpus, fact("kernel"), Some(results.program.clone())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What a reader needs to know of all figures.
fn foot(results: &Results, detail: Detail) -> String {
    let mut lines = Vec::new();
    if results.interrupted {
        lines.push("interrupted: these are the figures up to that point".to_owned());
    }
    lines.extend(results.notes.iter().map(|note| format!("note: {note}")));
    if detail == Detail::Summary {
        lines.push(format!("machine: {}", machine(results)));
        let more = if results.headline.is_empty() { "prints every row and" } else { "adds the commands of each row," };
        lines.push(format!("more: --all {more} the configuration; --report FILE.html has the plots"));
        return lines.join("\n");
    }
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
        let shown = text(&results, Detail::All);
        let sections = sections(&results);
        let with_figures = sections.iter().filter(|section| !section.groups.is_empty());
        let mut seen = 0;
        for (section, part) in with_figures.zip(shown.split("\n\n").skip(2)) {
            assert!(part.starts_with(&section.title()), "{part}");
            let some = section.groups.iter().filter(|group| !group.is_zero());
            let figures: usize = some.map(|group| group.members.len()).sum();
            let lines: Vec<_> = part.lines().filter(|line| !line.contains("the runs show no change")).skip(1).collect();
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
        let shown = text(&results, Detail::All);
        assert!(shown.contains("too few runs") && shown.contains("fewer than 4 runs: no change is claimed"), "{shown}");
        assert!(!shown.contains(" to "), "an interval of one value: {shown}");
    }

    #[test]
    fn a_change_that_the_runs_do_not_show_is_warned_of() {
        let mut results = example::results();
        results.measurements.retain(|one| one.phase == "clear" && one.configuration.contains_key("split"));
        assert!(!text(&results, Detail::All).contains("show no change"), "{}", text(&results, Detail::All));
        for one in &mut results.measurements {
            one.runs = (1..8).map(f64::from).collect();
            if one.configuration["split"] == "records" {
                one.runs.reverse();
            }
        }
        let shown = text(&results, Detail::All);
        assert!(shown.contains("records: the runs show no change of time from the baseline: clear\n"));
    }

    #[test]
    fn what_is_not_measured_and_not_finished_is_said() {
        let mut results = example::results();
        results.interrupted = true;
        let shown = text(&results, Detail::All);
        assert!(shown.contains("not measured") && shown.contains("interrupted"));
        assert!(shown.contains("note: times of a fault") && shown.contains("47.0 %"), "{shown}");
        assert!(shown.contains(
            "\nKolothum 2023 Redis during a live migration: redis-benchmark -t set -c 900 -n 5000000 --threads 96; needs"
        ));
        assert!(!shown.contains("console=ttyS0"));
    }

    #[test]
    fn a_summary_is_short_and_ends_with_one_sentence() {
        let mut results = example::results();
        results.headline.clear();
        results.series.clear();
        results.measurements.retain(|one| one.configuration.get("backing").is_some_and(|kind| kind == "anonymous"));
        let shown = text(&results, Detail::Summary);
        assert!(shown.lines().count() <= 18, "{shown}");
        let last = shown.lines().last().unwrap();
        assert!(last.starts_with("records: clearing takes 4") && last.ends_with(" ms"), "{shown}");
        assert!(last.contains("% less time than every-level, "), "{shown}");
        assert!(shown.contains("mean over p40v48-4k, p40v48-64k") && !shown.contains("1 GiB, chunk"), "{shown}");
        assert!(shown.contains("\nmachine: AMD <EPYC>") && !shown.contains("free memory"), "{shown}");
        // The sentence is the same with every row.
        assert_eq!(text(&results, Detail::All).lines().last(), Some(last));
    }
}
