// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of trackers, as text.

use super::table::{Report, Row};
use crate::engine::report::table;
use crate::report::section::TOO_FEW;
use crate::statistics::short;

/// Formats the table, the machine and the configuration.
pub fn shown(report: &Report) -> String {
    let header = [
        "writes",
        "exit ns",
        "tracker",
        "dirty ms",
        "get ms",
        "clear ms",
        "last get us",
        "CPU ms",
        "faults",
        "M writes/s",
        "quartiles",
        "of best",
        "95 %",
        "",
    ];
    format!(
        "{}\n\nmachine: {}\nwhat: {} build, a slot of {} MiB in 4 KiB pages, {} rounds of {} writes, each followed by a get and a clear, \
         start and stop with them; guest and collector interleaved on one thread, its CPU time, medians of {} interleaved runs; \
         an exit's cost is modelled: added for each fault",
        table(&header, report.rows.iter().map(cells), 3),
        report.machine.shown(),
        report.build,
        report.bytes >> 20,
        report.rounds,
        report.writes,
        report.runs,
    )
}

fn cells(row: &Row) -> Vec<String> {
    let ms = |ns: f64| short(ns / 1e6);
    let (work, best) = (row.work.times(1e-6), row.of_best);
    vec![
        row.pattern.to_owned(),
        row.exit_cost_ns.to_string(),
        row.tracker.to_owned(),
        ms(row.dirty_ns.median),
        ms(row.get_ns.median),
        ms(row.clear_ns.median),
        short(row.last_get_ns.median / 1e3),
        ms(row.cpu_ns.median),
        format!("{:.0}", row.faults.median),
        short(work.median),
        best.map_or("-".to_owned(), |_| format!("{} to {}", short(work.lower), short(work.upper))),
        best.map_or("-".to_owned(), |best| format!("{:.3}", best.median)),
        best.map_or(TOO_FEW.to_owned(), |best| format!("{:.3} to {:.3}", best.low, best.high)),
        if row.is_missed() { "missed".to_owned() } else { String::new() },
    ]
}
