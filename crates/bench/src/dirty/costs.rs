// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-costs`: what each operation of the dirty log takes, beside what it may.

use std::process::ExitCode;

use serde::Serialize;

use super::guest::{Guest, PAGE};
use super::rows::{Bar, ROWS, Row};
use crate::arguments::DirtyCostsOptions;
use crate::engine::arena::Arena;
use crate::engine::limits::{LIMITS, Limit};
use crate::engine::{progress, report};
use crate::machine::Machine;
use crate::output;
use crate::statistics::{Quartiles, short};

/// `twofold bench dirty-costs`: a failure where a bar is missed.
pub fn command(options: &DirtyCostsOptions) -> anyhow::Result<ExitCode> {
    let size = options.size.bytes();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| chosen(row.name, &options.only)).collect();
    anyhow::ensure!(!rows.is_empty(), "there is no row with that in its name");
    let report = measure(&rows, size, options.runs)?;
    output::line(&report.shown())?;
    if let Some(path) = &options.json {
        output::json(path, &report)?;
    }
    Ok(if report.rows.iter().any(Measured::is_missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Whether one of these is in the name, if there are any.
fn chosen(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))
}

fn measure(rows: &[&Row], size: u64, runs: u32) -> anyhow::Result<Report> {
    let (mut guest, entries) = (Guest::of_tables(size)?, size / PAGE);
    let (read, arena) = (read_limit()?, Arena::map(entries * 8)?);
    let progress = progress(rows.len() as u64 * (u64::from(runs) + 1))?;
    let mut times = vec![Vec::new(); rows.len()];
    let mut reads = Vec::new();
    // The first run is not counted: it brings in the memory.
    for run in 0..=runs {
        for (row, times) in rows.iter().zip(&mut times) {
            progress.set_message(row.name);
            guest.reset()?;
            let time = (row.run)(&guest).map_err(|error| error.context(row.name))?;
            progress.inc(1);
            if run > 0 {
                times.push(time);
            }
            if run > 0 && matches!(row.bar, Some(Bar::Reads(_))) {
                reads.push(read.time(arena, size) * entries as f64);
            }
        }
    }
    progress.finish_and_clear();
    let rows = rows.iter().zip(times).map(|(row, times)| Measured::of(row, &times, &reads, size)).collect();
    let read_ns = (!reads.is_empty()).then(|| Quartiles::of(reads));
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    Ok(Report { rows, read_ns, bytes: size, runs, build, machine: Machine::this() })
}

fn read_limit() -> anyhow::Result<&'static Limit> {
    let limit = LIMITS.iter().find(|limit| limit.name == "limit_read");
    limit.ok_or_else(|| anyhow::anyhow!("there is no limit to compare with"))
}

/// All figures of a run.
#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<Measured>,
    /// What this machine takes to read the entries.
    read_ns: Option<Quartiles>,
    bytes: u64,
    runs: u32,
    build: &'static str,
    machine: Machine,
}

/// A row's figures.
#[derive(Debug, Serialize)]
struct Measured {
    name: &'static str,
    ns: Quartiles,
    /// What it may take at most; `None` for a row without a bar.
    bar_ns: Option<f64>,
    /// The median by the bar.
    of_bar: Option<f64>,
}

impl Measured {
    /// `reads` are those of the row's own runs, where its bar is made of them. The bars are for 16 GiB: of another size, in
    /// proportion.
    fn of(row: &Row, times: &[f64], reads: &[f64], size: u64) -> Self {
        let ns = Quartiles::of(times.iter().copied());
        let (bar_ns, of_bar) = match row.bar {
            None => (None, None),
            Some(Bar::Nanoseconds(bar)) => {
                let bar = bar * size as f64 / BAR_SIZE;
                (Some(bar), Some(ns.median / bar))
            }
            Some(Bar::Reads(count)) => {
                let ratios = times.iter().zip(reads).map(|(time, read)| time / (read * count));
                (Some(Quartiles::of(reads.iter().copied()).median * count), Some(Quartiles::of(ratios).median))
            }
        };
        Self { name: row.name, ns, bar_ns, of_bar }
    }

    fn is_missed(&self) -> bool {
        self.of_bar.is_some_and(|of_bar| of_bar > 1.0)
    }
}

/// The size that the bars are for.
const BAR_SIZE: f64 = (16u64 << 30) as f64;

impl Report {
    fn shown(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let [median, lower, upper] = [row.ns.median, row.ns.lower, row.ns.upper].map(|ns| short(ns / 1e3));
            let bar = row.bar_ns.map_or("-".to_owned(), |bar| short(bar / 1e3));
            let of_bar = row.of_bar.map_or("-".to_owned(), |of_bar| format!("{of_bar:.2}"));
            let verdict = if row.is_missed() { "missed" } else { "" };
            vec![row.name.to_owned(), median, lower, upper, bar, of_bar, verdict.to_owned()]
        });
        let table = report::table(&["us", "median", "quartile", "quartile", "bar", "of bar", ""], rows, 1);
        let read = self.read_ns.map(|ns| format!("reading the entries alone: {} us\n", ns.times(1e-3)));
        format!(
            "{table}\n\n{}machine: {}\nwhat: {} build, one slot of {} GiB in 4 KiB pages, tables in real memory and nothing behind \
             them, one thread, its CPU time, {} runs in turns; barriers are fences, no vCPU is in the guest",
            read.unwrap_or_default(),
            self.machine.shown(),
            self.build,
            self.bytes >> 30,
            self.runs,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bar: Option<Bar>) -> Row {
        Row { name: "x", bar, run: |_| Ok(0.0) }
    }

    #[test]
    fn bars_are_in_proportion_to_the_size() {
        let measured = Measured::of(&row(Some(Bar::Nanoseconds(16.0))), &[3.0, 1.0, 2.0], &[], 1 << 30);
        assert_eq!((measured.bar_ns, measured.of_bar, measured.is_missed()), (Some(1.0), Some(2.0), true));
        let measured = Measured::of(&row(Some(Bar::Nanoseconds(16.0))), &[3.0, 1.0, 2.0], &[], 16 << 30);
        assert!(!measured.is_missed());
        assert!(!Measured::of(&row(None), &[3.0], &[], 1 << 30).is_missed());
    }

    #[test]
    fn what_is_measured_by_reads_is_compared_run_by_run() {
        let measured =
            Measured::of(&row(Some(Bar::Reads(2.0))), &[10.0, 100.0, 1000.0], &[10.0, 100.0, 100.0], 1 << 30);
        assert_eq!((measured.bar_ns, measured.of_bar), (Some(200.0), Some(0.5)));
    }
}
