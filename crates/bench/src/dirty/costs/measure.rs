// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the rows, run by run.

use super::rows::{Row, Target};
use crate::dirty::guest::{LoggedGuest, PAGE};
use crate::engine::arena::Arena;
use crate::engine::limits::{LIMITS, Limit};
use crate::estimate::progress;

/// What was measured.
pub struct Costs<'r> {
    /// The rows, in order.
    pub rows: Vec<Measured<'r>>,
    /// How long this machine takes to read the entries alone: one for each run of a row whose target is a multiple of it.
    pub reads: Vec<f64>,
}

/// A row, with the nanoseconds of each run.
pub struct Measured<'r> {
    /// The row.
    pub row: &'r Row,
    /// Nanoseconds.
    pub times: Vec<f64>,
}

/// Measures the rows in a slot of `size` bytes.
///
/// # Errors
///
/// There is too little memory, or an operation left something wrong.
pub fn measure<'r>(rows: &[&'r Row], size: u64, runs: u32) -> anyhow::Result<Costs<'r>> {
    let (mut guest, entries) = (LoggedGuest::of_tables(size)?, size / PAGE);
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
            if run > 0 && matches!(row.target, Some(Target::Reads(_))) {
                reads.push(read.time(arena, entries) * entries as f64);
            }
        }
    }
    progress.finish_and_clear();
    let rows = rows.iter().zip(times).map(|(row, times)| Measured { row, times }).collect();
    Ok(Costs { rows, reads })
}

fn read_limit() -> anyhow::Result<&'static Limit> {
    let limit = LIMITS.iter().find(|limit| limit.name == "limit_read");
    limit.ok_or_else(|| anyhow::anyhow!("there is no limit to compare with"))
}
