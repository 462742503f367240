// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench engine`: the stage-2 engine on this CPU.
//!
//! The tables are in real memory, there is no guest memory, and the architecture's instructions cost nothing. The rows
//! run on one thread, and at the end on two (module `threads`). Invariant: all operations are interleaved, one run of
//! each after the other, so that a change in the machine's load does not favour one of them.

pub mod arena;
mod before;
mod guest;
pub mod limits;
mod operations;
mod platform;
pub mod report;
mod row;
mod steps;
mod threads;
mod visits;

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use crate::arguments::EngineOptions;
use crate::estimate;
use crate::output;
use crate::statistics::Spread;

use arena::Arena;
use guest::table_pages;
use limits::{LIMITS, Limit};
use report::{Configuration, Measured, Report};
use row::{PerUnit, Row};
use visits::Visits;

/// Runs `twofold bench engine`.
pub fn command(options: &EngineOptions) -> anyhow::Result<()> {
    let size = options.size.bytes();
    if options.list {
        return names().try_for_each(output::line);
    }
    let arena = Arena::map((table_pages(size) + SPARE) * guest::PAGE)?;
    if let Some(what) = options.steps {
        return steps::serve(what, arena, size);
    }
    let report = measure(&Chosen::of(&options.only)?, options, arena)?;
    output::line(&if options.all { report.shown() } else { report.summary() })?;
    if let Some(path) = &options.json {
        output::json(path, &report)?;
    }
    Ok(())
}

/// Pages for the root and its alignment.
const SPARE: u64 = 16;

/// What a step measures.
enum Subject {
    Operation(&'static Row),
    Limit(&'static Limit),
}

/// The rows to measure.
struct Chosen {
    rows: Vec<&'static Row>,
    threads: Vec<&'static threads::Row>,
    visits: bool,
}

impl Chosen {
    /// Returns everything, or the rows that are named.
    fn of(names: &[String]) -> anyhow::Result<Self> {
        if names.is_empty() {
            return Ok(Self { rows: rows().collect(), threads: threads::ROWS.iter().collect(), visits: true });
        }
        let mut chosen = Self { rows: Vec::new(), threads: Vec::new(), visits: false };
        for name in names {
            match threads::ROWS.iter().find(|row| row.name == name) {
                Some(row) => chosen.threads.push(row),
                None => chosen.rows.push(operation(name)?),
            }
        }
        Ok(chosen)
    }
}

fn find(name: &str) -> anyhow::Result<Subject> {
    match LIMITS.iter().find(|limit| limit.name == name) {
        Some(limit) => Ok(Subject::Limit(limit)),
        None => operation(name).map(Subject::Operation),
    }
}

/// Returns all rows of one thread, in the order in which they are printed.
fn rows() -> impl Iterator<Item = &'static Row> {
    operations::ROWS.iter().chain(before::ROWS)
}

/// Returns the names of the rows of one thread, then of two.
fn names() -> impl Iterator<Item = &'static str> {
    rows().map(|row| row.name).chain(threads::ROWS.iter().map(|row| row.name))
}

fn operation(name: &str) -> anyhow::Result<&'static Row> {
    match rows().find(|row| row.name == name) {
        Some(row) => Ok(row),
        None => bail!("there is no operation `{name}`; there are: {}", names().collect::<Vec<_>>().join(", ")),
    }
}

fn measure(chosen: &Chosen, options: &EngineOptions, arena: Arena) -> anyhow::Result<Report> {
    let (size, rows) = (options.size.bytes(), &chosen.rows);
    let steps =
        rows.len() as u64 * (u64::from(options.runs) + 1) + chosen.threads.len() as u64 * u64::from(options.runs);
    let progress = progress(steps)?;
    let mut counts = Vec::new();
    let mut times = vec![Vec::new(); rows.len()];
    let mut limits = vec![Vec::new(); LIMITS.len()];
    // Counting comes first, and faults in the memory.
    for row in rows {
        progress.set_message(row.name);
        counts.push(row.count(arena, size).with_context(|| row.name)?);
        progress.inc(1);
    }
    for _ in 0..options.runs {
        for (row, times) in rows.iter().zip(&mut times) {
            progress.set_message(row.name);
            times.push(row.time(arena, size).with_context(|| row.name)?);
            progress.inc(1);
        }
        for (limit, times) in LIMITS.iter().zip(&mut limits) {
            times.push(limit.time(arena, size));
        }
    }
    let visits = if chosen.visits { Some(Visits::count(arena, size).context("visits")?) } else { None };
    let configuration = Configuration::new(size, options.runs);
    let threads = measure_threads(&chosen.threads, options, &progress)?;
    progress.finish_and_clear();
    let operations = rows.iter().zip(&times).zip(counts);
    let operations = operations.filter_map(|((row, times), counts)| measured(row.name, row.unit, times, counts));
    let limits = LIMITS.iter().zip(&limits);
    let limits = limits.filter_map(|(limit, times)| measured(limit.name, row::Unit::Page, times, PerUnit::default()));
    Ok(Report::new(operations.collect(), limits.collect(), threads, visits, configuration))
}

/// Returns `None` if there is only one CPU.
fn measure_threads(
    rows: &[&threads::Row],
    options: &EngineOptions,
    progress: &ProgressBar,
) -> anyhow::Result<Option<Vec<threads::Measured>>> {
    let Some(cpus) = threads::two_cpus() else { return Ok(None) };
    if rows.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let size = options.size.bytes();
    let arena = Arena::map(threads::arena_bytes(size))?;
    let mut runs = vec![Vec::new(); rows.len()];
    for _ in 0..options.runs {
        for (row, runs) in rows.iter().zip(&mut runs) {
            progress.set_message(row.name);
            runs.push(row.once(arena, size, cpus).with_context(|| row.name)?);
            progress.inc(1);
        }
    }
    Ok(Some(rows.iter().zip(&runs).filter_map(|(row, runs)| threads::Measured::of(row, runs)).collect()))
}

fn measured(name: &'static str, unit: row::Unit, times: &[f64], counts: PerUnit) -> Option<Measured> {
    Some(Measured { name, unit, spread: Spread::of(times)?, counts })
}

/// Returns a bar that is drawn on a terminal and silent elsewhere.
pub fn progress(steps: u64) -> anyhow::Result<ProgressBar> {
    let style = estimate::style("{bar:40} {pos}/{len} {msg} ({elapsed} gone{left})")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn every_operation_leads_to_what_it_should() {
        let arena = Arena::map((table_pages(SIZE) + SPARE) * guest::PAGE).unwrap();
        for row in rows() {
            row.count(arena, SIZE).unwrap_or_else(|error| panic!("{}: {error}", row.name));
        }
    }

    #[test]
    fn names_are_different() {
        let limits = LIMITS.iter().map(|limit| limit.name);
        let threads = threads::ROWS.iter().map(|row| row.name);
        let mut names: Vec<_> = rows().map(|row| row.name).chain(limits).chain(threads).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(find("map_pages").is_ok() && find("limit_read").is_ok());
        let error = Chosen::of(&["nothing".to_owned()]).err().unwrap().to_string();
        assert!(super::names().all(|name| error.contains(name)), "{error}");
    }
}
