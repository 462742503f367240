// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the trackers break even: a row for each load, beside write-protect and beside manual.

use anyhow::Context;
use twofold_memory::dirty::Tracker;

use super::migration::{Moved, migrate};
use super::plan::{Guest, Plan};
use super::prices::Picos;
use crate::experiment::progress::Progress;
use crate::report::table::table;
use crate::stop::Stop;

/// One load, with each tracker in the order of [`Tracker::ALL`].
#[derive(Clone, Debug)]
pub struct Row {
    /// In percent of the link.
    pub load: u64,
    /// What became of the guests.
    pub moved: Vec<Moved>,
}

/// Moves a guest with each load and each tracker, once: figures of other seeds differ by less than what is shown. If a
/// signal ends it, the complete rows are returned.
///
/// # Errors
///
/// As [`migrate`].
pub fn rows(plan: &Plan, progress: &Progress, stop: &Stop) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for load in &plan.sweep {
        let guest = Guest { load: *load, ..plan.guest };
        let mut moved = Vec::new();
        for tracker in Tracker::ALL {
            if stop.is_requested() {
                return Ok(rows);
            }
            progress.doing(format!("{load} %, {}", tracker.name()));
            let context = || format!("{load} %, {}, seed {}", tracker.name(), plan.seed);
            moved.push(migrate(&guest, tracker, plan.seed).with_context(context)?);
            progress.done();
        }
        rows.push(Row { load: *load, moved });
    }
    Ok(rows)
}

/// The table: milliseconds until the guest's work is done, and until the guest is offered, with each tracker.
pub fn shown(rows: &[Row]) -> String {
    let mut header = vec!["load", "work, ms:"];
    header.extend(Tracker::ALL.map(Tracker::name));
    header.push("migration, ms:");
    header.extend(Tracker::ALL.map(Tracker::name));
    header.push("throttled");
    let cells = rows.iter().map(|Row { load, moved }| {
        let mut cells = vec![format!("{load} %")];
        for of in TIMES {
            cells.push(String::new());
            cells.extend(moved.iter().map(|one| format!("{:.1}", of(one).as_nanos() / 1e6)));
        }
        let throttled = Tracker::ALL.iter().zip(moved).filter(|(_, moved)| moved.throttle > 0);
        cells.push(throttled.map(|(tracker, _)| tracker.name()).collect::<Vec<_>>().join(", "));
        cells
    });
    let cells = cells.collect::<Vec<_>>();
    format!("modelled, one seed: writes in percent of the link\n{}", table(&header, cells.into_iter(), 1))
}

/// A sentence for each tracker and each baseline: from which load on it is better.
pub fn sentences(rows: &[Row]) -> Vec<String> {
    let pairs = BASELINES.into_iter().flat_map(|(baseline, others)| others.iter().map(move |other| (baseline, *other)));
    let of = |(baseline, tracker): (Tracker, Tracker)| {
        let [work, migration] = TIMES.map(|of| {
            let gain = |row: &Row| Some((row.load, gain(&row.moved, baseline, tracker, of)?));
            rows.iter().filter_map(gain).collect::<Vec<_>>()
        });
        format!(
            "break-even of {} with {}: the work is done no later {}, sooner by 1 % {} and by 10 % {}; the migration takes no \
             longer {}",
            tracker.name(),
            baseline.name(),
            from(&work, 0.0),
            from(&work, 0.01),
            from(&work, 0.1),
            from(&migration, 0.0)
        )
    };
    if rows.is_empty() { Vec::new() } else { pairs.map(of).collect() }
}

/// The loads at which at least this part of the time is saved: `from 40 % on` or `up to 85 %` if they are in a row from
/// there on or up to there, else each.
fn from(gains: &[(u64, f64)], least: f64) -> String {
    let is = |(_, gain): &&(u64, f64)| *gain >= least;
    let at: Vec<_> = gains.iter().filter(is).map(|(load, _)| *load).collect();
    let in_a_row = |count: usize| count == at.len();
    match (&at[..], at.len() == gains.len()) {
        ([], _) => "at no load".to_owned(),
        (_, true) => "at each load".to_owned(),
        ([first, ..], _) if in_a_row(gains.iter().rev().take_while(is).count()) => format!("from {first} % on"),
        ([.., last], _) if in_a_row(gains.iter().take_while(is).count()) => format!("up to {last} %"),
        (some, _) => format!("at {} %", some.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The part of the baseline's time that a tracker saves.
fn gain(moved: &[Moved], baseline: Tracker, tracker: Tracker, of: fn(&Moved) -> Picos) -> Option<f64> {
    let time = |wanted| {
        let found = Tracker::ALL.iter().zip(moved).find(|(tracker, _)| **tracker == wanted);
        found.map(|(_, moved)| of(moved).as_nanos()).filter(|time| *time > 0.0)
    };
    Some(1.0 - time(tracker)? / time(baseline)?)
}

const TIMES: [fn(&Moved) -> Picos; 2] = [|moved| moved.finished, |moved| moved.migration];

/// Write-protect, and what QEMU does with KVM: a manual clear, with all pages dirty at first.
const BASELINES: [(Tracker, &[Tracker]); 2] = [
    (Tracker::WriteProtect, &[Tracker::Manual, Tracker::Hardware, Tracker::Combined, Tracker::Adaptive]),
    (Tracker::Manual, &[Tracker::Combined, Tracker::Adaptive]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_named_where_something_is_saved() {
        let gains = [(5, -0.1), (10, 0.0), (15, 0.02)];
        let shown = [-1.0, 0.0, 0.1].map(|least| from(&gains, least));
        assert_eq!(shown, ["at each load", "from 10 % on", "at no load"]);
        assert_eq!(from(&[(5, 0.1), (10, 0.0), (15, 0.1)], 0.1), "at 5, 15 %");
        assert_eq!(from(&[(5, 0.1), (10, 0.1), (15, 0.0)], 0.1), "up to 10 %");
        assert_eq!(from(&[], 0.1), "at no load");
    }
}
