// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of costs, as text.

use super::judge::Report;
use crate::report::table::table;
use crate::statistics::{ENOUGH, short};

/// Formats the table, the machine and the configuration.
pub fn shown(report: &Report) -> String {
    let rows = report.rows.iter().map(|row| {
        let [median, lower, upper] = [row.ns.median, row.ns.lower, row.ns.upper].map(|ns| short(ns / 1e3));
        let target = row.target_ns.map_or("-".to_owned(), |target| short(target / 1e3));
        let of_target = row.of_target.map_or("-".to_owned(), |of_target| format!("{of_target:.2}"));
        let verdict = if row.is_missed() { "missed" } else { row.not_judged.unwrap_or_default() };
        let quartiles = if (report.runs as usize) < ENOUGH { ["-".to_owned(), "-".to_owned()] } else { [lower, upper] };
        let [lower, upper] = quartiles;
        vec![row.name.to_owned(), median, lower, upper, target, of_target, verdict.to_owned()]
    });
    let table = table(&["us", "median", "quartile", "quartile", "target", "of target", ""], rows, 1);
    let read = report.read_ns.map(|ns| format!("reading the entries alone: {} us\n", ns.times(1e-3)));
    format!(
        "{table}\n\n{}machine: {}\nwhat: {} build, one slot of {} GiB in 4 KiB pages, tables in real memory and nothing behind \
             them, one thread, its CPU time, {} interleaved runs; barriers are fences, no vCPU is in the guest",
        read.unwrap_or_default(),
        report.machine.shown(),
        report.build,
        report.bytes >> 30,
        report.runs,
    )
}
