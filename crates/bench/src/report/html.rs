// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results as a page: the published numbers beside ours, then each experiment with its plots and tables.
//!
//! Invariant: every figure of the results is in a table of the page, whether or not it is in a plot.

use maud::{Markup, PreEscaped, html};

use super::figures::figures;
use super::page::page;
use super::plot::Error;
use super::plot::changes::{Change, changes};
use super::plot::colour::{BAD, GOOD, OPEN};
use super::published::{self, Cells};
use super::section::{Group, Member, Section, in_order, sections};
use super::{explained, text};
use crate::host::COMMAND_LINE;
use crate::readable;
use crate::results::{HeadlineRow, Results, Verdict};
use crate::statistics::{Quartiles, Ratio};

/// Makes the whole page.
///
/// # Errors
///
/// An error is returned if the results cannot be drawn or written as JSON.
pub fn html(results: &Results) -> anyhow::Result<String> {
    let sections = sections(results);
    let mut parts = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        let plots = figures(section)?;
        parts.push(html! {
            h2 id=(format!("s{at}")) { (section.title()) }
            p.faint { (section.setup()) }
            (explanations(section.explained().into_iter()))
            (plots)
            (warnings(&section.warnings()))
            @if !section.groups.is_empty() {
                details {
                    summary { "All figures: " (count(section)) }
                    .scroll { (measurements(section)) }
                }
            }
            @if !section.series.is_empty() {
                details { summary { "All events" } .scroll { (events(section)) } }
            }
        });
    }
    let headline = if results.headline.is_empty() {
        html! {}
    } else {
        headline(results)?
    };
    let body = html! {
        h1 { "twofold bench" }
        pre.command { (results.command) }
        p.faint { (text::machine(results)) ". " a href="#machine" { "All of the machine" } }
        @if results.interrupted {
            p.warning { b { "Interrupted: " } "these are the figures up to that point." }
        }
        @if !results.notes.is_empty() {
            ul.plain { @for note in &results.notes { li { (note) } } }
        }
        @if sections.len() > 1 {
            nav { ul {
                @if !results.headline.is_empty() { li { a href="#headline" { "published and measured" } } }
                @for (at, section) in sections.iter().enumerate() {
                    li { a href=(format!("#s{at}")) { (section.title()) } }
                }
            } }
        }
        (headline)
        @for part in parts { (part) }
        h2 #machine { "The machine and the program" }
        (machine(results))
    };
    page(&results.command, body, results)
}

/// The machine and the program that the figures depend on.
fn machine(results: &Results) -> Markup {
    let rows = [("program", results.program.as_str())].into_iter();
    let rows = rows.chain(results.host.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    html! {
        dl.facts {
            @for (name, value) in rows {
                div.long[name == COMMAND_LINE] {
                    dt { (name) }
                    dd {
                        @if name == COMMAND_LINE { code { (value) } } @else { (value) }
                    }
                }
            }
        }
        @if results.host.iter().any(|(name, _)| name == COMMAND_LINE) {
            p.faint { "This page holds the whole command line of the kernel: read it before you give the page away." }
        }
    }
}

/// The warnings that a change is uncertain. More than two of them are folded into one line.
fn warnings(lines: &[String]) -> Markup {
    let list = || html! { ul.plain { @for line in lines { li.warning { (line) } } } };
    html! {
        @match lines.len() {
            0 => {}
            1..=2 => (list()),
            many => details { summary.warning { "Changes that the runs do not show: " (many) } (list()) },
        }
    }
}

fn count(section: &Section<'_>) -> usize {
    section.groups.iter().map(|group| group.members.len()).sum()
}

/// A row for each variant of each figure.
fn measurements(section: &Section<'_>) -> Markup {
    let has_variants = section.has_variants();
    let is_one = section.variant_keys.len() == 1;
    let first = section.variants.first().filter(|_| is_one).map_or("the baseline", String::as_str);
    html! {
        table {
            thead { tr {
                @for key in &section.scene_keys { th { (key.replace('_', " ")) } }
                th { "phase" } th { "what" }
                @if has_variants { th { (section.variable()) } }
                th.n { "median" } th {} th.n { "quartiles" } th.n { "runs" } th { "how" }
                @if has_variants { th { "beside " (first) } th { "95 %" } }
                @if has_variants && !is_one { th { "baseline" } }
            } }
            tbody {
                @for group in &section.groups {
                    @for (at, member) in group.members.iter().enumerate() {
                        tr.head[at == 0 && group.members.len() > 1] { (cells(section, group, member)) }
                    }
                }
            }
        }
    }
}

fn cells(section: &Section<'_>, group: &Group<'_>, member: &Member<'_>) -> Markup {
    let unit = group.unit();
    html! {
        @for (key, value) in section.scene_keys.iter().zip(&group.scene) { td { (readable::value(key, value)) } }
        td { (group.phase) } td { (group.quantity.name()) }
        @if section.has_variants() { td { (section.variants[member.variant]) } }
        td.n { (unit.shown(member.quartiles.median)) } td.u { (unit.name) }
        td.n { (group.quartiles(member)) } td.n { (member.runs.len()) } td { (group.kind.name()) }
        @if section.has_variants() {
            td { (group.change(member)) }
            td.open[group.is_open(member) || member.is_too_few] { (group.interval(member)) }
            @if section.variant_keys.len() > 1 { td { (section.before(member)) } }
        }
    }
}

fn events(section: &Section<'_>) -> Markup {
    html! {
        table {
            thead { tr { th { "series" } th.n { "s" } th { "event" } } }
            tbody {
                @for over in &section.series {
                    @let names = [over.series.name.clone(), section.variants[over.variant].clone(), section.scene(&over.scene)];
                    @let name = names.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>().join(", ");
                    @for (at, event) in &over.series.events {
                        tr { td { (name) } td.n { (format!("{at:.3}")) } td { (event) } }
                    }
                }
            }
        }
    }
}

/// The published numbers and ours: the sources, a plot of the changes, and a table.
fn headline(results: &Results) -> Result<Markup, Error> {
    let rows = &results.headline;
    let shown: Vec<_> = rows.iter().filter(|row| row.gain.is_some()).map(change).collect();
    let plot = if shown.is_empty() { String::new() } else { changes("Changes, published and here", &shown)? };
    let sources = in_order(rows.iter().map(|row| row.source.as_str()));
    Ok(html! {
        h2 #headline { "The published numbers, and ours" }
        p { (published::sentence(results)) "." }
        (explanations(sources.into_iter().filter_map(|source| Some((source, explained::source(source)?)))))
        @if !plot.is_empty() {
            figure {
                figcaption.faint {
                    "The change from the technique off to the technique on. A dot with its interval is ours; a diamond is the \
                     published change. Left of the line is less, right of it is more."
                }
                .scroll { (PreEscaped(plot)) }
            }
        }
        .scroll {
            table.stack {
                thead { tr {
                    th { "source" } th { "what" } th { "beside the published" } th { "published" } th { "ours" }
                    th.n { "before" } th.n { "after" } th {} th { "how" }
                } }
                tbody { @for row in rows { (headline_row(row)) } }
            }
        }
    })
}

fn change(row: &HeadlineRow) -> Change {
    let colour = match row.verdict {
        Verdict::AsExpected => GOOD,
        Verdict::Differs => BAD,
        Verdict::Inconclusive | Verdict::NotMeasured => OPEN,
    };
    let label = format!("{} {}", row.source, row.what);
    let ours = row.gain.map(Ratio::complement);
    Change { label, published: row.published_gain.map(|gain| 1.0 - gain), ours, colour }
}

fn headline_row(row: &HeadlineRow) -> Markup {
    let cells = Cells::of(row);
    let median = |of: Option<Quartiles>, median: &str| {
        html! {
            (median)
            @if let Some(of) = of.filter(|of| !of.is_point()) {
                small { (published::figure(of.lower, row)) " to " (published::figure(of.upper, row)) }
            }
        }
    };
    let class = match row.verdict {
        Verdict::AsExpected => "as_expected",
        Verdict::Inconclusive => "open",
        Verdict::Differs => "differs",
        Verdict::NotMeasured => "not_measured",
    };
    html! {
        tr {
            td.source { (row.source) }
            td.what {
                (row.what)
                @if !row.command.is_empty() { small { code { (row.command) } } }
                @if !row.note.is_empty() { small { (row.note) } }
            }
            td data-label="beside the published" { span.verdict.(class) { (published::verdict(row)) } }
            td.published data-label="published" { (row.published) }
            td.published data-label="ours" { (cells.change) @if !cells.interval.is_empty() { small { (cells.interval) } } }
            td.n data-label="before" { (median(row.before, &cells.medians[0])) }
            td.n data-label="after" { (median(row.after, &cells.medians[1])) }
            td.u { @if row.before.is_some() || row.after.is_some() { (row.unit) } }
            td { @if row.verdict != Verdict::NotMeasured { (row.kind.name()) small { (row.platform) } } }
        }
    }
}

/// Names, each with its sentence.
fn explanations<'a>(all: impl Iterator<Item = (&'a str, &'a str)>) -> Markup {
    html! { dl.explained { @for (name, sentence) in all { div { dt { (name) } dd { (sentence) } } } } }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::page::data;
    use super::super::{example, write_html};
    use super::*;
    use crate::results::Kind;

    /// The cells of all rows, without markup.
    fn rows(page: &str) -> Vec<Vec<String>> {
        let text = |cell: &str| {
            let mut text = String::new();
            let mut is_text = true;
            for letter in cell.chars() {
                match letter {
                    '<' => is_text = false,
                    '>' => is_text = true,
                    _ if is_text => text.push(letter),
                    _ => {}
                }
            }
            let unescaped = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
            unescaped.replace("&amp;", "&")
        };
        let cells = |row: &str| {
            let row = row.split("</tr>").next().unwrap_or_default();
            row.split("<td").skip(1).map(|cell| text(&format!("<td{cell}"))).collect()
        };
        page.split("<tr").skip(1).map(cells).collect()
    }

    #[test]
    fn every_figure_is_in_a_table() {
        let results = example::results();
        let page = html(&results).unwrap();
        let rows = rows(&page);
        for section in sections(&results) {
            for group in &section.groups {
                for member in &group.members {
                    let unit = group.unit();
                    let mut wanted: Vec<String> = section
                        .scene_keys
                        .iter()
                        .zip(&group.scene)
                        .map(|(key, value)| readable::value(key, value))
                        .collect();
                    wanted.extend([group.phase.to_owned(), group.quantity.name().to_owned()]);
                    wanted.extend(section.has_variants().then(|| section.variants[member.variant].clone()));
                    let median = Quartiles::of(member.runs.iter().copied()).median;
                    wanted.extend([unit.shown(median), unit.name.to_owned()]);
                    assert!(rows.iter().any(|row| row.starts_with(&wanted)), "{wanted:?}");
                }
            }
        }
        let figures: usize = sections(&results).iter().map(count).sum();
        assert_eq!(figures, results.measurements.len(), "each measurement is in exactly one section");
        for row in &results.headline {
            let shown = rows.iter().find(|cells| cells.len() == 9 && cells[1].starts_with(&row.what)).unwrap();
            assert!(shown[1].contains(&row.command) && shown[1].contains(&row.note) && shown[3] == row.published);
            assert_eq!(shown[2], published::verdict(row));
        }
    }

    #[test]
    fn a_page_holds_its_results_and_refers_to_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.html");
        let results = example::results();
        write_html(&path, &results).unwrap();
        let page = fs::read_to_string(&path).unwrap();
        assert_eq!(data::<Results>(&page), results);
        for reference in ["http", "src=", "url(", "@import", "<link", "<img", "<iframe"] {
            assert!(!page.contains(reference), "{reference}");
        }
        // To see the page: TWOFOLD_EXAMPLE=FILE.html cargo test -p twofold-bench refers_to_nothing
        if let Some(path) = std::env::var_os("TWOFOLD_EXAMPLE") {
            fs::write(path, page).unwrap();
        }
    }

    #[test]
    fn arguments_and_results_are_text_and_no_markup() {
        let mut results = example::results();
        let nasty = "<b>&\"'</script>";
        let escaped = "&lt;b&gt;&amp;&quot;'&lt;/script&gt;";
        results.command = nasty.to_owned();
        results.notes = vec![nasty.to_owned()];
        results.headline[0].what = nasty.to_owned();
        results.measurements.iter_mut().for_each(|one| {
            one.configuration.insert("fixed".to_owned(), nasty.to_owned());
            one.configuration.insert("mode".to_owned(), format!("{nasty}{}", one.phase));
            one.phase.push_str(nasty);
        });
        results.series.iter_mut().for_each(|one| one.events[0].1 = nasty.to_owned());
        let page = html(&results).unwrap();
        assert!(page.matches(escaped).count() > 5);
        assert!(!page.contains("<b>&") && page.matches("</script>").count() == 2);
        assert_eq!(data::<Results>(&page), results);
    }

    #[test]
    fn few_runs_show_no_interval_and_no_change() {
        let mut results = example::results();
        results.measurements.retain(|one| one.kind != Kind::Counted);
        results.measurements.iter_mut().for_each(|one| one.runs.truncate(1));
        results.headline.clear();
        let page = html(&results).unwrap();
        let shown = page.split("<script").next().unwrap();
        assert!(shown.matches("too few runs").count() > 100, "each comparison says `too few runs`, in plot and table");
        assert!(!shown.contains(" to ") || rows(&page).iter().flatten().all(|cell| !cell.contains(" to ")));
        assert!(!shown.contains(" %\n") && !shown.contains("× "), "a change is drawn");
    }

    #[test]
    fn a_page_of_nothing_says_so_much() {
        let results =
            Results { headline: vec![], measurements: vec![], series: vec![], interrupted: true, ..example::results() };
        let page = html(&results).unwrap();
        assert!(page.contains("Interrupted") && !page.contains("<table"));
        assert_eq!(data::<Results>(&page), results);
    }

    /// Each element that is opened is closed, in order.
    #[test]
    fn a_page_is_well_formed() {
        let page = html(&example::results()).unwrap();
        let mut open = Vec::new();
        let mut rest = page.as_str();
        while let Some((_, tag)) = rest.split_once('<') {
            let (tag, behind) = tag.split_once('>').unwrap();
            rest = behind;
            let name = tag.split([' ', '\n']).next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') || ["!DOCTYPE", "meta", "br"].contains(&name) => {}
                None => {
                    if ["script", "style"].contains(&name) {
                        rest = rest.split_once(&format!("</{name}>")).unwrap().1;
                    } else {
                        open.push(name);
                    }
                }
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}
