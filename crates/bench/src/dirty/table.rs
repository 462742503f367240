// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench dirty-table`: trackers against workloads.

use std::process::ExitCode;

use serde::Serialize;
use twofold_memory::dirty::Tracker;

use super::guest::{Guest, PAGE};
use super::patterns::Pattern;
use super::recorded::Recorded;
use super::shown;
use super::span::Span;
use crate::arguments::DirtyTableOptions;
use crate::engine::progress;
use crate::machine::Machine;
use crate::output;
use crate::statistics::{Quartiles, Ratio};

/// Runs `twofold bench dirty-table`; returns a failure if the adaptive tracker is neither the best nor as good as the
/// best.
pub fn command(options: &DirtyTableOptions) -> anyhow::Result<ExitCode> {
    let report = measure(options)?;
    output::line(&if options.all { shown::shown(&report) } else { shown::summary(&report) })?;
    if let Some(path) = &options.json {
        output::json(path, &report)?;
    }
    Ok(if report.rows.iter().any(Row::is_missed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A workload, the slot it writes to, and its figures.
struct Subject {
    pattern: Pattern,
    rounds: Vec<Vec<u32>>,
    guest: usize,
    /// A list for each tracker.
    spans: Vec<Vec<Span>>,
}

fn measure(options: &DirtyTableOptions) -> anyhow::Result<Report> {
    let mut guests = vec![Guest::backed(options.size.bytes())?];
    let mut subjects = Vec::new();
    for pattern in patterns(options)? {
        let pages = match &pattern {
            Pattern::Recorded(recorded) => {
                guests.push(Guest::backed((recorded.pages() * PAGE).next_multiple_of(2 << 20))?);
                recorded.pages()
            }
            _ => options.size.bytes() / PAGE,
        };
        let count = pattern.rounds().unwrap_or(u64::from(options.rounds));
        let writes = options.writes.unwrap_or(pages);
        let rounds = (0..count).map(|round| pattern.round(round, pages, writes)).collect();
        let spans = vec![Vec::new(); options.tracker.len()];
        subjects.push(Subject { pattern, rounds, guest: guests.len() - 1, spans });
        // The recorded workload comes last.
    }
    let progress = progress(subjects.len() as u64 * options.tracker.len() as u64 * (u64::from(options.runs) + 1))?;
    // The first run is not counted; its log is checked instead.
    for run in 0..=options.runs {
        for subject in &mut subjects {
            for (tracker, spans) in options.tracker.iter().zip(&mut subject.spans) {
                progress.set_message(format!("{}, {}", subject.pattern.name(), tracker.name()));
                let guest = &mut guests[subject.guest];
                guest.reset()?;
                let span = Span::measure(guest, *tracker, &subject.rounds, run == 0)?;
                if run > 0 {
                    spans.push(span);
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    let rows = subjects
        .iter()
        .flat_map(|subject| options.exit_cost.iter().flat_map(|exit_cost| rows(subject, &options.tracker, *exit_cost)));
    Ok(Report {
        rows: rows.collect(),
        bytes: options.size.bytes(),
        rounds: options.rounds,
        writes: options.writes.unwrap_or(options.size.bytes() / PAGE),
        runs: options.runs,
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        machine: Machine::this(),
    })
}

fn patterns(options: &DirtyTableOptions) -> anyhow::Result<Vec<Pattern>> {
    let mut patterns = vec![Pattern::Sequential, Pattern::Random, Pattern::Sparse, Pattern::Hot];
    let recorded = match &options.recorded {
        Some(path) => Recorded::read(path)?,
        None => Recorded::redis()?,
    };
    patterns.push(Pattern::Recorded(recorded));
    let names: Vec<_> = patterns.iter().map(Pattern::name).collect();
    patterns.retain(|pattern| {
        options.only.is_empty() || options.only.iter().any(|part| pattern.name().contains(part.as_str()))
    });
    anyhow::ensure!(
        !patterns.is_empty(),
        "there is no workload with `{}` in its name; there are: {}",
        options.only.join("` or `"),
        names.join(", ")
    );
    Ok(patterns)
}

fn rows(subject: &Subject, trackers: &[Tracker], exit_cost: u32) -> Vec<Row> {
    let exit = f64::from(exit_cost);
    let work = |spans: &[Span]| -> Vec<f64> { spans.iter().map(|span| span.work(exit)).collect() };
    let works: Vec<_> = subject.spans.iter().map(|spans| work(spans)).collect();
    let median = |work: &Vec<f64>| Quartiles::of(work.iter().copied()).median;
    let Some(best) = works.iter().max_by(|one, other| median(one).total_cmp(&median(other))) else { return Vec::new() };
    let row = |((tracker, spans), work): ((&Tracker, &Vec<Span>), &Vec<f64>)| {
        let of = |part: fn(&Span) -> f64| Quartiles::of(spans.iter().map(part));
        Row {
            pattern: subject.pattern.name(),
            exit_cost_ns: exit_cost,
            tracker: tracker.name(),
            dirty_ns: Quartiles::of(spans.iter().map(|span| span.dirty + span.faults as f64 * exit)),
            get_ns: of(|span| span.get),
            clear_ns: of(|span| span.clear),
            last_get_ns: of(|span| span.last_get),
            cpu_ns: Quartiles::of(spans.iter().map(|span| span.cpu(exit))),
            faults: of(|span| span.faults as f64),
            work: Quartiles::of(work.iter().copied()),
            of_best: Ratio::of(work, best),
        }
    };
    trackers.iter().zip(&subject.spans).zip(&works).map(row).collect()
}

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One row for each workload, exit cost and tracker.
    pub rows: Vec<Row>,
    /// The slot's size.
    pub bytes: u64,
    /// Rounds of a workload that is not recorded.
    pub rounds: u32,
    /// Writes of a round.
    pub writes: u64,
    /// Runs.
    pub runs: u32,
    /// How the program was compiled.
    pub build: &'static str,
    /// Where it ran.
    pub machine: Machine,
}

/// The figures of a tracker and a workload: CPU time, the sum over all rounds.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub pattern: &'static str,
    /// The modelled cost of an exit and the return, in nanoseconds.
    pub exit_cost_ns: u32,
    /// The tracker.
    pub tracker: &'static str,
    /// The guest, with its faults.
    pub dirty_ns: Quartiles,
    /// The collector's gets.
    pub get_ns: Quartiles,
    /// The collector's clears.
    pub clear_ns: Quartiles,
    /// The last get.
    pub last_get_ns: Quartiles,
    /// The sum, with start and stop.
    pub cpu_ns: Quartiles,
    /// Faults.
    pub faults: Quartiles,
    /// Writes per second of CPU.
    pub work: Quartiles,
    /// This row's writes per second divided by those of the best tracker; `None` after too few runs.
    pub of_best: Option<Ratio>,
}

impl Row {
    /// Returns whether this is the adaptive tracker, and it misses its target.
    pub fn is_missed(&self) -> bool {
        self.tracker == Tracker::Adaptive.name() && self.of_best.is_some_and(|of_best| of_best.high < ENOUGH)
    }
}

/// The adaptive tracker's target, as a share of the best tracker's work.
const ENOUGH: f64 = 0.95;
