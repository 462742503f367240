// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of trackers as text: every row, or a row for each workload.

use twofold_memory::dirty::Tracker;

use super::judge::{Report, Row};
use crate::report::section::{TOO_FEW, in_order};
use crate::report::table::table;
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

/// Formats a row for each workload and exit cost, the machine, and a sentence.
pub fn summary(report: &Report) -> String {
    let scenes = in_order(report.rows.iter().map(|row| (row.workload, row.exit_cost_ns)));
    let of =
        |scene: (&'static str, u32)| report.rows.iter().filter(move |row| (row.workload, row.exit_cost_ns) == scene);
    let work = |row: &Row| row.work.median;
    let best = |scene| of(scene).max_by(|one, other| work(one).total_cmp(&work(other)));
    let cells = scenes.iter().filter_map(|scene| {
        let (best, adaptive) = (best(*scene)?, of(*scene).find(|row| row.tracker == ADAPTIVE));
        let share = match adaptive {
            None => "-".to_owned(),
            Some(row) if row.is_missed() => format!("{}: missed", share(row)),
            Some(row) => share(row),
        };
        let rate = format!("{} M/s", short(work(best) / 1e6));
        Some(vec![scene.0.to_owned(), scene.1.to_string(), best.tracker.to_owned(), rate, share])
    });
    let header = ["writes", "exit ns", "best tracker", "writes per second of CPU", "adaptive beside the best"];
    let lost = scenes.iter().filter_map(|scene| of(*scene).find(|row| row.tracker == ADAPTIVE));
    let least = lost.filter_map(|row| Some((row.of_best?.median, row))).min_by(|one, other| one.0.total_cmp(&other.0));
    let sentence = match least {
        Some((_, row)) => format!(
            "adaptive does at least {} of the best tracker's writes per second, least with {} writes and {} ns an exit",
            share(row).trim_end_matches(" of it"),
            row.workload,
            row.exit_cost_ns
        ),
        None => "adaptive was not compared: it needs 4 runs and other trackers".to_owned(),
    };
    format!(
        "{}\n\nmachine: {}; {} build, medians of {} runs, each exit's cost is modelled\nmore: --all prints every tracker's \
         times, faults and intervals\n{sentence}",
        table(&header, cells, 1),
        report.machine.shown(),
        report.build,
        report.runs,
    )
}

/// The work of a row beside the best: `97 % of it`.
fn share(row: &Row) -> String {
    row.of_best.map_or(TOO_FEW.to_owned(), |of_best| format!("{:.0} % of it", of_best.median * 100.0))
}

const ADAPTIVE: &str = Tracker::Adaptive.name();

fn cells(row: &Row) -> Vec<String> {
    let ms = |ns: f64| short(ns / 1e6);
    let (work, best) = (row.work.times(1e-6), row.of_best);
    vec![
        row.workload.to_owned(),
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
