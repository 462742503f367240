// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench headline`: every number that the sources published, with ours next to it.
//!
//! Invariant: no row is left out. A row that is not measured says what that needs. Modelled and counted rows are
//! marked. Of all that is measured, the command fails only if an interval excludes a gain that is expected.

mod async_fault;
mod counted;
mod emulated;
mod log;
mod migrate_model;
mod part;
mod plan;
pub mod published;
mod redis;
pub mod row;
mod split;
mod stages;
pub mod subject;
pub mod verdict;
mod walk;
mod window;

use std::process::ExitCode;

use anyhow::ensure;

use crate::experiment::machine::Machines;
use crate::experiment::progress::Progress;
use crate::options::HeadlineOptions;
use crate::output;
use crate::report::Files;
use crate::results::{HeadlineRow, Results, TARGET, Verdict};
use crate::stop::Stop;
use part::{Bench, Part};
use plan::Plan;
use published::PUBLISHED;

/// `twofold bench headline`.
///
/// # Errors
///
/// A file cannot be written, which is reported before anything is measured. A check failed.
pub fn command(options: &HeadlineOptions) -> anyhow::Result<ExitCode> {
    let files = Files::check(&options.output)?;
    let stop = Stop::on_signal()?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut plan = Plan { runs: options.runs, ..Plan::of(plan::free_memory(), cpus, options.full) };
    if let Some(time) = options.time {
        plan.time = time.0;
    }
    let parts = chosen(options)?;
    if options.list {
        parts.iter().try_for_each(|part| output::line(&part.name()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut results = Results::begin();
    let rows = {
        let (machines, progress) = (Machines::new(), Progress::new(parts.len() as u64)?);
        let exit_cost = options.exit_cost;
        let mut bench = Bench { plan: &plan, exit_cost, machines, results: &mut results, stop: &stop, progress };
        part::measure(parts, &mut bench)?
    };
    results.headline = in_order(rows);
    results.notes = notes(&plan, options);
    results.interrupted = stop.is_requested();
    let differs = results.headline.iter().any(|row| row.verdict == Verdict::Differs);
    let code = show(&results, &files)?;
    Ok(if differs && !results.interrupted { ExitCode::FAILURE } else { code })
}

/// The parts of [`parts`]; at least one.
fn chosen(options: &HeadlineOptions) -> anyhow::Result<Vec<Box<dyn Part>>> {
    let chosen = parts(options);
    let all = || parts(&HeadlineOptions { only: Vec::new(), ..options.clone() });
    let names = || all().iter().map(|part| part.name()).collect::<Vec<_>>().join("\n  ");
    ensure!(!chosen.is_empty(), "no part has `{}` in its name; there are:\n  {}", options.only.join("` or `"), names());
    Ok(chosen)
}

/// Prints only the table of the published numbers: all measurements are in the files.
fn show(results: &Results, files: &Files) -> anyhow::Result<ExitCode> {
    let shown = Results { measurements: Vec::new(), ..results.clone() };
    let code = files.print(&shown)?;
    files.write(results)?;
    Ok(code)
}

/// All parts, or those with a word of `--only` in their names. Parts with the same memory are neighbours.
fn parts(options: &HeadlineOptions) -> Vec<Box<dyn Part>> {
    let mut parts: Vec<Box<dyn Part>> = Vec::new();
    parts.extend(window::WindowPart::all().map(|part| Box::new(part) as Box<dyn Part>));
    parts.push(Box::new(walk::WalkPart::default()));
    parts.push(Box::new(async_fault::AsyncFaultPart::new()));
    parts.push(Box::new(migrate_model::MigrateModelPart::new()));
    parts.extend(split::SplitPart::all().map(|part| Box::new(part) as Box<dyn Part>));
    parts.push(Box::new(log::LogPart::default()));
    parts.extend(stages::StagesPart::all().into_iter().map(|part| Box::new(part) as Box<dyn Part>));
    parts.push(Box::new(counted::CountedPart::new(options.images.clone())));
    parts.push(Box::new(emulated::EmulatedPart::new(options.images.clone())));
    parts.push(Box::new(redis::RedisPart::new(options.images.clone())));
    parts.retain(|part| {
        let name = part.name();
        options.only.is_empty() || options.only.iter().any(|word| name.contains(word.as_str()))
    });
    parts
}

/// Sorts rows by source, then by the order of the published numbers. Targets come last.
fn in_order(mut rows: Vec<HeadlineRow>) -> Vec<HeadlineRow> {
    let place = |row: &HeadlineRow| {
        let is = |published: &published::Published| published.command == row.command && published.what == row.what;
        PUBLISHED.iter().position(is).unwrap_or(PUBLISHED.len())
    };
    let source = |row: &HeadlineRow| PUBLISHED.iter().position(|published| published.source == row.source);
    rows.sort_by_key(|row| (row.source == TARGET, source(row), place(row)));
    rows
}

fn notes(plan: &Plan, options: &HeadlineOptions) -> Vec<String> {
    let mut notes = vec![
        format!(
            "ours: memslot of Bras 2026 {} MiB, regions of Kolothum 2023 {} MiB, memory of Wang 2021 up to {} GiB, up \
             to {} vCPUs{}",
            plan.slot >> 20,
            plan.region >> 20,
            plan.shared_gib,
            plan.vcpus,
            if plan.sparse { "; memory is a small piece, mapped repeatedly" } else { "" }
        ),
        "before and after: the medians of runs in turns, with the technique off and on; 95 %: the confidence interval \
         of ours"
            .to_owned(),
        format!(
            "modelled: {} ns are added for each guest exit (--exit-cost); asynchronous faults and migrations are in virtual \
             time, with the prices of `bench async-fault` and `bench migrate-model`",
            options.exit_cost
        ),
    ];
    if plan.sparse && !options.full {
        notes.push("too little memory is free, so memory is sparse, and contents were not checked".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_number_has_its_row_even_where_nothing_can_be_measured() {
        let options = HeadlineOptions::default();
        let rows = parts(&options).iter().flat_map(|part| part.rows(Some("no"))).collect();
        let rows = in_order(rows);
        for published in PUBLISHED {
            let is = |row: &&HeadlineRow| row.command == published.command && row.what == published.what;
            assert_eq!(rows.iter().filter(is).count(), 1, "{published:?}");
        }
        assert!(rows.iter().all(|row| row.verdict == Verdict::NotMeasured && !row.note.is_empty()));
        let mut sources: Vec<_> = rows.iter().map(|row| row.source.as_str()).collect();
        sources.dedup();
        assert_eq!(sources, ["Bras 2026", "Natapov 2010", "Bras RFC 2026", "Kolothum 2023", "Wang 2021", "target"]);
        assert_eq!(rows.iter().filter(|row| row.source == TARGET).count(), 24);
    }

    #[test]
    fn parts_have_names_of_their_own_and_are_found_by_them() {
        let names: Vec<_> = parts(&HeadlineOptions::default()).iter().map(|part| part.name()).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len(), "{names:?}");
        let bras = parts(&HeadlineOptions { only: vec!["Bras 2026".to_owned()], ..HeadlineOptions::default() });
        assert_eq!(bras.len(), 6);
        let none = chosen(&HeadlineOptions { only: vec!["nosuch".to_owned()], ..HeadlineOptions::default() });
        let error = none.err().unwrap().to_string();
        assert!(error.contains("`nosuch`") && names.iter().all(|name| error.contains(name)), "{error}");
    }

    /// The table of docs/results.md has the columns, the rows and the published numbers of this program.
    #[test]
    fn the_page_of_results_has_this_table() {
        let page = include_str!("../../../../docs/results.md");
        let header = format!("{}\n", crate::report::published::markdown(&[]));
        let (_, rows) = page.split_once(&header).expect("docs/results.md has the header of the table");
        let rows: Vec<_> = rows.lines().take_while(|line| line.starts_with('|')).collect();
        assert!(rows.len() > 20, "{} rows", rows.len());
        let options = HeadlineOptions::default();
        let known = parts(&options).iter().flat_map(|part| part.rows(Some("no"))).collect::<Vec<_>>();
        for row in rows {
            let is = |known: &&HeadlineRow| {
                row.starts_with(&format!("| {} | {} | {} |", known.source, known.what, known.published))
            };
            assert!(known.iter().any(|known| is(&known)), "{row}");
        }
    }

    #[test]
    fn every_source_is_explained() {
        for source in PUBLISHED.iter().map(|published| published.source).chain([TARGET]) {
            assert!(crate::report::explained::source(source).is_some(), "{source}");
        }
    }
}
