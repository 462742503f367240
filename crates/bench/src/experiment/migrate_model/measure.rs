// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a plan: in each run each tracker moves the same guest, with the run's seed.

use std::collections::BTreeMap;

use anyhow::Context;
use twofold_memory::dirty::Tracker;

use super::migration::{Moved, migrate};
use super::plan::{Guest, NAME, Plan};
use super::prices::Picos;
use crate::experiment::progress::Progress;
use crate::report::explained::AT;
use crate::results::{Kind, Measurement, Platform, Quantity, Results};
use crate::stop::Stop;

/// The time until the guest's work is done.
pub const WORK: &str = "guest's work";
/// The time until the guest is offered.
pub const MIGRATION: &str = "migration";
/// How long the guest stood still.
pub const DOWNTIME: &str = "downtime";

/// Measures the plan's loads. If a signal ends it, the results have the complete runs.
///
/// # Errors
///
/// A guest does not fit or was not moved, or a page was sent that is not as the guest left it.
pub fn results(plan: &Plan, progress: &Progress, stop: &Stop) -> anyhow::Result<Results> {
    let mut results = Results { notes: plan.notes(), ..Results::begin() };
    for run in 0..plan.runs {
        // The trackers of a run are complete or left out.
        let mut taken = Vec::new();
        for load in &plan.loads {
            let guest = Guest { load: *load, ..plan.guest };
            for tracker in Tracker::ALL {
                if stop.is_requested() {
                    results.interrupted = true;
                    return Ok(results);
                }
                progress.doing(format!("{load} %, {}, run {} of {}", tracker.name(), run + 1, plan.runs));
                let seed = plan.seed.wrapping_add(run.into());
                let moved = migrate(&guest, tracker, seed);
                taken.push((
                    guest,
                    tracker,
                    moved.with_context(|| format!("{load} %, {}, seed {seed}", tracker.name()))?,
                ));
                progress.done();
            }
        }
        if run == 0 && plan.verbose {
            results.notes.extend(taken.iter().map(|(guest, tracker, moved)| charged(guest, *tracker, moved)));
        }
        taken.iter().for_each(|(guest, tracker, moved)| record(&mut results, guest, *tracker, moved));
    }
    Ok(results)
}

/// Adds what became of a guest to the results.
pub fn record(results: &mut Results, guest: &Guest, tracker: Tracker, moved: &Moved) {
    let Guest { vcpus, bytes, link, load, mix, hot, .. } = guest;
    let settings = [
        ("tracker", tracker.name().to_owned()),
        ("bytes", bytes.to_string()),
        ("link", format!("{} MB/s", link / 1_000_000)),
        ("mix", format!("{}/{}", mix.writes, mix.pages)),
        ("hot", hot.name().to_owned()),
        ("vcpus", vcpus.to_string()),
    ];
    let configuration: BTreeMap<_, _> = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let faults: u64 = moved.vcpus.iter().map(|did| did.faults).sum();
    let figures = [
        (WORK, Quantity::Time, moved.finished.as_nanos()),
        (WORK, Quantity::Faults, faults as f64),
        (MIGRATION, Quantity::Time, moved.migration.as_nanos()),
        (MIGRATION, Quantity::PagesSent, moved.sent.pages as f64),
        (MIGRATION, Quantity::Rounds, moved.sent.rounds as f64),
        (DOWNTIME, Quantity::Time, moved.downtime.as_nanos()),
    ];
    for (phase, quantity, figure) in figures {
        let new = Measurement {
            experiment: NAME.to_owned(),
            platform: Platform::Machine,
            configuration: configuration.clone(),
            phase: self::phase(phase, *load),
            quantity,
            kind: Kind::Modelled,
            runs: Vec::new(),
        };
        results.measurement(new).runs.push(figure);
    }
}

/// A phase's name: `migration at 80 %`.
pub fn phase(name: &str, load: u64) -> String {
    format!("{name}{AT}{load} %")
}

/// What one migration was charged for, in one line.
fn charged(guest: &Guest, tracker: Tracker, moved: &Moved) -> String {
    let Moved { spent, vcpus, sent, .. } = moved;
    let us = |time: Picos| format!("{:.0} us", time.as_nanos() / 1e3);
    let sum = |of: fn(&super::load::Did) -> Picos| us(vcpus.iter().map(of).sum());
    let count = |of: fn(&super::load::Did) -> u64| vcpus.iter().map(of).sum::<u64>();
    format!(
        "{} at {} %, first seed: migration: link {}, start {}, get {}, clear {}, stop {}; {} TLBIs, {} DSBs, {} entries, \
         {} atomics; {} rounds, {} pages, {} of them at last; vCPUs until the stop: {} writes, {} faults, {} records; \
         computing {}, faults {}, records {}, throttled {} ({} per mille at most); rounds {:?}",
        tracker.name(),
        guest.load,
        us(spent.link),
        us(spent.start),
        us(spent.get),
        us(spent.clear),
        us(spent.stop),
        spent.events.tlbis,
        spent.events.dsbs,
        spent.events.entries,
        spent.events.atomics,
        sent.rounds,
        sent.pages,
        sent.last_pages,
        count(|did| did.writes),
        count(|did| did.faults),
        count(|did| did.records),
        sum(|did| did.computing),
        sum(|did| did.faulting),
        sum(|did| did.recording),
        sum(|did| did.throttled),
        moved.throttle,
        moved.rounds
    )
}
