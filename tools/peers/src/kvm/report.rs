// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of KVM, as tables and as JSON.
//!
//! Invariant: a figure for a page is the instructions of one call or of one round, divided by the memslot's pages.

use serde::Serialize;
use serde_json::{Value, json};
use twofold_abi::exits::EVENTS;
use twofold_launch::exits;
use twofold_workspace::table;

use super::agreement::Compared;
use super::calls::DirtyLog;
use super::experiment::{Experiment, SIZE, Writes};
use super::measure::{DSB_OF_A_FLUSH, Measured, Peer, TLBI_OF_A_FLUSH};
use super::recorded;
use crate::difference::Difference;

/// A figure that README or a target uses, beside the measured one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The operation.
    pub name: &'static str,
    /// The figure in use; `None` for a row that only explains another.
    pub recorded: Option<f64>,
    /// The figure of this run.
    pub measured: f64,
}

/// The recorded TLBIs and DSBs of a write fault.
const KVM_TLBI: f64 = 2.0;
const KVM_DSB: f64 = 3.0;

impl Figure {
    /// Returns how far the measured figure is from the recorded one.
    pub fn difference(&self) -> Option<Difference> {
        self.recorded.map(|recorded| Difference::of(self.measured, recorded))
    }
}

/// Returns the figures of two experiments: `PLAIN`, whose VM has a GIC, and the page table's, whose VM has
/// none.
pub fn figures(measured: &Measured) -> Vec<Figure> {
    let log = &measured.logs[0].kernels;
    let table = &measured.table;
    let of_a_page = |sum: u64| sum as f64 / log.pages as f64;
    let of_the_table = |sum: u64| sum as f64 / table.pages as f64;
    let (last, flushes) = (log.last(), measured.flushes_of_a_write_fault);
    let clear = last.clear.unwrap_or(0);
    let iteration = last.dirty + last.get + clear;
    let figure = |name, recorded, measured| Figure { name, recorded, measured };
    let mut figures = vec![
        figure("first touch of a page, VM without GIC", None, of_the_table(table.create)),
        figure("first touch of a page, VM with GIC", Some(recorded::FIRST_TOUCH as f64), of_a_page(log.populate)),
        figure("write to a protected page, VM without GIC", None, of_the_table(table.update)),
        figure("write to a protected page, VM with GIC", Some(recorded::WRITE_FAULT as f64), of_a_page(last.dirty)),
        figure("page of a dirty iteration, VM with GIC", Some(recorded::ITERATION as f64), of_a_page(iteration)),
        figure("page of a clear, VM with GIC", Some(recorded::CLEAR as f64), of_a_page(clear)),
        figure("TLBI of a write to a protected page", Some(KVM_TLBI), flushes * TLBI_OF_A_FLUSH),
        figure("DSB of a write to a protected page", Some(KVM_DSB), flushes * DSB_OF_A_FLUSH),
    ];
    figures.extend(EVENTS.into_iter().filter_map(|event| {
        let measured = *measured.exits.0.get(event.name)?;
        Some(figure(event.what, exits::kvm(event).map(|recorded| recorded as f64), measured))
    }));
    figures
}

/// Formats the tables.
pub fn shown(measured: &Measured) -> String {
    let rows = figures(measured).into_iter().map(|figure| {
        let recorded = figure.recorded.map_or_else(|| "-".to_owned(), number);
        let difference = figure.difference().map_or_else(|| "-".to_owned(), |difference| difference.to_string());
        vec![figure.name.to_owned(), recorded, number(figure.measured), difference]
    });
    let figures = table::with_numbers(&[recorded::HEADING, "recorded", "measured", "difference"], rows, 1..);
    let header = [
        "EL2 instructions, for a page",
        "first touch",
        "enable",
        "dirty 1",
        "dirty 2",
        "dirty 3",
        "get 3",
        "clear 1",
        "clear 3",
    ];
    let logs = table::with_numbers(
        &header,
        measured.logs.iter().map(|compared| row(&compared.experiment, &compared.kernels)),
        1..,
    );
    let header = [
        "`twofold bench dirty-log --on kvm` beside that",
        "dirty 3",
        "difference",
        "get or clear 3",
        "difference",
        "equal rounds",
    ];
    let ours = table::with_numbers(&header, measured.logs.iter().map(beside), 1..);
    format!(
        "{figures}\n\n{logs}\n\n{ours}\n\nGuests write to each 4 KiB page of {SIZE}. `manual`: a clear of its own, and all is \
         dirty to begin with; `get`: get clears.\nA chunk splits blocks ahead of writes, as enable or the first clear \
         protects them; 0 splits none.\nVM without GIC: kvm_page_table_test's, where each exit \
         costs more. With GIC: dirty_log_perf_test's, and that of `--on kvm`."
    )
}

/// Returns all figures as JSON.
pub fn json(peer: &Peer, measured: &Measured) -> Value {
    let figures = figures(measured).into_iter().map(|figure| {
        json!({ "name": figure.name, "recorded": figure.recorded, "measured": figure.measured, "percent": figure.difference().map(Difference::percent) })
    });
    json!({
        "versions": {
            "twofold": env!("CARGO_PKG_VERSION"),
            "qemu": peer.qemu.version().to_string(),
            "linux": peer.linux.versions,
            "selftests": peer.source.version,
            "compiler": peer.programs.compiler,
        },
        "figures": figures.collect::<Vec<_>>(),
        "dirty_log": measured.logs,
        "page_table": measured.table,
        "flushes_of_a_write_fault": measured.flushes_of_a_write_fault,
        "exits": measured.exits,
    })
}

/// Returns the row of our program's figures beside the kernel's.
fn beside(compared: &Compared) -> Vec<String> {
    let mut row = vec![name(&compared.experiment)];
    for (kernels, ours) in compared.costs() {
        let difference = Difference::of(ours as f64, kernels as f64);
        row.extend([number(ours as f64 / compared.ours.pages as f64), difference.to_string()]);
    }
    let rounds = compared.kernels.rounds.len();
    row.push(format!("{} of {rounds}", rounds - compared.rounds_unlike().count()));
    row
}

fn row(experiment: &Experiment, log: &DirtyLog) -> Vec<String> {
    let (first, last) = (&log.rounds[0], log.last());
    let mut sums = vec![Some(log.populate), Some(log.enable)];
    sums.extend(log.rounds.iter().map(|round| Some(round.dirty)));
    sums.extend([Some(last.get), first.clear, last.clear]);
    let of_a_page = |sum: Option<u64>| sum.map_or_else(|| "-".to_owned(), |sum| number(sum as f64 / log.pages as f64));
    std::iter::once(name(experiment)).chain(sums.into_iter().map(of_a_page)).collect()
}

fn name(experiment: &Experiment) -> String {
    let clearing = if experiment.is_manual { "manual" } else { "get" };
    let chunk = experiment.chunk >> 20;
    let chunk = if chunk > 0 { format!("{chunk}M") } else { "0".to_owned() };
    let writes = if experiment.writes == Writes::All { "" } else { ", -v 2 -w 25 -a" };
    format!("{}, {clearing}, chunk {chunk}{writes}", experiment.backing)
}

/// Formats a number: without a fraction from 1,000 on, else with two decimal places.
fn number(value: f64) -> String {
    if value < 1000.0 { format!("{value:.2}") } else { table::thousands(value.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::calls::{Bitmap, PageTable, Round};
    use crate::kvm::exits::Exits;
    use crate::kvm::experiment::PLAIN;
    use twofold_abi::exits::HVC;

    fn measured() -> Measured {
        let bitmap = Bitmap { pages: 100, dirty: 100, sum: 7 };
        let round = |dirty| Round { dirty, get: 0, clear: Some(7_800), bitmap };
        let rounds = vec![round(0), round(300_000), round(334_300)];
        let log = DirtyLog { pages: 100, populate: 843_920, enable: 50, rounds, disable: 1 };
        Measured {
            logs: vec![Compared { experiment: PLAIN, kernels: log.clone(), ours: log }],
            table: PageTable { pages: 10, create: 95_150, update: 39_800, adjust: 0 },
            flushes_of_a_write_fault: 1.0,
            exits: Exits([(HVC.name.to_owned(), 3000.0)].into()),
        }
    }

    #[test]
    fn sums_become_figures_for_a_page() {
        let figures = figures(&measured());
        let all: Vec<_> =
            figures.iter().map(|figure| (figure.measured, figure.difference().map(Difference::percent))).collect();
        assert_eq!(all[2..6], [(3980.0, None), (3343.0, Some(0.0)), (3421.0, Some(0.0)), (78.0, Some(0.0))]);
        assert_eq!(all[6..8], [(2.0, Some(0.0)), (3.0, Some(0.0))]);
        assert_eq!((all.len(), all[8].0), (9, 3000.0));
        assert_eq!(all[0], (9515.0, None));
        let touch = all[1].1.unwrap();
        assert!(all[1].0 == 8439.2 && (touch - 10.0).abs() < 1e-9, "{touch}");
    }

    #[test]
    fn tables_have_a_row_for_each() {
        let text = shown(&measured());
        let row = |name: &str| {
            text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(row("first touch of a page, VM with GIC")[8..], ["7,672", "8,439", "10.0", "%", "more"]);
        let log = ["8,439", "0.50", "0.00", "3,000", "3,343", "0.00", "78.00", "78.00"];
        assert_eq!(row("anonymous, manual, chunk 0")[4..], log);
        let ours = text.lines().filter(|line| line.starts_with("anonymous, manual")).nth(1).unwrap();
        let ours: Vec<_> = ours.split_whitespace().skip(4).collect();
        assert_eq!(ours, ["3,343", "equal", "78.00", "equal", "3", "of", "3"]);
    }
}
