// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-costs`: how long each operation of the dirty log takes, beside its target.

use std::process::ExitCode;

use serde::Serialize;

use super::guest::{Guest, PAGE};
use super::rows::{Bar, ROWS, Row};
use crate::arguments::DirtyCostsOptions;
use crate::engine::arena::Arena;
use crate::engine::limits::{LIMITS, Limit};
use crate::engine::progress;
use crate::machine::Machine;
use crate::output;
use crate::report::section::TOO_FEW;
use crate::report::table::table;
use crate::statistics::{ENOUGH, Quartiles, short};

/// Runs `twofold bench dirty-costs`; returns a failure if any target is missed.
pub fn command(options: &DirtyCostsOptions) -> anyhow::Result<ExitCode> {
    let size = options.size.bytes();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| chosen(row.name, &options.only)).collect();
    if rows.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        anyhow::bail!(
            "there is no operation with `{}` in its name; there are:\n  {}",
            options.only.join("` or `"),
            names.join("\n  ")
        );
    }
    let report = measure(&rows, size, options.runs)?;
    output::line(&report.shown())?;
    if let Some(path) = &options.json {
        output::json(path, &report)?;
    }
    Ok(if report.rows.iter().any(Measured::is_missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns whether the name contains one of `only`; true if `only` is empty.
fn chosen(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|part| name.contains(part.as_str()))
}

fn measure(rows: &[&Row], size: u64, runs: u32) -> anyhow::Result<Report> {
    let (mut guest, entries) = (Guest::of_tables(size)?, size / PAGE);
    let (read, arena) = (read_limit()?, Arena::map(entries * 8)?);
    let progress = progress(rows.len() as u64 * (u64::from(runs) + 1))?;
    let mut times = vec![Vec::new(); rows.len()];
    let mut reads = Vec::new();
    // The first run is not counted, because it faults in the memory.
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
    /// How long this machine takes to read the entries alone.
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
    /// The most time the operation may take; `None` for a row without a target, or one that is not judged.
    bar_ns: Option<f64>,
    /// The median divided by the target.
    of_bar: Option<f64>,
    /// Why a row that has a target is not judged.
    not_judged: Option<&'static str>,
}

impl Measured {
    /// `reads` are the reading times of this row's runs, if its target is a multiple of them.
    fn of(row: &Row, times: &[f64], reads: &[f64], size: u64) -> Self {
        let ns = Quartiles::of(times.iter().copied());
        let not_judged = match row.bar {
            Some(Bar::FromFullSize(_)) if size < BAR_SIZE => Some("not judged: the target is for 16 GiB"),
            Some(_) if times.len() < ENOUGH => Some(TOO_FEW),
            _ => None,
        };
        let (bar_ns, of_bar) = match row.bar.filter(|_| not_judged.is_none()) {
            None => (None, None),
            Some(Bar::PerSize(bar) | Bar::FromFullSize(bar)) => {
                let bar = bar * size as f64 / BAR_SIZE as f64;
                (Some(bar), Some(ns.median / bar))
            }
            Some(Bar::Reads(count)) => {
                let ratios = times.iter().zip(reads).map(|(time, read)| time / (read * count));
                (Some(Quartiles::of(reads.iter().copied()).median * count), Some(Quartiles::of(ratios).median))
            }
        };
        Self { name: row.name, ns, bar_ns, of_bar, not_judged }
    }

    fn is_missed(&self) -> bool {
        self.of_bar.is_some_and(|of_bar| of_bar > 1.0)
    }
}

/// The slot size that the targets are for.
const BAR_SIZE: u64 = 16 << 30;

impl Report {
    fn shown(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let [median, lower, upper] = [row.ns.median, row.ns.lower, row.ns.upper].map(|ns| short(ns / 1e3));
            let bar = row.bar_ns.map_or("-".to_owned(), |bar| short(bar / 1e3));
            let of_bar = row.of_bar.map_or("-".to_owned(), |of_bar| format!("{of_bar:.2}"));
            let verdict = if row.is_missed() { "missed" } else { row.not_judged.unwrap_or_default() };
            let quartiles =
                if (self.runs as usize) < ENOUGH { ["-".to_owned(), "-".to_owned()] } else { [lower, upper] };
            let [lower, upper] = quartiles;
            vec![row.name.to_owned(), median, lower, upper, bar, of_bar, verdict.to_owned()]
        });
        let table = table(&["us", "median", "quartile", "quartile", "target", "of target", ""], rows, 1);
        let read = self.read_ns.map(|ns| format!("reading the entries alone: {} us\n", ns.times(1e-3)));
        format!(
            "{table}\n\n{}machine: {}\nwhat: {} build, one slot of {} GiB in 4 KiB pages, tables in real memory and nothing behind \
             them, one thread, its CPU time, {} interleaved runs; barriers are fences, no vCPU is in the guest",
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

    const RUNS: [f64; 5] = [3.0, 1.0, 2.0, 2.0, 2.0];

    fn row(bar: Option<Bar>) -> Row {
        Row { name: "x", bar, run: |_| Ok(0.0) }
    }

    #[test]
    fn bars_are_in_proportion_to_the_size() {
        let of = |bar, runs: &[f64], gib: u64| Measured::of(&row(bar), runs, &[], gib << 30);
        let measured = of(Some(Bar::PerSize(16.0)), &RUNS, 1);
        assert_eq!((measured.bar_ns, measured.of_bar, measured.is_missed()), (Some(1.0), Some(2.0), true));
        assert!(!of(Some(Bar::PerSize(16.0)), &RUNS, 16).is_missed());
        assert!(!of(None, &RUNS, 1).is_missed());
    }

    #[test]
    fn a_bar_that_a_smaller_slot_cannot_reach_is_not_judged_there() {
        let of = |runs: &[f64], gib: u64| Measured::of(&row(Some(Bar::FromFullSize(16.0))), runs, &[], gib << 30);
        let small = of(&[100.0; 4], 1);
        assert_eq!((small.bar_ns, small.of_bar, small.is_missed()), (None, None, false));
        assert_eq!(small.not_judged, Some("not judged: the target is for 16 GiB"));
        assert!(of(&[100.0; 4], 16).is_missed() && !of(&[10.0; 4], 16).is_missed());
        assert_eq!(of(&[100.0; 4], 64).bar_ns, Some(64.0));
        let report = Report {
            rows: vec![small],
            read_ns: None,
            bytes: 1 << 30,
            runs: 4,
            build: "test",
            machine: Machine::this(),
        };
        assert!(report.shown().contains("not judged: the target is for 16 GiB"), "{}", report.shown());
        let names = ROWS.iter().filter(|row| matches!(row.bar, Some(Bar::FromFullSize(_)))).map(|row| row.name);
        assert_eq!(names.collect::<Vec<_>>(), ["get 1,000 dirty: manual"]);
    }

    #[test]
    fn few_runs_are_not_judged() {
        let measured = Measured::of(&row(Some(Bar::PerSize(1.0))), &[100.0; 3], &[], 16 << 30);
        assert_eq!((measured.not_judged, measured.is_missed()), (Some("too few runs"), false));
    }

    #[test]
    fn a_name_that_no_operation_has_is_answered_with_all() {
        let (size, only) = ("1G".parse().unwrap(), vec!["nosuch".to_owned()]);
        let error = command(&DirtyCostsOptions { size, runs: 1, json: None, only }).unwrap_err().to_string();
        assert!(ROWS.iter().all(|row| error.contains(row.name)), "{error}");
    }

    #[test]
    fn what_is_measured_by_reads_is_compared_run_by_run() {
        let measured = Measured::of(
            &row(Some(Bar::Reads(2.0))),
            &[10.0, 100.0, 1000.0, 10.0],
            &[10.0, 100.0, 100.0, 100.0],
            1 << 30,
        );
        assert_eq!((measured.bar_ns, measured.of_bar), (Some(200.0), Some(0.5)));
    }
}
