// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published numbers beside ours: the words of a row, the table for a terminal and for Markdown, and the sentence
//! that sums it up.
//!
//! Invariant: a verdict claims no more than the row shows. Two savings are called as large as each other only if the
//! published one is in the interval of ours.

use super::table::table;
use super::words::{self, Noun};
use crate::results::{HeadlineRow, Kind, Results, TARGET, Verdict};
use crate::statistics::{Quartiles, Ratio, short};

/// The verdict on a row in words.
pub fn verdict(row: &HeadlineRow) -> &'static str {
    let is_target = row.source == TARGET;
    if row.verdict == Verdict::NotMeasured {
        return "not measured";
    }
    let Some(gain) = row.gain else {
        return match row.verdict {
            Verdict::AsExpected => REACHED,
            Verdict::Differs => "missed",
            _ => super::section::TOO_FEW,
        };
    };
    let published = row.published_gain.unwrap_or_default();
    match row.verdict {
        Verdict::AsExpected if is_target => REACHED,
        Verdict::Differs if is_target => "missed",
        _ if is_target => "too close to tell",
        Verdict::AsExpected if published < 0.0 && gain.low > 0.0 => "saves; published costs more",
        Verdict::AsExpected if published < 0.0 => "costs less than published",
        Verdict::AsExpected if published < gain.low => SAVES_MORE,
        Verdict::AsExpected if published > gain.high => SAVES_LESS,
        Verdict::AsExpected => SAVES_AS_MUCH,
        Verdict::Differs if published < 0.0 => "costs more than published",
        Verdict::Differs => "costs more; published saves",
        _ if published < 0.0 => "costs as published",
        _ => "no saving shown",
    }
}

const REACHED: &str = "reached";
const SAVES_MORE: &str = "saves more than published";
const SAVES_AS_MUCH: &str = "saves as much as published";
const SAVES_LESS: &str = "saves less than published";

/// A row's cells in words.
pub struct Cells {
    /// Our change: `85.1 % less time`. Empty if there is none.
    pub change: String,
    /// Its interval: `84.8 to 85.3 % less`. Empty if there is none.
    pub interval: String,
    /// Our medians before and after, without the unit.
    pub medians: [String; 2],
}

impl Cells {
    /// The cells of a row.
    pub fn of(row: &HeadlineRow) -> Self {
        let noun = Noun::of_row(row);
        let left = row.gain.map(Ratio::complement);
        let is_exact = row.kind == Kind::Counted;
        let interval = |left: Ratio| if is_exact { "exact".to_owned() } else { words::interval(&left, noun) };
        let median = |of: Option<Quartiles>| of.map(|of| figure(of.median, row)).unwrap_or_default();
        Self {
            change: left.map(|left| words::change(left.median, noun)).unwrap_or_default(),
            interval: left.map(interval).unwrap_or_default(),
            medians: [row.before, row.after].map(median),
        }
    }
}

/// A figure of a row, without the unit.
pub fn figure(value: f64, row: &HeadlineRow) -> String {
    if row.kind == Kind::Counted { crate::readable::count(value) } else { short(value) }
}

/// The table for a terminal, and the reasons why rows are not measured.
pub fn text(rows: &[HeadlineRow]) -> String {
    let header = ["source", "what", "beside the published", "published", "ours", "95 %", "before", "after", "", "how"];
    let cells = rows.iter().map(|row| {
        let Cells { change, interval, medians: [before, after] } = Cells::of(row);
        let words = [row.source.clone(), row.what.clone(), verdict(row).to_owned(), row.published.clone()];
        let figures = [change, interval, before, after, row.unit.clone(), how(row)];
        words.into_iter().chain(figures).collect()
    });
    let missing = super::section::in_order(rows.iter().filter(|row| is_missing(row)).map(|row| row.note.as_str()));
    let missing = missing.into_iter().map(|why| {
        let names = rows.iter().filter(|row| is_missing(row) && row.note == why);
        let names: Vec<_> = names.map(|row| format!("{} {}", row.source, row.what)).collect();
        format!("not measured: {}: {why}", names.join(", "))
    });
    [table(&header, cells, 4)].into_iter().chain(missing).collect::<Vec<_>>().join("\n")
}

/// A line for each row: the command of the published number, and the note with ours.
pub fn commands(rows: &[HeadlineRow]) -> String {
    let line = |row: &HeadlineRow| {
        let parts = [row.command.as_str(), row.note.as_str()].into_iter().filter(|part| !part.is_empty());
        format!("{} {}: {}", row.source, row.what, parts.collect::<Vec<_>>().join("; "))
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The measured rows without a model as Markdown, as `docs/results.md` has them.
pub fn markdown(rows: &[HeadlineRow]) -> String {
    let header = [
        "| source | what | published | ours | 95 % | before | after | beside the published |".to_owned(),
        "|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    let line = |row: &HeadlineRow| {
        let Cells { change, interval, medians: [before, after] } = Cells::of(row);
        let after = format!("{after} {}", row.unit);
        let cells = [&row.source, &row.what, &row.published, &change, &interval, &before, &after, verdict(row)];
        let cells = cells.map(|cell| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") });
        format!("|{}", cells.concat())
    };
    let some = rows.iter().filter(|row| !is_missing(row) && row.kind != Kind::Modelled);
    header.into_iter().chain(some.map(line)).collect::<Vec<_>>().join("\n")
}

/// The sentence that sums up all rows.
pub fn sentence(results: &Results) -> String {
    let of = |is_target| results.headline.iter().filter(move |row| (row.source == TARGET) == is_target);
    let count = |is_target, word: &str| of(is_target).filter(|row| verdict(row) == word).count();
    let judged = |is_target| of(is_target).filter(|row| !is_missing(row));
    let savings = || judged(false).filter(|row| row.published_gain.is_some_and(|gain| gain > 0.0));
    let [more, as_much, less] = [SAVES_MORE, SAVES_AS_MUCH, SAVES_LESS].map(|word| count(false, word));
    let missed: Vec<_> = results.headline.iter().filter(|row| row.verdict == Verdict::Differs).collect();
    let missed = missed.iter().map(|row| format!("{} {}", row.source, row.what)).collect::<Vec<_>>().join(", ");
    let (all, targets) = (savings().count(), judged(true).count());
    let parts = [
        (all > 0).then(|| {
            let here = more + as_much + less;
            format!(
                "{here} of {all} published savings are savings here too: {more} larger, {as_much} as large, {less} smaller"
            )
        }),
        (targets > 0).then(|| format!("{} of {targets} targets are reached", count(true, REACHED))),
        (!missed.is_empty()).then(|| format!("against what is required: {missed}")),
    ];
    match parts.into_iter().flatten().collect::<Vec<_>>() {
        none if none.is_empty() => "nothing was measured".to_owned(),
        parts => parts.join("; "),
    }
}

fn is_missing(row: &HeadlineRow) -> bool {
    row.verdict == Verdict::NotMeasured
}

/// How ours was obtained, and where if that is not the hosted machine.
fn how(row: &HeadlineRow) -> String {
    match row.kind {
        _ if is_missing(row) => String::new(),
        Kind::Counted => format!("{} on the {}", row.kind.name(), row.platform),
        kind => kind.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    fn row(published: f64, (low, high): (f64, f64), verdict: Verdict) -> HeadlineRow {
        let gain = Some(Ratio { median: (low + high) / 2.0, low, high });
        HeadlineRow { published_gain: Some(published), gain, verdict, ..example::results().headline.remove(0) }
    }

    #[test]
    fn a_saving_of_another_size_is_not_called_as_large() {
        let words = |published, gain, is| verdict(&row(published, gain, is));
        assert_eq!(words(0.013, (0.783, 0.812), Verdict::AsExpected), "saves more than published");
        assert_eq!(words(0.9647, (0.807, 0.866), Verdict::AsExpected), "saves less than published");
        assert_eq!(words(0.44, (0.43, 0.45), Verdict::AsExpected), "saves as much as published");
        assert_eq!(words(0.44, (-0.01, 0.45), Verdict::Inconclusive), "no saving shown");
        assert_eq!(words(0.44, (-0.3, -0.2), Verdict::Differs), "costs more; published saves");
    }

    #[test]
    fn a_published_cost_is_not_called_a_saving() {
        let words = |gain, is| verdict(&row(-1.04, gain, is));
        assert_eq!(words((0.05, 0.1), Verdict::AsExpected), "saves; published costs more");
        assert_eq!(words((-0.329, 0.157), Verdict::AsExpected), "costs less than published");
        assert_eq!(words((-1.2, -0.9), Verdict::Inconclusive), "costs as published");
        assert_eq!(words((-3.0, -2.0), Verdict::Differs), "costs more than published");
    }

    #[test]
    fn a_target_is_reached_or_missed_or_too_close() {
        let words = |is| verdict(&HeadlineRow { source: TARGET.to_owned(), ..row(0.25, (0.2, 0.3), is) });
        assert_eq!(words(Verdict::AsExpected), "reached");
        assert_eq!(words(Verdict::Differs), "missed");
        assert_eq!(words(Verdict::Inconclusive), "too close to tell");
        let few = HeadlineRow { gain: None, ..row(0.25, (0.2, 0.3), Verdict::Inconclusive) };
        assert_eq!(verdict(&few), "too few runs");
        assert_eq!(verdict(&HeadlineRow { verdict: Verdict::NotMeasured, ..few }), "not measured");
    }

    #[test]
    fn published_and_ours_have_one_form() {
        let shown = text(&example::results().headline).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains("44.01 % less time (sd 2.80) 47.0 % less time 43.0 to 50.0 % less"), "{shown}");
        assert!(shown.contains("1.3 % less time (4.7 to 4.64 s)"), "{shown}");
        assert!(shown.contains("not measured: Kolothum 2023 Redis during a live migration: needs a live migration"));
        assert!(commands(&example::results().headline).contains("Kolothum 2023 Redis during a live migration: redis-"));
    }

    #[test]
    fn the_sentence_counts_by_size() {
        let wanted = "4 of 6 published savings are savings here too: 0 larger, 3 as large, 1 smaller; against what is required: Kolothum 2023 dirty, get and clear together";
        assert_eq!(sentence(&example::results()), wanted);
    }
}
