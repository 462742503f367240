// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges the figures by the targets that were fixed beforehand: of a guest of 256 MiB on a link of 1 GB/s.
//!
//! Kolothum's own figures of a migration (2023) are of Redis in a guest with 96 vCPUs on hardware. They are not compared:
//! the model has other figures, and the headline says what they need.

use std::time::Duration;

use twofold_memory::dirty::Tracker;

use super::measure::{DOWNTIME, MIGRATION, WORK, phase};
use super::plan::{Guest, NAME, Plan};
use crate::headline::row::{Limit, Ours, OwnTarget, Pair};
use crate::headline::verdict::Owed;
use crate::report::words::Noun;
use crate::results::{HeadlineRow, Kind, Measurement, Platform, Quantity, Results};
use crate::statistics::Quartiles;

/// The trackers that have to be better than write-protect: one of them suffices, and both are shown.
const BETTER: [Tracker; 2] = [Tracker::Combined, Tracker::Adaptive];

/// The trackers that the targets compare; the baseline comes first.
pub const TRACKERS: [Tracker; 3] = [Tracker::WriteProtect, BETTER[0], BETTER[1]];
/// The loads of the targets, in percent of the link.
pub const LOADS: [u64; 2] = [20, 80];

/// The rows of a plan whose guest is the claim's; else none.
pub fn rows(plan: &Plan, results: &Results) -> Vec<HeadlineRow> {
    let is_claim = Guest { load: Guest::CLAIM.load, ..plan.guest } == Guest::CLAIM;
    if !is_claim || !LOADS.iter().all(|load| plan.loads.contains(load)) {
        return Vec::new();
    }
    rows_of(results)
}

/// The rows of these results.
pub fn rows_of(results: &Results) -> Vec<HeadlineRow> {
    let targets = TARGETS.iter().map(|target| target.of.row(&ours(results, target)));
    [BETTER_ONE.row(&better(results))].into_iter().chain(targets).chain(downtimes(results)).collect()
}

/// The rows without a measurement, and the reason.
pub fn missing_rows(why: &str) -> Vec<HeadlineRow> {
    let limits = BETTER.map(|tracker| limit(tracker).missing(why));
    let targets = TARGETS.iter().map(|target| target.of.missing(why));
    [BETTER_ONE.missing(why)].into_iter().chain(targets).chain(limits).collect()
}

/// S3's saving, with the better of the two trackers.
const BETTER_ONE: OwnTarget = OwnTarget {
    what: "migration, 80 % of the link: guest's work, the better one",
    of: Noun::TIME,
    owed: Owed::AtLeast(0.1),
};

/// A target of no loss, and what is compared.
struct Target {
    of: OwnTarget,
    phase: &'static str,
    load: u64,
    tracker: Tracker,
}

const fn target(what: &'static str, phase: &'static str, (load, tracker): (u64, Tracker)) -> Target {
    Target { of: OwnTarget { what, of: Noun::TIME, owed: Owed::AtLeast(0.0) }, phase, load, tracker }
}

const TARGETS: [Target; 6] = [
    target("migration, 20 % of the link: guest's work, combined", WORK, (20, Tracker::Combined)),
    target("migration, 20 % of the link: guest's work, adaptive", WORK, (20, Tracker::Adaptive)),
    target("migration, 80 % of the link: its time, combined", MIGRATION, (80, Tracker::Combined)),
    target("migration, 80 % of the link: its time, adaptive", MIGRATION, (80, Tracker::Adaptive)),
    target("migration, 20 % of the link: its time, combined", MIGRATION, (20, Tracker::Combined)),
    target("migration, 20 % of the link: its time, adaptive", MIGRATION, (20, Tracker::Adaptive)),
];

/// The better of the two trackers, by its median.
fn better(results: &Results) -> Ours {
    let median = |tracker| Quartiles::of(runs(results, tracker, WORK, 80).iter().copied()).median;
    let tracker = if median(Tracker::Combined) < median(Tracker::Adaptive) { BETTER[0] } else { BETTER[1] };
    let target = Target { of: BETTER_ONE, phase: WORK, load: 80, tracker };
    let ours = ours(results, &target);
    Ours { note: format!("{}; the better one is {}", ours.note, tracker.name()), ..ours }
}

/// The downtime with the higher load, which the link still carries.
fn downtimes(results: &Results) -> impl Iterator<Item = HeadlineRow> {
    BETTER.into_iter().map(|tracker| {
        let after = runs(results, tracker, DOWNTIME, 80).iter().map(|nanos| nanos / 1e6).collect();
        limit(tracker).row(&Ours { pair: Pair { before: Vec::new(), after }, ..ours_of(Pair::default()) })
    })
}

fn limit(tracker: Tracker) -> Limit {
    let what = match tracker {
        Tracker::Adaptive => "migration, 80 % of the link: downtime, adaptive",
        _ => "migration, 80 % of the link: downtime, combined",
    };
    Limit { what, most: DOWNTIME_MOST.as_millis() as f64, shown: "5 ms at most" }
}

fn ours(results: &Results, target: &Target) -> Ours {
    let of = |tracker| runs(results, tracker, target.phase, target.load).iter().map(|nanos| nanos / 1e6).collect();
    ours_of(Pair { before: of(Tracker::WriteProtect), after: of(target.tracker) })
}

fn ours_of(pair: Pair) -> Ours {
    let note = "`twofold bench migrate-model`; virtual time, beside write-protect".to_owned();
    Ours { pair, unit: "ms", platform: Platform::Machine, kind: Kind::Modelled, note }
}

/// The runs of a tracker, in nanoseconds.
fn runs<'r>(results: &'r Results, tracker: Tracker, name: &str, load: u64) -> &'r [f64] {
    let phase = phase(name, load);
    let is = |one: &&Measurement| {
        let is_tracker = one.configuration.get("tracker").is_some_and(|name| name == tracker.name());
        one.experiment == NAME && one.phase == phase && one.quantity == Quantity::Time && is_tracker
    };
    results.measurements.iter().find(is).map_or(&[], |one| &one.runs)
}

const DOWNTIME_MOST: Duration = Guest::CLAIM.downtime;
