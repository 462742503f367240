// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures rows.
//!
//! Invariant: all operations are interleaved, one run of each after the other, so that a change in the machine's load
//! does not favour one of them.

use anyhow::Context;
use indicatif::ProgressBar;
use twofold_stage2::Granule;

use super::arena::Arena;
use super::limits::LIMITS;
use super::report::{Configuration, Measured, Report};
use super::row::{self, PerUnit};
use super::rows::Chosen;
use super::threads;
use super::visits::Visits;
use crate::estimate::progress;
use crate::statistics::Spread;

/// What to measure.
pub struct Plan<G: Granule> {
    /// Bytes of the guest's memory.
    pub size: u64,
    /// Runs of each operation.
    pub runs: u32,
    /// The rows.
    pub chosen: Chosen<G>,
}

/// Measures the rows, a run of each after the other.
pub fn measure<G: Granule>(plan: &Plan<G>, arena: Arena) -> anyhow::Result<Report> {
    let Plan { size, runs, chosen } = plan;
    let (size, runs, rows) = (*size, *runs, &chosen.rows);
    let steps = rows.len() as u64 * (u64::from(runs) + 1) + chosen.threads.len() as u64 * u64::from(runs);
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
    for _ in 0..runs {
        for (row, times) in rows.iter().zip(&mut times) {
            progress.set_message(row.name);
            times.push(row.time(arena, size).with_context(|| row.name)?);
            progress.inc(1);
        }
        for (limit, times) in LIMITS.iter().zip(&mut limits) {
            times.push(limit.time(arena, size / G::SIZE));
        }
    }
    let visits = if chosen.visits { Some(Visits::count::<G>(arena, size).context("visits")?) } else { None };
    let configuration = Configuration::new::<G>(size, runs)?;
    let threads = measure_threads::<G>(&chosen.threads, size, runs, &progress)?;
    progress.finish_and_clear();
    let operations = rows.iter().zip(&times).zip(counts);
    let operations = operations.filter_map(|((row, times), counts)| measured(row.name, row.unit, times, counts));
    let limits = LIMITS.iter().zip(&limits);
    let limits = limits.filter_map(|(limit, times)| measured(limit.name, row::Unit::Page, times, PerUnit::default()));
    Ok(Report::new(operations.collect(), limits.collect(), threads, visits, configuration))
}

/// Returns `None` if there is only one CPU.
fn measure_threads<G: Granule>(
    rows: &[&threads::Row],
    size: u64,
    runs: u32,
    progress: &ProgressBar,
) -> anyhow::Result<Option<Vec<threads::Measured>>> {
    let Some(cpus) = threads::two_cpus() else { return Ok(None) };
    if rows.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let arena = Arena::map(threads::arena_bytes::<G>(size)?)?;
    let mut times = vec![Vec::new(); rows.len()];
    for _ in 0..runs {
        for (row, times) in rows.iter().zip(&mut times) {
            progress.set_message(row.name);
            times.push(row.once(arena, size, cpus).with_context(|| row.name)?);
            progress.inc(1);
        }
    }
    Ok(Some(rows.iter().zip(&times).filter_map(|(row, times)| threads::Measured::of(row, times)).collect()))
}

fn measured(name: &'static str, unit: row::Unit, times: &[f64], counts: PerUnit) -> Option<Measured> {
    Some(Measured { name, unit, spread: Spread::of(times)?, counts })
}
