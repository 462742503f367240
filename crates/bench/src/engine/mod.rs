// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold-bench engine`: the stage-2 engine on this CPU.
//!
//! One thread, tables in real memory, no guest memory, instructions of the architecture for free. Invariant: all
//! operations take turns, one run of each after the other, so that none of them has the machine's good hours alone.

mod arena;
mod guest;
mod limits;
mod operations;
mod platform;
mod report;
mod row;
mod steps;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::EngineOptions;
use crate::output;
use crate::statistics::Spread;

use arena::Arena;
use guest::table_pages;
use limits::{LIMITS, Limit};
use operations::ROWS;
use report::{Configuration, Measured, Report};
use row::{PerUnit, Row};

/// `twofold-bench engine`.
pub fn command(options: &EngineOptions) -> anyhow::Result<()> {
    let size = options.size.bytes();
    if options.list {
        return ROWS.iter().try_for_each(|row| output::line(row.name));
    }
    let arena = Arena::map((table_pages(size) + SPARE) * guest::PAGE)?;
    if let Some(what) = options.steps {
        return steps::serve(what, arena, size);
    }
    let rows: Vec<&Row> = match &options.only[..] {
        [] => ROWS.iter().collect(),
        names => names.iter().map(|name| operation(name)).collect::<anyhow::Result<_>>()?,
    };
    let report = measure(&rows, options, arena)?;
    output::line(&report.shown())?;
    if let Some(path) = &options.json {
        output::json(path, &report)?;
    }
    Ok(())
}

/// Pages for the root and its alignment.
const SPARE: u64 = 16;

/// What can be done once.
enum Subject {
    Operation(&'static Row),
    Limit(&'static Limit),
}

fn find(name: &str) -> anyhow::Result<Subject> {
    match LIMITS.iter().find(|limit| limit.name == name) {
        Some(limit) => Ok(Subject::Limit(limit)),
        None => operation(name).map(Subject::Operation),
    }
}

fn operation(name: &str) -> anyhow::Result<&'static Row> {
    match ROWS.iter().find(|row| row.name == name) {
        Some(row) => Ok(row),
        None => bail!("there is no operation `{name}`; --list names them"),
    }
}

fn measure(rows: &[&Row], options: &EngineOptions, arena: Arena) -> anyhow::Result<Report> {
    let size = options.size.bytes();
    let progress = progress((rows.len() as u64) * (u64::from(options.runs) + 1))?;
    let mut counts = Vec::new();
    let mut times = vec![Vec::new(); rows.len()];
    let mut limits = vec![Vec::new(); LIMITS.len()];
    // Counting comes first and warms the memory up.
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
    progress.finish_and_clear();
    let operations = rows.iter().zip(&times).zip(counts);
    let operations = operations.filter_map(|((row, times), counts)| measured(row.name, row.unit, times, counts));
    let limits = LIMITS.iter().zip(&limits);
    let limits = limits.filter_map(|(limit, times)| measured(limit.name, row::Unit::Page, times, PerUnit::default()));
    let configuration = Configuration::new(size, options.runs);
    Ok(Report::new(operations.collect(), limits.collect(), configuration))
}

fn measured(name: &'static str, unit: row::Unit, times: &[f64], counts: PerUnit) -> Option<Measured> {
    Some(Measured { name, unit, spread: Spread::of(times)?, counts })
}

/// Drawn on a terminal, silent elsewhere.
fn progress(steps: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} ({eta} left)")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn every_operation_leads_to_what_it_should() {
        let arena = Arena::map((table_pages(SIZE) + SPARE) * guest::PAGE).unwrap();
        for row in ROWS {
            let counts = row.count(arena, SIZE).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert!(counts.atomics.is_none(), "{}", row.name);
        }
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).chain(LIMITS.iter().map(|limit| limit.name)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(find("map_pages").is_ok() && find("limit_read").is_ok() && find("nothing").is_err());
    }
}
